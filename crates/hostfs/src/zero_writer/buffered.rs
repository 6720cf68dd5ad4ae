//! Zeros through the page cache, one request at a time, written out behind.
//!
//! Dirty pages are kept to two windows: while one is written out, the next is
//! filled. A sync at the end is short then, a cancel is answered soon, and
//! memory that others use is not pushed out.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use extant_space::ByteRange;
use extant_sys::buffer::AlignedBuffer;

use crate::sys::calls::{WriteOut, sync_file_range};

const WINDOW: u64 = 8 << 20;

pub(super) struct BufferedWriter {
    file: File,
    zeros: AlignedBuffer,
    filled: ByteRange,
    writing_out: ByteRange,
}

impl BufferedWriter {
    pub(super) fn new(file: File, zeros: AlignedBuffer) -> Self {
        Self {
            file,
            zeros,
            filled: ByteRange::default(),
            writing_out: ByteRange::default(),
        }
    }

    /// Writes `len` zeros at `offset`; returns the bytes written.
    pub(super) fn write(&mut self, offset: u64, len: u32) -> io::Result<u32> {
        let zeros = &self.zeros.as_slice()[..len as usize];
        let written = self.file.write_at(zeros, offset)? as u64;
        let end = offset + written;
        self.filled = if self.filled.end() == offset {
            ByteRange::new(self.filled.start(), end)
        } else {
            ByteRange::new(offset, end)
        };
        if self.filled.len() >= WINDOW {
            self.write_out_behind()?;
        }
        Ok(written as u32)
    }

    fn write_out_behind(&mut self) -> io::Result<()> {
        for (range, wait) in [
            (self.filled, WriteOut::Start),
            (self.writing_out, WriteOut::Finish),
        ] {
            if range.is_empty() {
                continue;
            }
            match sync_file_range(&self.file, range.start(), range.len(), wait) {
                // Nothing to write out to (tmpfs), or no such call (some FUSE): the sync at
                // the end does it all.
                Err(error)
                    if !matches!(
                        error.raw_os_error(),
                        Some(libc::ESPIPE | libc::EINVAL | libc::ENOSYS)
                    ) =>
                {
                    return Err(error);
                }
                _ => {}
            }
        }
        self.writing_out = self.filled;
        self.filled = ByteRange::new(self.filled.end(), self.filled.end());
        Ok(())
    }
}
