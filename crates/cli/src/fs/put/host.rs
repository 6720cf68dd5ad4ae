//! Files of the host as they are read: names, data without holes, attributes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant_space::{ByteRange, Error, Result};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX`.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Names in a directory, sorted.
pub(super) fn entries(directory: &Path) -> Result<Vec<OsString>> {
    let read = || -> io::Result<Vec<OsString>> {
        fs::read_dir(directory)?
            .map(|entry| Ok(entry?.file_name()))
            .collect()
    };
    let mut names =
        read().map_err(|error| Error::from(error).during("read directory").at(directory))?;
    names.sort_unstable();
    Ok(names)
}

/// Bytes of data in trees by their disk usage, for progress. Read errors are reported when the file
/// is copied.
pub(super) fn data_bytes(sources: &[PathBuf]) -> u64 {
    let mut pending: Vec<PathBuf> = sources.to_vec();
    let mut sum = 0;
    while let Some(path) = pending.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            pending.extend(
                entries(&path)
                    .unwrap_or_default()
                    .iter()
                    .map(|name| path.join(name)),
            );
        } else if metadata.is_file() {
            sum += metadata.len().min(metadata.blocks() * 512);
        }
    }
    sum
}

/// The data of a file, piece by piece, holes left out.
pub(super) struct DataPieces<'a> {
    file: &'a File,
    end: u64,
    piece_bytes: u64,
    /// Known data.
    data: ByteRange,
}

impl<'a> DataPieces<'a> {
    pub(super) fn new(file: &'a File, end: u64, piece_bytes: u64) -> Self {
        Self {
            file,
            end,
            piece_bytes,
            data: ByteRange::new(0, 0),
        }
    }

    /// The next data at or behind `from`; `None` where there is none.
    fn next_data(&self, from: u64) -> io::Result<Option<ByteRange>> {
        let start = match rustix::fs::seek(self.file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            // Not every file system supports it.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                return Ok(Some(ByteRange::new(from, self.end)));
            }
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(self.file, SeekFrom::Hole(start))?.min(self.end);
        Ok((start < end).then(|| ByteRange::new(start, end)))
    }
}

impl Iterator for DataPieces<'_> {
    type Item = io::Result<ByteRange>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.data.is_empty() {
            let from = self.data.end();
            if from >= self.end {
                return None;
            }
            match self.next_data(from) {
                Ok(Some(data)) => self.data = data,
                Ok(None) => {
                    self.data = ByteRange::new(self.end, self.end);
                    return None;
                }
                Err(error) => {
                    self.data = ByteRange::new(self.end, self.end);
                    return Some(Err(error));
                }
            }
        }
        let piece_end = self.data.end().min(self.data.start() + self.piece_bytes);
        let piece = ByteRange::new(self.data.start(), piece_end);
        self.data = ByteRange::new(piece_end, self.data.end());
        Some(Ok(piece))
    }
}

/// Fills `buffer` up to the end of the file.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Extended attributes of a file, those of a symbolic link its own.
pub(super) fn xattrs(path: &Path) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let list = match filled(|buffer| rustix::fs::llistxattr(path, buffer)) {
        Ok(list) => list,
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(errno) => return Err(errno.into()),
    };
    let mut found = Vec::new();
    for name in list
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
    {
        match filled(|buffer| rustix::fs::lgetxattr(path, name, buffer)) {
            Ok(value) => found.push((name.to_vec(), value)),
            // Removed meanwhile, or readable by root only.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(found)
}

/// Result of a call that fills a buffer, which has the largest size of lists and values in Linux.
fn filled(call: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buffer = vec![0; XATTR_BYTES_MAX];
    let size = call(&mut buffer)?;
    buffer.truncate(size);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn pieces_are_the_data_and_nothing_of_holes() {
        let mut file = tempfile::tempfile().unwrap();
        file.set_len(10 << 20).unwrap();
        file.write_all_at(&[1; 5000], 4 << 20).unwrap();
        file.flush().unwrap();
        let pieces: Vec<ByteRange> = DataPieces::new(&file, 10 << 20, 1024)
            .map(Result::unwrap)
            .collect();
        let bytes: u64 = pieces.iter().map(|piece| piece.len()).sum();
        assert!((5000..1 << 20).contains(&bytes), "{bytes}");
        assert!(pieces.iter().all(|piece| piece.len() <= 1024));
        assert!(pieces.iter().all(|piece| piece.start() >= 3 << 20));
        let none = tempfile::tempfile().unwrap();
        assert_eq!(DataPieces::new(&none, 0, 1024).count(), 0);
    }
}
