//! Contents of a memory device from a file and into one, both sparse.

use std::fs::File;
use std::os::unix::fs::FileExt;

use extant_space::{ByteRange, Error, ErrorKind, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::region::{PAGE, REGION};
use super::{MemoryDevice, MemoryOptions};
use crate::Device;

impl MemoryDevice {
    /// A device with the content of `file`, with the logical block and capacity of `options`; its
    /// size is that of the file, rounded up to whole blocks. Holes and pages of zeros stay holes.
    pub fn from_file(file: &File, options: MemoryOptions) -> Result<Self> {
        let length = file.metadata()?.len();
        let size = length.next_multiple_of(u64::from(options.logical_block));
        let device = Self::with_options(MemoryOptions { size, ..options });
        let mut buffer = vec![0; REGION];
        let mut at = 0;
        while let Some(data) = next_data(file, at, length)? {
            for piece in data.chunks(REGION as u64) {
                let buffer = &mut buffer[..piece.len() as usize];
                file.read_exact_at(buffer, piece.start())?;
                device.fill(piece.start(), buffer)?;
            }
            at = data.end();
        }
        Ok(device)
    }

    /// Makes the content of `file` equal to that of the device. Pages of zeros become holes.
    pub fn save(&self, file: &File) -> Result<()> {
        file.set_len(0)?;
        file.set_len(self.geometry().size)?;
        let mut buffer = Vec::with_capacity(REGION);
        for number in self.shards.regions_in(self.geometry().range()) {
            let region = self.shards.region(number);
            let start = number * REGION as u64;
            let mut run = start;
            for (at, page) in region.data() {
                let at = start + at as u64;
                if run + buffer.len() as u64 != at {
                    file.write_all_at(&buffer, run)?;
                    buffer.clear();
                    run = at;
                }
                if page.iter().any(|&byte| byte != 0) {
                    let length = (self.geometry().size - at).min(PAGE as u64);
                    buffer.extend_from_slice(&page[..length as usize]);
                }
            }
            file.write_all_at(&buffer, run)?;
            buffer.clear();
        }
        Ok(())
    }

    /// Writes the pages of `data` that are not zero.
    fn fill(&self, offset: u64, data: &[u8]) -> Result<()> {
        let mut at = offset;
        while at < offset + data.len() as u64 {
            let end = (at + 1).next_multiple_of(PAGE as u64);
            let rest = &data[(at - offset) as usize..];
            let page = &rest[..rest.len().min((end - at) as usize)];
            if page.iter().any(|&byte| byte != 0) {
                self.shards.write(at, page)?;
            }
            at = end;
        }
        Ok(())
    }
}

/// The first data at or after `at`; the rest of the file if its file system does not report holes.
fn next_data(file: &File, at: u64, length: u64) -> Result<Option<ByteRange>> {
    if at >= length {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some(ByteRange::new(at, length))),
        Err(errno) => return Err(Error::from(std::io::Error::from(errno))),
    };
    let end = rustix::fs::seek(file, SeekFrom::Hole(start)).map_err(std::io::Error::from)?;
    if start >= length || end <= start {
        return Err(Error::new(ErrorKind::Io).detail("the file changes while it is read"));
    }
    Ok(Some(ByteRange::new(start, end.min(length))))
}
