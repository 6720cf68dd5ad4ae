//! Attributes of a file, as text and JSON.

use extant_ext4::{Attributes, DeviceNumber, FileType, Node};
use extant_space::{ErrorKind, Result};
use serde::Serialize;

use super::time;
use crate::fs_image::names;

/// A file in JSON.
#[derive(Debug, Serialize)]
pub(super) struct FileEntry {
    /// Bytes that are no UTF-8 are replaced; then `path_hex` has them all.
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) path_hex: Option<String>,
    pub(super) inode: u32,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    /// Four octal digits.
    pub(super) mode: String,
    pub(super) links: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size_bytes: u64,
    pub(super) allocated_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) device: Option<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) target: Option<String>,
    pub(super) accessed: String,
    pub(super) modified: String,
    pub(super) changed: String,
    pub(super) created: Option<String>,
    pub(super) flags: Vec<String>,
    pub(super) generation: u32,
}

#[derive(Debug, Serialize)]
pub(super) struct Device {
    major: u32,
    minor: u32,
}

impl FileEntry {
    /// The file `node`, called `path`.
    pub(super) fn of(path: &[u8], node: &Node) -> Result<Self> {
        let found = node.attributes();
        let target = match found.file_type {
            FileType::SymbolicLink => match node.read_link() {
                Ok(target) => Some(target),
                // Encrypted.
                Err(error) if error.kind() == ErrorKind::Unsupported => None,
                Err(error) => return Err(error),
            },
            _ => None,
        };
        Ok(Self {
            path: String::from_utf8_lossy(path).into_owned(),
            path_hex: names::hex_unless_text(path),
            inode: found.inode.0,
            kind: type_name(found.file_type),
            mode: format!("{:04o}", found.permissions),
            links: found.links,
            uid: found.uid,
            gid: found.gid,
            size_bytes: found.size_bytes,
            allocated_bytes: found.allocated_bytes,
            device: found
                .device
                .map(|DeviceNumber { major, minor }| Device { major, minor }),
            target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
            accessed: time::rfc3339(found.accessed),
            modified: time::rfc3339(found.modified),
            changed: time::rfc3339(found.changed),
            created: found.created.map(time::rfc3339),
            flags: flag_names(&found),
            generation: found.generation,
        })
    }
}

/// The name in JSON.
pub(super) fn type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::SymbolicLink => "symlink",
        FileType::CharacterDevice => "character-device",
        FileType::BlockDevice => "block-device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// The flags by the names of the format, in small letters.
pub(super) fn flag_names(found: &Attributes) -> Vec<String> {
    let known = found.flags.iter_names();
    known.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// `drwxr-xr-x`.
pub(super) fn mode_letters(kind: FileType, permissions: u16) -> String {
    let kind = match kind {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::SymbolicLink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let mut letters = String::from(kind);
    for (shift, special, both, alone) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = permissions >> shift;
        letters.push(if bits & 4 != 0 { 'r' } else { '-' });
        letters.push(if bits & 2 != 0 { 'w' } else { '-' });
        letters.push(match (bits & 1 != 0, permissions & special != 0) {
            (true, true) => both,
            (false, true) => alone,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_those_of_ls() {
        for (kind, permissions, letters) in [
            (FileType::Regular, 0o644, "-rw-r--r--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Regular, 0o6755, "-rwsr-sr-x"),
            (FileType::Regular, 0o7000, "---S--S--T"),
            (FileType::SymbolicLink, 0o777, "lrwxrwxrwx"),
        ] {
            assert_eq!(mode_letters(kind, permissions), letters);
        }
    }
}
