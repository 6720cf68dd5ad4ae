//! Attributes that no device has: owner, permissions and times. They end with the mount.

use extant_fuse::operations::{AttributeChange, Attributes, SetTime, Timestamp};
use parking_lot::Mutex;

use crate::options::Owner;

const REGULAR_FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
/// Preferred length of reads and writes: the memory of a worker, in bytes.
const PREFERRED_BYTES: u32 = 1 << 20;

/// The attributes of the file.
pub(crate) struct FileAttributes(Mutex<Kept>);

struct Kept {
    owner: Owner,
    accessed: Timestamp,
    modified: Timestamp,
    changed: Timestamp,
}

impl FileAttributes {
    pub fn new(owner: Owner, modified: Timestamp) -> Self {
        Self(Mutex::new(Kept {
            owner,
            accessed: modified,
            modified,
            changed: modified,
        }))
    }

    /// The contents have changed.
    pub fn touch(&self) {
        let now = Timestamp::now();
        let mut kept = self.0.lock();
        (kept.modified, kept.changed) = (now, now);
    }

    /// Changes all but the size.
    pub fn change(&self, change: &AttributeChange) {
        let now = Timestamp::now();
        let time = |set: SetTime| match set {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let mut kept = self.0.lock();
        let owner = &mut kept.owner;
        owner.permissions = change.permissions.unwrap_or(owner.permissions);
        owner.uid = change.uid.unwrap_or(owner.uid);
        owner.gid = change.gid.unwrap_or(owner.gid);
        kept.accessed = change.accessed.map_or(kept.accessed, time);
        kept.modified = change.modified.map_or(kept.modified, time);
        kept.changed = now;
    }

    /// All of them, with the size and the allocated space of the device.
    pub fn of_file(&self, inode: u64, size: u64, allocated: u64) -> Attributes {
        let kept = self.0.lock();
        Attributes {
            inode,
            mode: REGULAR_FILE | kept.owner.permissions,
            links: 1,
            uid: kept.owner.uid,
            gid: kept.owner.gid,
            size,
            sectors: allocated.div_ceil(512),
            block_size: PREFERRED_BYTES,
            accessed: kept.accessed,
            modified: kept.modified,
            changed: kept.changed,
            ..Attributes::default()
        }
    }

    /// Those of the directory with the file: who reads the file may list it.
    pub fn of_directory(&self, inode: u64) -> Attributes {
        let kept = self.0.lock();
        let read = kept.owner.permissions & 0o444;
        Attributes {
            inode,
            mode: DIRECTORY | read | read >> 2,
            links: 2,
            uid: kept.owner.uid,
            gid: kept.owner.gid,
            block_size: PREFERRED_BYTES,
            accessed: kept.accessed,
            modified: kept.accessed,
            changed: kept.changed,
            ..Attributes::default()
        }
    }
}
