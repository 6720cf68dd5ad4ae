//! Contents and allocated space of a file.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_space::ByteRange;

use crate::command::{self, must, tool};

const BUFFER: usize = 1 << 20;

/// Bytes that the file system counts for `file` (`st_blocks`).
///
/// # Panics
/// When there is no such file.
#[track_caller]
pub fn allocated_bytes(file: &Path) -> u64 {
    let answer = fs::metadata(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    answer.blocks() * 512
}

/// The SHA-256 of `file` in hexadecimal digits, by sha256sum.
///
/// # Panics
/// When it cannot be read.
#[track_caller]
pub fn sha256(file: &Path) -> String {
    let mut command = tool("sha256sum");
    let output = must(command.arg("--").arg(file));
    let text = String::from_utf8_lossy(&output.stdout);
    // A leading backslash marks a file name that had to be escaped.
    let digits = text.trim_start_matches('\\').split(' ').next();
    let digits = digits.filter(|digits| digits.len() == 64);
    digits
        .unwrap_or_else(|| panic!("`{}` printed\n{text}", command::line(&command)))
        .to_owned()
}

/// Two files hold the same bytes.
///
/// # Panics
/// With the first offset where they differ.
#[track_caller]
pub fn assert_same_bytes(one: &Path, other: &Path) {
    let difference = first_difference(one, other)
        .unwrap_or_else(|error| panic!("{} and {}: {error}", one.display(), other.display()));
    if let Some(offset) = difference {
        panic!(
            "{} and {} differ from byte {offset} on",
            one.display(),
            other.display()
        );
    }
}

/// Every byte of `range` exists in `file` and is 0.
///
/// # Panics
/// With the first offset where that is not so.
#[track_caller]
pub fn assert_zeros(file: &Path, range: ByteRange) {
    let fault =
        first_nonzero(file, range).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    if let Some(offset) = fault {
        panic!("{} is not zero at byte {offset}", file.display());
    }
}

fn first_difference(one: &Path, other: &Path) -> io::Result<Option<u64>> {
    let mut files = [File::open(one)?, File::open(other)?];
    let mut buffers = [vec![0; BUFFER], vec![0; BUFFER]];
    let mut at = 0;
    loop {
        let one = read_full(&mut files[0], &mut buffers[0])?;
        let other = read_full(&mut files[1], &mut buffers[1])?;
        let (one, other) = (&buffers[0][..one], &buffers[1][..other]);
        let same = one.iter().zip(other).take_while(|(a, b)| a == b).count();
        if same < one.len().max(other.len()) {
            return Ok(Some(at + same as u64));
        }
        if one.is_empty() {
            return Ok(None);
        }
        at += one.len() as u64;
    }
}

fn first_nonzero(file: &Path, range: ByteRange) -> io::Result<Option<u64>> {
    let mut file = File::open(file)?;
    file.seek(SeekFrom::Start(range.start()))?;
    let mut file = file.take(range.len());
    let mut buffer = vec![0; BUFFER];
    let mut at = range.start();
    while at < range.end() {
        let length = read_full(&mut file, &mut buffer)?;
        if let Some(found) = buffer[..length].iter().position(|&byte| byte != 0) {
            return Ok(Some(at + found as u64));
        }
        if length == 0 {
            return Err(io::Error::other(format!("ends at byte {at}")));
        }
        at += length as u64;
    }
    Ok(None)
}

fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            length => filled += length,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_difference_is_found_past_a_buffer_and_at_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (directory.path().join("a"), directory.path().join("b"));
        let mut bytes = vec![7; BUFFER + 100];
        fs::write(&one, &bytes).unwrap();
        fs::write(&other, &bytes[..BUFFER + 50]).unwrap();
        let end = BUFFER as u64 + 50;
        assert_eq!(first_difference(&one, &other).unwrap(), Some(end));
        bytes[BUFFER + 1] = 8;
        fs::write(&other, &bytes).unwrap();
        let place = BUFFER as u64 + 1;
        assert_eq!(first_difference(&one, &other).unwrap(), Some(place));
        assert_eq!(first_difference(&one, &one).unwrap(), None);
    }

    #[test]
    fn first_nonzero_respects_the_range_and_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a");
        fs::write(&file, [1, 0, 0, 2]).unwrap();
        assert_eq!(first_nonzero(&file, ByteRange::new(1, 3)).unwrap(), None);
        assert_eq!(first_nonzero(&file, ByteRange::new(1, 4)).unwrap(), Some(3));
        assert!(
            first_nonzero(&file, ByteRange::new(1, 1))
                .unwrap()
                .is_none()
        );
        fs::write(&file, [0; 4]).unwrap();
        assert!(first_nonzero(&file, ByteRange::new(0, 5)).is_err());
    }

    #[test]
    fn sha256_of_nothing_is_the_known_one() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("back\\slash");
        fs::write(&file, b"").unwrap();
        assert!(sha256(&file).starts_with("e3b0c44298fc1c14"));
    }
}
