//! Writes data into a new file past the page cache, from several threads.
//!
//! Whole blocks are written directly, from aligned memory; edges inside a block are written through
//! the page cache. So the disk is at work from the beginning, little is left for the sync at the
//! end, and the cached data of other processes is not evicted. Without direct I/O, everything is
//! written through the page cache, and its write-out begins at once.
//!
//! In the background one request is in flight at a time, at the pace of `pace.rs`, on the disk
//! before the next one.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use extant_space::{
    ByteRange, CancelToken, Error, ErrorKind, HostIo, ProgressSink, Result, SpaceFile,
};
use extant_sys::direct::DirectIo;
use extant_sys::write_out::{WriteOut, write_out};
use parking_lot::Mutex;

use crate::pace::{PACED_UNIT, Pace, Pacer};

/// Writes to one file whose space or size exists already.
pub struct DataWriter<'f> {
    file: &'f dyn SpaceFile,
    host: Option<HostIo<'f>>,
    direct: Option<Direct>,
    /// In the background.
    pacer: Option<Mutex<Pacer<'f>>>,
}

/// The same file, opened for direct I/O.
struct Direct {
    file: File,
    block_bytes: u64,
    memory_bytes: usize,
}

impl<'f> DataWriter<'f> {
    /// A writer at `pace`, of which a limit alone is left to the caller.
    ///
    /// # Errors
    /// As [`Pace::check`].
    pub fn new(file: &'f dyn SpaceFile, pace: &Pace) -> Result<Self> {
        let host = file.host_io();
        let pacer = if pace.is_background() {
            Some(Mutex::new(Pacer::of_file(file, pace)?))
        } else {
            None
        };
        Ok(Self {
            file,
            host,
            direct: host.and_then(Direct::of),
            pacer,
        })
    }

    /// Writes all of `bytes` at `offset`; durable after a sync of the file.
    ///
    /// # Errors
    /// Those of writing; `Cancelled`, which only a background pace checks.
    pub fn write(&self, bytes: &[u8], offset: u64, cancel: &CancelToken) -> Result<()> {
        let range = ByteRange::at(offset, bytes.len() as u64)
            .ok_or_else(|| Error::new(ErrorKind::TooLarge))?;
        let Some(pacer) = &self.pacer else {
            return self.write_now(bytes, range, WriteOut::Start);
        };
        let mut pacer = pacer.lock();
        pacer.one_at_a_time_unreported(range, PACED_UNIT, cancel, &mut |_, chunk| {
            let start = (chunk.start() - offset) as usize;
            let bytes = &bytes[start..start + chunk.len() as usize];
            self.write_now(bytes, chunk, WriteOut::Finish)
        })
    }

    /// Reports the pauses of all writes since the last report.
    pub fn report(&self, progress: &dyn ProgressSink) {
        if let Some(pacer) = &self.pacer {
            pacer.lock().report(progress);
        }
    }

    fn write_now(&self, bytes: &[u8], range: ByteRange, wait: WriteOut) -> Result<()> {
        let blocks = match &self.direct {
            Some(direct) => direct.blocks(bytes, range),
            None => ByteRange::new(range.start(), range.start()),
        };
        let part = |part: ByteRange| {
            let start = (part.start() - range.start()) as usize;
            &bytes[start..start + part.len() as usize]
        };
        let mut cached = vec![range];
        if let Some(direct) = self.direct.as_ref().filter(|_| !blocks.is_empty()) {
            match direct.file.write_all_at(part(blocks), blocks.start()) {
                Ok(()) => {
                    cached = vec![
                        ByteRange::new(range.start(), blocks.start()),
                        ByteRange::new(blocks.end(), range.end()),
                    ];
                }
                // Not this way, then: some file systems say so only when it is tried.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
                Err(error) => return Err(Error::from(error).during("write").in_range(blocks)),
            }
        }
        for piece in cached.into_iter().filter(|piece| !piece.is_empty()) {
            self.file.write_at(part(piece), piece.start())?;
            if let Some(host) = self.host {
                write_out(host.file, piece, wait)
                    .map_err(|source| Error::from(source).during("write").in_range(piece))?;
            }
        }
        Ok(())
    }
}

impl Direct {
    /// `None`: there is no direct I/O, or no second way to the file.
    fn of(host: HostIo<'_>) -> Option<Self> {
        let alignment = DirectIo::of(host.file)?;
        let path = format!("/proc/self/fd/{}", host.file.as_raw_fd());
        let direct = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .ok()?;
        Some(Self {
            file: direct,
            block_bytes: host.block_bytes.max(alignment.offset_bytes.into()),
            memory_bytes: alignment.memory_bytes as usize,
        })
    }

    /// Part of `range` that direct I/O can write from these bytes.
    fn blocks(&self, bytes: &[u8], range: ByteRange) -> ByteRange {
        let none = ByteRange::new(range.start(), range.start());
        if !self.block_bytes.is_power_of_two() {
            return none;
        }
        let blocks = range.shrink_to_blocks(self.block_bytes);
        let skip = (blocks.start() - range.start()) as usize;
        let address = bytes.as_ptr() as usize + skip;
        if !blocks.is_empty() && address.is_multiple_of(self.memory_bytes.max(1)) {
            blocks
        } else {
            none
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_file::TestFile;

    #[test]
    fn data_written_at_any_offset_is_read_back_at_every_pace() {
        let directory = tempfile::tempdir().unwrap();
        for pace in [Pace::Full, Pace::new(Some(None), None)] {
            let path = directory.path().join("a");
            std::fs::write(&path, vec![0; 1 << 20]).unwrap();
            let file = TestFile::open(&path);
            let writer = DataWriter::new(&file, &pace).unwrap();
            let mut model = vec![0; 1 << 20];
            let data: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8 + 1).collect();
            let cancel = CancelToken::new();
            for (start, length) in [(0, 4096), (8192, 300_000), (400_001, 5000), (1_048_575, 1)] {
                writer
                    .write(&data[..length], start as u64, &cancel)
                    .unwrap();
                model[start..start + length].copy_from_slice(&data[..length]);
            }
            assert!(std::fs::read(&path).unwrap() == model, "{pace:?}");
            cancel.cancel();
            let stopped = writer.write(&data[..4096], 0, &cancel);
            assert_eq!(stopped.is_err(), pace != Pace::Full);
            std::fs::remove_file(&path).unwrap();
        }
    }
}
