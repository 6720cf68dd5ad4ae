//! Attributes of files, and statistics of the file system.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Handle, NodeId, Privileges};

/// A timestamp: seconds since 1970, which may be negative, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds after that, less than 1,000,000,000.
    pub nanoseconds: u32,
}

impl Timestamp {
    /// The current time.
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

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The inode number that programs see; it may differ from the node's.
    pub inode: u64,
    /// Type and permissions, as in `stat`.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of a device file, as in `stat`.
    pub device: u64,
    /// Length of the data, in bytes.
    pub size: u64,
    /// Allocated space, in units of 512 bytes.
    pub sectors: u64,
    /// Preferred length of reads and writes, in bytes.
    pub block_size: u32,
    /// Access time.
    pub accessed: Timestamp,
    /// Modification time.
    pub modified: Timestamp,
    /// Change time.
    pub changed: Timestamp,
    /// Creation time.
    pub created: Option<Timestamp>,
}

/// The result of a lookup. Each that is returned counts as a reference to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupEntry {
    /// The node.
    pub node: NodeId,
    /// Distinguishes files that had the same node number.
    pub generation: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time.
    Now,
    /// This time.
    To(Timestamp),
}

/// Attributes to change; `None` keeps one. A change updates the change time as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttributeChange {
    /// The lowest 12 bits of the mode.
    pub permissions: Option<u32>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length of the data, in bytes: truncated, or extended by a hole.
    pub size: Option<u64>,
    /// Access time.
    pub accessed: Option<SetTime>,
    /// Modification time.
    pub modified: Option<SetTime>,
    /// Change time, from a kernel that keeps the times of dirty data.
    pub changed: Option<Timestamp>,
    /// The open file of the call, if any.
    pub handle: Option<Handle>,
    /// Whether a change of size or owner drops privileges.
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

/// The result of `statvfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of blocks, of `block_size` each.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks that are not reserved for root.
    pub blocks_available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Block size, in bytes.
    pub block_size: u32,
    /// Maximum length of a name, in bytes.
    pub name_length_max: u32,
}
