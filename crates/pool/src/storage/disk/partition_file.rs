//! A partition as the file of a volume.
//!
//! Requests go to the partition's device if the kernel has one, else to the disk at the offset of
//! the partition. Each open file has a descriptor of its own, because direct I/O is a property of
//! the descriptor.

use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_hostfs::{Access, HostFile};
use extant_provision::{Pace, Prepared, Provisioner, Shared};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, Extent, FallocateMode, LayerRange, LayerVisitor,
    MapDetail, Result, SpaceFile, SyncMode,
};

use rustix::fs::Advice;

use super::device::{Disk, ResizedEntry};
use super::table::Entry;
use crate::fair_lock::LockMode;
use crate::storage::volume_locks::VolumeLocks;
use crate::storage::{Checkpoint, Done, FORMAT_ATTRIBUTE, FileStat, MakeWritten, Peek, VolumeFile};

/// All that a partition may hold: its content is never interpreted.
const FORMAT: &[u8] = b"raw";

/// An open partition.
pub(super) struct PartitionFile {
    disk: Arc<Disk>,
    locks: Arc<VolumeLocks>,
    /// The device of the partition, or the disk.
    target: PathBuf,
    access: Access,
    /// Opened by the first request: the kernel removes no device that is open.
    file: OnceLock<HostFile>,
    /// The bytes of `file`.
    range: ByteRange,
    entry: Entry,
    /// For messages.
    path: PathBuf,
}

impl PartitionFile {
    pub(super) fn open(
        disk: &Arc<Disk>,
        locks: &Arc<VolumeLocks>,
        entry: Entry,
        path: PathBuf,
        access: Access,
    ) -> Self {
        let (target, range) = match disk.node_of(&entry) {
            Some(node) => (node, ByteRange::new(0, entry.range.len())),
            None => (disk.path().to_path_buf(), entry.range),
        };
        Self {
            disk: Arc::clone(disk),
            locks: Arc::clone(locks),
            target,
            access,
            file: OnceLock::new(),
            range,
            entry,
            path,
        }
    }

    fn file(&self) -> Result<&HostFile> {
        if let Some(file) = self.file.get() {
            return Ok(file);
        }
        let file = self.about(HostFile::open(&self.target, self.access))?;
        // The page cache of the disk does not see writes to the device of the partition.
        let _ = rustix::fs::fadvise(
            file.as_file(),
            self.range.start(),
            NonZeroU64::new(self.range.len()),
            Advice::DontNeed,
        );
        Ok(self.file.get_or_init(|| file))
    }

    /// The node of its device, if the kernel has one.
    pub(super) fn node(&self) -> Option<&Path> {
        (self.target != self.disk.path()).then_some(self.target.as_path())
    }

    /// Zeroes all of it, from where an earlier process stopped.
    pub(super) fn prepare(
        &self,
        pace: &Pace,
        checkpoint: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        let identity = self.entry.identity;
        let done_bytes = checkpoint.done_bytes(identity);
        let prepared = Provisioner::new(self.file()?, self.range, control)
            .at_pace(pace)
            .prepare(done_bytes, &mut |bytes| {
                checkpoint.set_done_bytes(identity, bytes);
            });
        let Prepared {
            zeroed_bytes,
            plan,
            verified,
            notes,
        } = prepared.map_err(|error| error.about(&self.path))?;
        Ok(Done {
            zeroed_bytes: Some(zeroed_bytes),
            plan: Some(plan),
            verified: Some(verified),
            notes,
        })
    }

    /// Bytes of `file`.
    fn place(&self, offset: u64, length: u64) -> Result<ByteRange> {
        ByteRange::at(offset, length)
            .filter(|range| range.end() <= self.range.len())
            .and_then(|range| ByteRange::at(self.range.start() + range.start(), length))
            .ok_or_else(|| {
                Error::new(ErrorKind::NoSpace)
                    .at(&self.path)
                    .detail("past the end of the partition")
            })
    }

    /// The part of a range that is inside, in bytes of `file`.
    fn clip(&self, range: ByteRange) -> ByteRange {
        let end = range.end().min(self.range.len());
        let start = range.start().min(end);
        ByteRange::new(self.range.start() + start, self.range.start() + end)
    }

    fn about<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| error.about(&self.path))
    }
}

