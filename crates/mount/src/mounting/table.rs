//! The kernel's list of mounts.
//!
//! Format: proc_pid_mountinfo(5).

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant_space::{Error, Result};

const TABLE: &str = "/proc/self/mountinfo";

/// The number that a mounted file system has as a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// What is mounted at a directory, given by its full name; of several the one that is seen.
pub(super) fn device_at(directory: &Path) -> Result<Option<DeviceNumber>> {
    let table = fs::read(TABLE).map_err(|error| Error::from(error).at(TABLE))?;
    Ok(find(&table, directory))
}

fn find(table: &[u8], directory: &Path) -> Option<DeviceNumber> {
    let lines = table.split(|&byte| byte == b'\n').rev();
    lines
        .map(|line| line.split(|&byte| byte == b' '))
        .find_map(|mut words| {
            let device = words.nth(2)?;
            let place = unescape(words.nth(1)?);
            let is_it = Path::new(OsStr::from_bytes(&place)) == directory;
            is_it.then(|| device_number(device))
        })
        .flatten()
}

fn device_number(word: &[u8]) -> Option<DeviceNumber> {
    let (major, minor) = str::from_utf8(word).ok()?.split_once(':')?;
    Some(DeviceNumber {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
    })
}

/// Space, tab, newline and backslash stand in the table as a backslash and three octal digits.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (rest, plain) = match (first, code) {
            (b'\\', Some(code)) => (&after[3..], push(plain, code)),
            _ => (after, push(plain, first)),
        };
    }
    plain
}

fn push(mut bytes: Vec<u8>, byte: u8) -> Vec<u8> {
    bytes.push(byte);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &[u8] = b"\
25 1 253:0 / / rw - ext4 /dev/vda rw
66 25 0:50 / /mnt/a\\040b rw,nosuid - fuse.extant x rw,user_id=0
67 25 0:51 / /mnt/c rw - tmpfs tmpfs rw
68 67 0:52 / /mnt/c rw - fuse.extant x rw
torn line
";

    #[test]
    fn place_shows_what_was_mounted_there_last() {
        let find = |place: &str| find(SAMPLE, Path::new(place)).map(|device| device.minor);
        assert_eq!(find("/mnt/c"), Some(52));
        assert_eq!(find("/mnt/a b"), Some(50));
        assert_eq!(find("/mnt"), None);
        assert_eq!(find("/"), Some(0));
    }

    #[test]
    fn escapes_are_taken_back_and_other_backslashes_stay() {
        assert_eq!(unescape(br"a\134b\011\x\04"), b"a\\b\t\\x\\04");
    }

    #[test]
    fn root_is_mounted_somewhere() {
        assert!(device_at(Path::new("/")).unwrap().is_some());
    }
}
