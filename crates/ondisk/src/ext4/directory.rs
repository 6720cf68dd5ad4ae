//! Directories: blocks of records, and the hash tree hidden among them.
//!
//! Model: a directory is a file. Each of its blocks is filled with records; a record has room for
//! its name and often more, and one with inode 0 is free. With `metadata_csum` a block ends with a
//! fake free record of 12 bytes that holds the checksum. A directory with `INDEX` in its inode also
//! has a tree: its first block and some others look like blocks without entries, and hold hashes of
//! names with the blocks to search.
//!
//! Invariants:
//! - every record of a block is reached from the one before, and the last ends where the block's
//!   records end: readers stop with an error at the first that does not fit;
//! - returned names are 1 to 255 bytes, without `/` and zeros; those of encrypted directories are
//!   16 to 255 bytes of any value;
//! - changing a block leaves other records at their positions.
//!
//! Format: docs/formats/ext4.md, "Directory".

mod edit;
mod hash;
mod index;
mod index_edit;
mod record;
mod tail;

use extant_space::{Error, ErrorKind, Result};

pub use edit::{NewEntry, fill, has_room, init_first, insert, remove, repack, retarget};
pub(super) use hash::unknown_hash;
pub use hash::{HASH_END, HashKind, HashSeed, HashVersion, NameHash, Sign, name_hash};
pub use index::{BlockKind, DxEntry, IndexNode, IndexShape, block_kind};
pub use index_edit::IndexNodeMut;
pub(super) use record::is_plain;
pub use record::{
    ENCRYPTED_NAME_BYTES_MIN, Entries, Entry, NAME_BYTES_MAX, RawDirEntry, encrypted_entries,
    entries, find, record_bytes,
};
pub use tail::{RawDirEntryTail, seal, verify};

use super::{Incompat, Superblock};

/// Whether blocks end with a sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// They do (`metadata_csum`).
    Checksum,
    /// Records go to the end.
    None,
}

/// Whether records store the type of their inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TypeField {
    /// They do (`filetype`).
    Present,
    /// The byte belongs to the length of the name.
    Absent,
}

/// Properties of a file system that the format of its directories depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryFormat {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// How blocks end.
    pub tail: Tail,
    /// Whether records have file types.
    pub types: TypeField,
    /// The highest number of an inode.
    pub inodes: u32,
}

impl DirectoryFormat {
    /// That of a file system.
    pub fn of(superblock: &Superblock) -> Self {
        let features = superblock.features();
        Self {
            block_bytes: superblock.layout().block_bytes(),
            tail: if features.has_metadata_checksums() {
                Tail::Checksum
            } else {
                Tail::None
            },
            types: if features.incompat.contains(Incompat::FILETYPE) {
                TypeField::Present
            } else {
                TypeField::Absent
            },
            inodes: superblock.layout().inodes(),
        }
    }

    /// Bytes of a block that records fill.
    pub fn records_end(&self) -> usize {
        let tail = match self.tail {
            Tail::Checksum => size_of::<RawDirEntryTail>(),
            Tail::None => 0,
        };
        self.block_bytes as usize - tail
    }
}

/// Refuses invalid names: nothing, more than 255 bytes, `/` or a zero byte, `.` and `..`.
///
/// # Errors
/// `NameTooLong`, `InvalidArgument`.
pub fn check_name(name: &[u8]) -> Result<()> {
    let (kind, problem) = match name {
        b"" => (ErrorKind::InvalidArgument, "an empty name"),
        b"." | b".." => (
            ErrorKind::InvalidArgument,
            "the name of a directory's own entry",
        ),
        name if name.len() > NAME_BYTES_MAX => {
            (ErrorKind::NameTooLong, "a name of more than 255 bytes")
        }
        name if !record::is_plain(name) => (
            ErrorKind::InvalidArgument,
            "a name with a slash or a zero byte",
        ),
        _ => return Ok(()),
    };
    Err(Error::new(kind).detail(problem))
}

#[cfg(test)]
mod tests;