impl SpaceFile for PartitionFile {
    fn size(&self) -> Result<u64> {
        Ok(self.range.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let length = self.range.len().saturating_sub(offset);
        let length = length.min(buffer.len() as u64);
        let place = self.place(offset.min(self.range.len()), length)?;
        let buffer = &mut buffer[..length as usize];
        self.about(self.file()?.read_at(buffer, place.start()))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let place = self.place(offset, buffer.len() as u64)?;
        self.about(self.file()?.write_at(buffer, place.start()))
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        let resized = ResizedEntry {
            identity: self.entry.identity,
            size_bytes,
            work: None,
        };
        self.about(self.disk.resize(&resized))
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        self.about(self.file()?.fallocate(mode, self.clip(range)))
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let wanted = self.clip(range);
        let found = self
            .file()?
            .for_each_extent(wanted, &mut |extent| match extent.clip(wanted) {
                Some(extent) => visit(Extent {
                    logical: ByteRange::new(
                        extent.logical.start() - self.range.start(),
                        extent.logical.end() - self.range.start(),
                    ),
                    ..extent
                }),
                None => ControlFlow::Continue(()),
            });
        self.about(found)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let below = LayerRange {
            range: self.clip(at.range),
            ..at
        };
        self.file()?.visit_layers(below, visit)
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.about(self.file()?.sync(mode))
    }

    fn sync_checked(&self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        self.about(self.file()?.sync_checked(check))
    }

    fn map_detail(&self) -> Result<MapDetail> {
        self.file()?.map_detail()
    }

    fn allocated_bytes(&self) -> Result<u64> {
        Ok(self.range.len())
    }

    fn check_written_stays(&self) -> Result<()> {
        self.file()?.check_written_stays()
    }
}

impl VolumeFile for PartitionFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn stat(&self) -> Result<FileStat> {
        Ok(self.disk.stat(&self.entry))
    }

    fn changed_ns(&self) -> Result<Option<u64>> {
        // A disk has no time of its last change.
        Ok(None)
    }

    fn last_writes(&self) -> Duration {
        Duration::ZERO
    }

    fn starts_zeroed(&self) -> bool {
        false
    }

    fn try_lock(&self, mode: LockMode) -> Result<bool> {
        self.locks.try_lock(self.entry.number.into(), mode)
    }

    fn unlock(&self) {
        self.locks.unlock(self.entry.number.into());
    }

    fn holders(&self) -> Option<String> {
        self.disk.user_of(&self.entry)
    }

    fn set_mode(&self, _: u32) -> Result<()> {
        // That of the disk; submission refuses others.
        Ok(())
    }

    fn attribute(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok((name == FORMAT_ATTRIBUTE).then(|| FORMAT.to_vec()))
    }

    fn set_attribute(&self, name: &str, value: &[u8]) -> Result<()> {
        if name == FORMAT_ATTRIBUTE && value == FORMAT {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unsupported)
            .at(&self.path)
            .detail("a partition is a raw volume, and has no attributes"))
    }

    fn share_space_of(&self, _: &dyn VolumeFile) -> Result<bool> {
        Ok(false)
    }

    fn make_written(&self, wanted: &MakeWritten, control: Control<'_>) -> Result<Done> {
        let range = match wanted.range {
            Some(range) => self.clip(range),
            None => self.range,
        };
        let done = Provisioner::new(self.file()?, range, control)
            .at_pace(&wanted.pace)
            .materialize(Shared::Refuse);
        self.about(done).map(Done::from)
    }

    fn write_zeroes(&self, range: ByteRange, pace: &Pace, control: Control<'_>) -> Result<()> {
        let place = self.place(range.start(), range.len())?;
        let provisioner = Provisioner::new(self.file()?, place, control).at_pace(pace);
        self.about(provisioner.overwrite())
    }

    fn overwrites_in_place(&self) -> Result<bool> {
        self.file()?.overwrites_in_place()
    }

    fn as_host(&self) -> Option<&HostFile> {
        None
    }
}

/// An entry in a list.
pub(super) struct PeekedEntry;

impl Peek for PeekedEntry {
    fn attribute(&self, name: &str) -> Option<Vec<u8>> {
        (name == FORMAT_ATTRIBUTE).then(|| FORMAT.to_vec())
    }

    fn read(&self, _: &mut [u8]) -> usize {
        // The format is known without the content.
        0
    }
}
