//! Structures of attributes, entries and statistics, and their conversion from
//! [`operations`](crate::operations).

use std::time::Duration;

use rustix::fs::{major, makedev, minor};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::operations::{
    AttributeChange, Attributes, Handle, LookupEntry, Privileges, SetTime, Statistics, Timestamp,
};

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Attr {
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub blksize: u32,
    pub flags: u32,
}

/// The reply to `GETATTR` and `SETATTR`.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct AttrOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub dummy: u32,
    pub attr: Attr,
}

/// The reply to `LOOKUP` and to the operations that create a name.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct EntryOut {
    /// 0: there is no such name, which the kernel may cache.
    pub nodeid: u64,
    pub generation: u64,
    pub entry_valid: u64,
    pub attr_valid: u64,
    pub entry_valid_nsec: u32,
    pub attr_valid_nsec: u32,
    pub attr: Attr,
}

/// The body of `GETATTR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct GetattrIn {
    pub getattr_flags: u32,
    pub dummy: u32,
    pub fh: u64,
}

/// In `getattr_flags`: the handle is valid.
const GETATTR_FH: u32 = 1 << 0;

/// The body of `STATX`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct StatxIn {
    pub getattr_flags: u32,
    pub reserved: u32,
    pub fh: u64,
    pub sx_flags: u32,
    pub sx_mask: u32,
}

/// A timestamp in [`StatxOut`].
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct StatxTime {
    pub tv_sec: i64,
    pub tv_nsec: u32,
    pub reserved: i32,
}

/// The reply to `STATX`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct StatxOut {
    pub attr_valid: u64,
    pub attr_valid_nsec: u32,
    pub flags: u32,
    pub spare: [u64; 2],
    // The kernel's `struct fuse_statx`.
    pub mask: u32,
    pub blksize: u32,
    pub attributes: u64,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
    pub spare0: u16,
    pub ino: u64,
    pub size: u64,
    pub blocks: u64,
    pub attributes_mask: u64,
    pub atime: StatxTime,
    pub btime: StatxTime,
    pub ctime: StatxTime,
    pub mtime: StatxTime,
    pub rdev_major: u32,
    pub rdev_minor: u32,
    pub dev_major: u32,
    pub dev_minor: u32,
    pub spare2: [u64; 14],
}

/// In `mask`: everything but the time of creation.
const STATX_BASIC_STATS: u32 = 0x7ff;
/// In `mask`: the time of creation.
const STATX_BTIME: u32 = 0x800;

/// The body of `SETATTR`.
#[derive(Clone, Copy, Debug, FromBytes)]
#[repr(C)]
pub(crate) struct SetattrIn {
    pub valid: u32,
    pub padding: u32,
    pub fh: u64,
    pub size: u64,
    pub lock_owner: u64,
    pub atime: u64,
    pub mtime: u64,
    pub ctime: u64,
    pub atimensec: u32,
    pub mtimensec: u32,
    pub ctimensec: u32,
    pub mode: u32,
    pub unused4: u32,
    pub uid: u32,
    pub gid: u32,
    pub unused5: u32,
}

/// Bits of `valid`.
mod valid {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// The reply to `STATFS`.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct StatfsOut {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub namelen: u32,
    pub frsize: u32,
    pub padding: u32,
    pub spare: [u32; 6],
}

impl GetattrIn {
    pub fn handle(&self) -> Option<Handle> {
        (self.getattr_flags & GETATTR_FH != 0).then_some(Handle(self.fh))
    }
}

impl StatxIn {
    pub fn handle(&self) -> Option<Handle> {
        (self.getattr_flags & GETATTR_FH != 0).then_some(Handle(self.fh))
    }
}

impl Attr {
    fn new(from: &Attributes) -> Self {
        Self {
            ino: from.inode,
            size: from.size,
            blocks: from.sectors,
            // Negative seconds keep their bits: the kernel reads them as signed.
            atime: from.accessed.seconds as u64,
            mtime: from.modified.seconds as u64,
            ctime: from.changed.seconds as u64,
            atimensec: from.accessed.nanoseconds,
            mtimensec: from.modified.nanoseconds,
            ctimensec: from.changed.nanoseconds,
            mode: from.mode,
            nlink: from.links,
            uid: from.uid,
            gid: from.gid,
            rdev: encode_device(from.device),
            blksize: from.block_size,
            flags: 0,
        }
    }
}

impl AttrOut {
    pub fn new(attributes: &Attributes, validity: Duration) -> Self {
        Self {
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            dummy: 0,
            attr: Attr::new(attributes),
        }
    }
}

impl EntryOut {
    pub fn new(entry: &LookupEntry, validity: Duration) -> Self {
        Self {
            nodeid: entry.node.0,
            generation: entry.generation,
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            attr: Attr::new(&entry.attributes),
            ..Self::absent(validity)
        }
    }

