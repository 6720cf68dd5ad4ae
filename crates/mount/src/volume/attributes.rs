//! Attributes of files, and how full the file system is.

use extant_ext4::{self as ext4, FileType};
use extant_space::SpaceFile;
use rustix::fs::makedev;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::Volume;
use super::nodes::NodeEntry;
use extant_fuse::operations::{
    AttributeChange, Attributes, Caller, NodeId, Request, Result, SetTime, Statistics, Timestamp,
};

/// Bytes of a name at most.
const NAME_BYTES_MAX: u32 = 255;

impl Volume {
    /// An inode's attributes as programs see them.
    pub(super) fn shown(&self, attributes: &ext4::Attributes) -> Attributes {
        let owners = self.options.owners;
        Attributes {
            inode: attributes.inode.0.into(),
            mode: type_bits(attributes.file_type) | u32::from(attributes.permissions),
            links: attributes.links.into(),
            uid: owners.users.other(attributes.uid),
            gid: owners.groups.other(attributes.gid),
            device: attributes
                .device
                .map_or(0, |device| makedev(device.major, device.minor)),
            size: attributes.size_bytes,
            sectors: attributes.allocated_bytes >> 9,
            block_size: self.filesystem.block_bytes(),
            accessed: shown_time(attributes.accessed),
            modified: shown_time(attributes.modified),
            changed: shown_time(attributes.changed),
            created: attributes.created.map(shown_time),
        }
    }

    pub(super) fn attributes_of(&self, node: NodeId) -> Result<Attributes> {
        let known = self.nodes.get(node)?;
        Ok(self.shown(&known.node().attributes()))
    }

    pub(super) fn change_attributes(
        &self,
        request: &Request<'_>,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes> {
        let known = self.nodes.get(node)?;
        if let Some(size) = change.size {
            self.resize(request.caller, &known, size, change)?;
        }
        // A change of the owner drops privileges, also by root.
        if change.uid.is_some() || change.gid.is_some() {
            self.drop_privileges(&known, request.caller)?;
        }
        let owners = self.options.owners;
        let mut engine = ext4::AttributeChange {
            permissions: change.permissions.map(|mode| (mode & 0o7777) as u16),
            uid: change.uid.map(|id| owners.users.other(id)),
            gid: change.gid.map(|id| owners.groups.other(id)),
            accessed: change.accessed.map(|time| self.engine_time(time)),
            modified: change.modified.map(|time| self.engine_time(time)),
            changed: change.changed.map(to_engine),
            times: match (change.accessed, change.modified, change.changed) {
                // With the writeback cache the kernel sets the time of a change from its own clock,
                // and stores it later. Other times are those of `touch -d`.
                (None | Some(SetTime::Now), Some(SetTime::To(time)), Some(_)) => {
                    let stored = known.node().attributes().modified;
                    let possible = stored..=precise_now();
                    if possible.contains(&to_engine(time)) {
                        ext4::Times::Present
                    } else {
                        ext4::Times::Chosen
                    }
                }
                (Some(SetTime::Now), Some(SetTime::Now), _) => ext4::Times::Present,
                _ => ext4::Times::Chosen,
            },
            flags: None,
        };
        if takes_back_times(&known, change, &engine) {
            let stored = known.node().attributes();
            engine.modified = None;
            engine.times = ext4::Times::Present;
            engine.changed = engine.changed.max(Some(stored.changed));
        }
        let wants_nothing = engine == ext4::AttributeChange::default();
        if !wants_nothing || change.size.is_none() {
            match self.reply_errno(known.node().set_attributes(&engine)) {
                // The times of writes from before the file got the flag `a` or `i`: the close would
                // fail otherwise.
                Err(Errno::PERM) if is_flush_of_times(change) => {}
                done => done?,
            }
        }
        Ok(self.shown(&known.node().attributes()))
    }

    /// Cuts a file or makes it longer.
    fn resize(
        &self,
        caller: Caller,
        known: &NodeEntry,
        size: u64,
        change: &AttributeChange,
    ) -> Result<()> {
        let file = known.file()?;
        // Setting the same size again would free blocks past the end.
        if !known.take_unreported_size(size) || self.reply_errno(file.size())? != size {
            self.reply_errno(file.resize(size))?;
        }
        self.before_change(known, caller, change.privileges)
    }

    /// No time may be before that of an earlier change: the present one is that of the engine.
    fn engine_time(&self, time: SetTime) -> ext4::Timestamp {
        match time {
            SetTime::To(time) => to_engine(time),
            SetTime::Now => self.filesystem.now(),
        }
    }

    pub(super) fn statistics_now(&self) -> Statistics {
        let statistics = self.filesystem.statistics();
        Statistics {
            blocks: statistics.blocks,
            blocks_free: statistics.free_blocks,
            blocks_available: statistics.available_blocks,
            files: statistics.inodes.into(),
            files_free: statistics.free_inodes.into(),
            block_size: statistics.block_bytes,
            name_length_max: NAME_BYTES_MAX,
        }
    }
}

/// The present time, to the nanosecond. The kernel's time of a change is between the last tick and
/// this, as it is not before one that another file system was given.
fn precise_now() -> ext4::Timestamp {
    let now = clock_gettime(ClockId::Realtime);
    ext4::Timestamp {
        seconds: now.tv_sec,
        nanoseconds: now.tv_nsec as u32,
    }
}

/// Whether the kernel stores a modification time that is older than a direct write. With a
/// writeback cache it keeps the times of files itself, without those of direct writes, and stores
/// them after a rename, for example. `engine` has the times of `change`.
///
/// A program that sets the modification time alone, to exactly the one from before the direct
/// write, looks the same.
fn takes_back_times(
    known: &NodeEntry,
    change: &AttributeChange,
    engine: &ext4::AttributeChange,
) -> bool {
    let (Some(modified), Some(stale)) = (engine.modified, known.stale_modified()) else {
        return false;
    };
    // A write to the cache sets both times. It may be older than the direct write.
    let is_of_cached_write =
        engine.changed == Some(modified) && modified < known.node().attributes().modified;
    let takes_back = may_be_flush_of_times(change) && (modified == stale || is_of_cached_write);
    known.set_stale_modified(takes_back.then_some(modified));
    takes_back
}

/// Whether the kernel flushes times that it has set itself, as it does with a writeback cache
/// before it closes a file.
fn is_flush_of_times(change: &AttributeChange) -> bool {
    change.handle.is_some() && may_be_flush_of_times(change)
}

/// The same, also where no handle is open for writing.
fn may_be_flush_of_times(change: &AttributeChange) -> bool {
    let sets_times = change.modified.is_some() && change.changed.is_some();
    let others = AttributeChange {
        handle: None,
        modified: None,
        changed: None,
        ..*change
    };
    sets_times && others == AttributeChange::default()
}

/// The type, as the upper bits of a mode.
pub(super) fn type_bits(file_type: FileType) -> u32 {
    use rustix::fs::FileType as Raw;
    let raw = match file_type {
        FileType::Regular => Raw::RegularFile,
        FileType::Directory => Raw::Directory,
        FileType::SymbolicLink => Raw::Symlink,
        FileType::Fifo => Raw::Fifo,
        FileType::Socket => Raw::Socket,
        FileType::CharacterDevice => Raw::CharacterDevice,
        FileType::BlockDevice => Raw::BlockDevice,
    };
    raw.as_raw_mode()
}

fn shown_time(time: ext4::Timestamp) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

fn to_engine(time: Timestamp) -> ext4::Timestamp {
    ext4::Timestamp {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}
