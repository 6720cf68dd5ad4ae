//! Fast commits: the changes since the last commit of the journal, as short records.
//!
//! Model: they occupy the end of the journal. Each block there is filled with records of tag,
//! length and value. A commit is a series of records, over several blocks if necessary, that ends
//! with a tail; the first one after a commit of the journal begins with a head. A tail's length
//! reaches the end of its block, so that the next commit begins a block.
//!
//! Reading has two steps, because a power cut leaves invalid records. First [`records`] and
//! [`CommitSum`] find the complete commits; the first invalid record there is the end of them. Then
//! [`Record::change`] decodes them, and invalid values there are corruption.
//!
//! Invariant: a commit is valid only if its tail has the right transaction and the right checksum
//! over all bytes of its records, including the padding of blocks, up to the checksum itself.
//!
//! Integers are little-endian here, unlike in the rest of the journal.
//!
//! Format: docs/formats/jbd2.md, "Fast commits".

mod change;
mod record;
mod sum;
mod write;

pub use change::{Change, NameChange};
pub use record::{Record, Records, records};
pub use sum::{CommitSum, Verdict};
pub use write::{CommitWriter, Position};

use zerocopy::little_endian::{U16, U32};

use super::extent::RawExtent;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_fc_tl`: before every value.
    pub struct RawTagLength: 4 {
        0x0 fc_tag: U16,
        0x2 fc_len: U16,
    }

    /// `struct ext4_fc_head`.
    pub struct RawHead: 8 {
        0x0 fc_features: U32,
        0x4 fc_tid: U32,
    }

    /// `struct ext4_fc_add_range`.
    pub struct RawAddRange: 16 {
        0x0 fc_ino: U32,
        0x4 fc_ex: RawExtent,
    }

    /// `struct ext4_fc_del_range`.
    pub struct RawDelRange: 12 {
        0x0 fc_ino: U32,
        0x4 fc_lblk: U32,
        0x8 fc_len: U32,
    }

    /// `struct ext4_fc_dentry_info` without the name.
    pub struct RawDentryInfo: 8 {
        0x0 fc_parent_ino: U32,
        0x4 fc_ino: U32,
    }

    /// `struct ext4_fc_inode` without the inode's bytes.
    pub struct RawFcInode: 4 {
        0x0 fc_ino: U32,
    }

    /// `struct ext4_fc_tail`.
    pub struct RawFcTail: 8 {
        0x0 fc_tid: U32,
        0x4 fc_crc: U32,
    }
}

/// `fc_tag`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// An extent was added to a file.
    AddRange,
    /// Blocks were taken from a file.
    DelRange,
    /// A file was made under a name.
    Creat,
    /// A file got another name.
    Link,
    /// A name was removed.
    Unlink,
    /// The contents of an inode.
    Inode,
    /// Nothing, up to the end of the block.
    Pad,
    /// The end of a commit.
    Tail,
    /// The beginning of the first commit.
    Head,
}

impl Tag {
    fn from_raw(value: u16) -> Option<Self> {
        Some(match value {
            1 => Self::AddRange,
            2 => Self::DelRange,
            3 => Self::Creat,
            4 => Self::Link,
            5 => Self::Unlink,
            6 => Self::Inode,
            7 => Self::Pad,
            8 => Self::Tail,
            9 => Self::Head,
            _ => return None,
        })
    }

    fn raw(self) -> u16 {
        match self {
            Self::AddRange => 1,
            Self::DelRange => 2,
            Self::Creat => 3,
            Self::Link => 4,
            Self::Unlink => 5,
            Self::Inode => 6,
            Self::Pad => 7,
            Self::Tail => 8,
            Self::Head => 9,
        }
    }
}

#[cfg(test)]
mod tests;
