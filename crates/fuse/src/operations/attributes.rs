//! What a file system says about a file and about itself.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Handle, NodeId, Privileges};

/// A moment, in seconds since 1970 and nanoseconds after that; seconds may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that, less than a thousand million.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The clock's time.
    pub fn now() -> Self {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => Self {
                seconds: since.as_secs() as i64,
                nanoseconds: since.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let borrow = i64::from(before.subsec_nanos() > 0);
                Self {
                    seconds: -(before.as_secs() as i64) - borrow,
                    nanoseconds: (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000,
                }
            }
        }
    }
}

/// What a file system says about a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number as programs see it; it may differ from the node's.
    pub inode: u64,
    /// Type and permissions, as in `stat`.
    pub mode: u32,
    /// Names.
    pub links: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Of a device: the number as in `stat`.
    pub device: u64,
    /// Bytes of data.
    pub size: u64,
    /// Units of 512 bytes that it takes.
    pub sectors: u64,
    /// What is read and written best, in bytes.
    pub block_size: u32,
    /// When data was last read.
    pub accessed: Timestamp,
    /// When data was last changed.
    pub modified: Timestamp,
    /// When data or attributes were last changed.
    pub changed: Timestamp,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// A file by its name, with what the kernel remembers of it. Given out, it is one use of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node.
    pub node: NodeId,
    /// Distinguishes files that had the same node number.
    pub generation: u64,
    /// What there is to say about it.
    pub attributes: Attributes,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The clock's.
    Now,
    /// This one.
    To(Timestamp),
}

/// Attributes to change; `None` leaves one as it is. What changes sets the time of the last change
/// as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeChange {
    /// The lowest 12 bits of the mode.
    pub permissions: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Bytes of data: cut off, or followed by a hole.
    pub size: Option<u64>,
    /// When data was last read.
    pub accessed: Option<SetTime>,
    /// When data was last changed.
    pub modified: Option<SetTime>,
    /// When data or attributes were last changed: by a kernel that keeps the times of what it has
    /// not written back yet.
    pub changed: Option<Timestamp>,
    /// The open file through which this is done.
    pub handle: Option<Handle>,
    /// Of a change of the size or owner.
    pub privileges: Privileges,
}

impl Default for AttributeChange {
    fn default() -> Self {
        Self {
            permissions: None,
            uid: None,
            gid: None,
            size: None,
            accessed: None,
            modified: None,
            changed: None,
            handle: None,
            privileges: Privileges::Keep,
        }
    }
}

/// What `statvfs` shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks of the file system, of `block_size` each.
    pub blocks: u64,
    /// Not in use.
    pub blocks_free: u64,
    /// Not in use and not kept for root.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Not in use.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Longest name, in bytes.
    pub name_length_max: u32,
}