    /// No such name.
    pub fn absent(validity: Duration) -> Self {
        Self {
            entry_valid: validity.as_secs(),
            entry_valid_nsec: validity.subsec_nanos(),
            ..Self::default()
        }
    }
}

impl StatxOut {
    pub fn new(from: &Attributes, validity: Duration) -> Self {
        let time = |time: Timestamp| StatxTime {
            tv_sec: time.seconds,
            tv_nsec: time.nanoseconds,
            reserved: 0,
        };
        let btime_bit = from.created.map_or(0, |_| STATX_BTIME);
        Self {
            attr_valid: validity.as_secs(),
            attr_valid_nsec: validity.subsec_nanos(),
            mask: STATX_BASIC_STATS | btime_bit,
            blksize: from.block_size,
            nlink: from.links,
            uid: from.uid,
            gid: from.gid,
            mode: from.mode as u16,
            ino: from.inode,
            size: from.size,
            blocks: from.sectors,
            atime: time(from.accessed),
            btime: time(from.created.unwrap_or_default()),
            ctime: time(from.changed),
            mtime: time(from.modified),
            rdev_major: major(from.device),
            rdev_minor: minor(from.device),
            ..Self::default()
        }
    }
}

impl SetattrIn {
    pub fn change(&self) -> AttributeChange {
        let has = |bit: u32| self.valid & bit != 0;
        let time = |set: u32, now: u32, seconds: u64, nanoseconds: u32| {
            let to = SetTime::To(timestamp(seconds, nanoseconds));
            has(set).then_some(if has(now) { SetTime::Now } else { to })
        };
        AttributeChange {
            permissions: has(valid::MODE).then_some(self.mode & 0o7777),
            uid: has(valid::UID).then_some(self.uid),
            gid: has(valid::GID).then_some(self.gid),
            size: has(valid::SIZE).then_some(self.size),
            accessed: time(valid::ATIME, valid::ATIME_NOW, self.atime, self.atimensec),
            modified: time(valid::MTIME, valid::MTIME_NOW, self.mtime, self.mtimensec),
            changed: has(valid::CTIME).then(|| timestamp(self.ctime, self.ctimensec)),
            handle: has(valid::FH).then_some(Handle(self.fh)),
            privileges: if has(valid::KILL_SUIDGID) {
                Privileges::Drop
            } else {
                Privileges::Keep
            },
        }
    }
}

impl StatfsOut {
    pub fn new(from: &Statistics) -> Self {
        Self {
            blocks: from.blocks,
            bfree: from.blocks_free,
            bavail: from.blocks_available,
            files: from.files,
            ffree: from.files_free,
            bsize: from.block_size,
            namelen: from.name_length_max,
            frsize: from.block_size,
            ..Self::default()
        }
    }
}

fn timestamp(seconds: u64, nanoseconds: u32) -> Timestamp {
    Timestamp {
        seconds: seconds as i64,
        nanoseconds: nanoseconds.min(999_999_999),
    }
}

/// A device number as the kernel passes it in 32 bits: 12 for the major, 20 for the minor, whose
/// lowest 8 come first.
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (major(device), minor(device));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// The reverse of [`encode_device`].
pub(crate) fn decode_device(encoded: u32) -> u64 {
    let major = (encoded >> 8) & 0xfff;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00);
    makedev(major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_their_32_bits() {
        for (major, minor) in [(0, 0), (8, 1), (259, 3), (0xfff, 0xf_ffff), (1, 0x100)] {
            let device = makedev(major, minor);
            assert_eq!(decode_device(encode_device(device)), device);
        }
        assert_eq!(encode_device(makedev(8, 1)), 0x801);
        assert_eq!(encode_device(makedev(8, 0x123)), 0x10_0823);
    }

    #[test]
    fn change_has_only_fields_marked_as_valid() {
        let mut setattr = SetattrIn::read_from_bytes(&[0xff; 88]).unwrap();
        setattr.valid = 0;
        assert_eq!(setattr.change(), AttributeChange::default());
        setattr.valid = valid::MODE | valid::ATIME | valid::ATIME_NOW | valid::MTIME;
        let expected = AttributeChange {
            permissions: Some(0o7777),
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::To(Timestamp {
                seconds: -1,
                nanoseconds: 999_999_999,
            })),
            ..AttributeChange::default()
        };
        assert_eq!(setattr.change(), expected);
        setattr.valid = valid::SIZE | valid::FH | valid::KILL_SUIDGID;
        let expected = AttributeChange {
            size: Some(u64::MAX),
            handle: Some(Handle(u64::MAX)),
            privileges: Privileges::Drop,
            ..AttributeChange::default()
        };
        assert_eq!(setattr.change(), expected);
    }
}
