//! A range of a block device as the file of a volume.
//!
//! Requests go to the device of the volume if the kernel has one, else to the disk at the offset of
//! the volume. Each open file has a descriptor of its own, because direct I/O is a property of the
//! descriptor.

use std::fs::{self, OpenOptions};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_blockdev::{HostAccess, HostDevice, HostOptions, LoopAccess, LoopDevice, LoopOptions};
use extant_hostfs::{Access, HostFile, describe_holders};
use extant_image::hold::mounted_at;
use extant_provision::{Pace, Prepared, Provisioner, Shared};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, Extent, FallocateMode, LayerRange, LayerVisitor,
    MapDetail, Result, SpaceFile, SyncMode,
};
use rustix::fs::{Advice, OFlags};
use rustix::io::Errno;

use super::volume_locks::VolumeLocks;
use super::{Checkpoint, Done, FileStat, MakeWritten, VolumeDevice, VolumeFile};
use crate::fair_lock::LockMode;

/// Where the bytes of a volume are.
#[derive(Debug)]
pub(super) struct BlockPlace {
    /// The device of the volume, or the disk.
    pub(super) target: PathBuf,
    /// The bytes of `target`.
    pub(super) range: ByteRange,
    /// `target` is the device of the volume.
    pub(super) is_own: bool,
}

/// A volume of a disk or of a volume group.
pub(super) trait BlockVolume: Send + Sync {
    /// Where its bytes are. Its device is made if there is none.
    fn place(&self) -> Result<BlockPlace>;

    fn size_bytes(&self) -> u64;

    /// A number that no other volume has had.
    fn identity(&self) -> u64;

    /// The byte of the file of locks.
    fn lock_number(&self) -> u64;

    /// Its users besides this process, as text.
    fn users(&self) -> Option<String>;

    fn stat(&self) -> FileStat;

    /// Moves its end. The space of a larger one must be prepared.
    fn resize(&self, size_bytes: u64) -> Result<()>;
}

/// An open volume.
pub(super) struct BlockFile {
    volume: Box<dyn BlockVolume>,
    locks: Arc<VolumeLocks>,
    access: Access,
    /// Opened by the first request: the kernel removes no device that is open.
    opened: OnceLock<Opened>,
    /// For messages.
    path: PathBuf,
}

struct Opened {
    file: HostFile,
    place: BlockPlace,
}

impl BlockFile {
    pub(super) fn new(
        volume: Box<dyn BlockVolume>,
        locks: &Arc<VolumeLocks>,
        path: PathBuf,
        access: Access,
    ) -> Self {
        Self {
            volume,
            locks: Arc::clone(locks),
            access,
            opened: OnceLock::new(),
            path,
        }
    }

    fn opened(&self) -> Result<&Opened> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let place = self.about(self.volume.place())?;
        let file = self.about(HostFile::open(&place.target, self.access))?;
        // The page cache of the disk does not see writes to the device of the volume.
        let _ = rustix::fs::fadvise(
            file.as_file(),
            place.range.start(),
            NonZeroU64::new(place.range.len()),
            Advice::DontNeed,
        );
        Ok(self.opened.get_or_init(|| Opened { file, place }))
    }

    fn file(&self) -> Result<&HostFile> {
        self.opened().map(|opened| &opened.file)
    }

    /// Its device, locked until it is dropped.
    ///
    /// # Errors
    /// `InUse` with the user.
    pub(super) fn into_device(self) -> Result<VolumeDevice> {
        let mode = match self.access {
            Access::Read => LockMode::Shared,
            _ => LockMode::Exclusive,
        };
        let in_use = |detail: String| Error::new(ErrorKind::InUse).at(&self.path).detail(detail);
        if !self.try_lock(mode)? {
            return Err(in_use("another process works on the volume".to_owned()));
        }
        if let Some(who) = self.holders().filter(|_| mode == LockMode::Exclusive) {
            return Err(in_use(format!("the volume is open elsewhere: {who}")));
        }
        let place = self.about(self.volume.place())?;
        if place.is_own {
            let options = HostOptions {
                access: match self.access {
                    Access::Read => HostAccess::ReadOnly,
                    _ => HostAccess::ReadWrite,
                },
                ..HostOptions::default()
            };
            return Ok(VolumeDevice {
                device: Arc::new(HostDevice::open(&place.target, &options)?),
                _lock: Some(Box::new(self)),
            });
        }
        let options = LoopOptions {
            access: match self.access {
                Access::Read => LoopAccess::ReadOnly,
                _ => LoopAccess::ReadWrite,
            },
            ..LoopOptions::default()
        };
        Ok(VolumeDevice {
            device: Arc::new(LoopDevice::new(Arc::new(self), options)?),
            _lock: None,
        })
    }

    /// Zeroes all from `start` on, from where an earlier process stopped.
    pub(super) fn prepare(
        &self,
        start: u64,
        pace: &Pace,
        checkpoint: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        let identity = self.volume.identity();
        let done_bytes = checkpoint.done_bytes(identity);
        let range = self.place(start, self.volume.size_bytes() - start)?;
        let prepared = Provisioner::new(self.file()?, range, control)
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

    /// Bytes of the file.
    fn place(&self, offset: u64, length: u64) -> Result<ByteRange> {
        let start = self.opened()?.place.range.start();
        ByteRange::at(offset, length)
            .filter(|range| range.end() <= self.volume.size_bytes())
            .and_then(|range| ByteRange::at(start + range.start(), length))
            .ok_or_else(|| {
                Error::new(ErrorKind::NoSpace)
                    .at(&self.path)
                    .detail("past the end of the volume")
            })
    }

    /// The part of a range that is inside, in bytes of the file.
    fn clip(&self, range: ByteRange) -> Result<ByteRange> {
        let end = range.end().min(self.volume.size_bytes());
        let start = range.start().min(end);
        self.place(start, end - start)
    }

    fn about<T>(&self, done: Result<T>) -> Result<T> {
        done.map_err(|error| error.about(&self.path))
    }
}

impl SpaceFile for BlockFile {
    fn size(&self) -> Result<u64> {
        Ok(self.volume.size_bytes())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let size = self.volume.size_bytes();
        let length = size.saturating_sub(offset).min(buffer.len() as u64);
        let place = self.place(offset.min(size), length)?;
        let buffer = &mut buffer[..length as usize];
        self.about(self.file()?.read_at(buffer, place.start()))
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let place = self.place(offset, buffer.len() as u64)?;
        self.about(self.file()?.write_at(buffer, place.start()))
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.about(self.volume.resize(size_bytes))
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        self.about(self.file()?.fallocate(mode, self.clip(range)?))
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let wanted = self.clip(range)?;
        let start = self.opened()?.place.range.start();
        let found = self
            .file()?
            .for_each_extent(wanted, &mut |extent| match extent.clip(wanted) {
                Some(extent) => visit(Extent {
                    logical: ByteRange::new(
                        extent.logical.start() - start,
                        extent.logical.end() - start,
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
            range: self.clip(at.range)?,
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
        Ok(self.volume.size_bytes())
    }

    fn check_written_stays(&self) -> Result<()> {
        self.file()?.check_written_stays()
    }
}

impl VolumeFile for BlockFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn stat(&self) -> Result<FileStat> {
        Ok(self.volume.stat())
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
        self.locks.try_lock(self.volume.lock_number(), mode)
    }

    fn unlock(&self) {
        self.locks.unlock(self.volume.lock_number());
    }

    fn holders(&self) -> Option<String> {
        self.volume.users()
    }

    fn share_space_of(&self, _: &dyn VolumeFile) -> Result<bool> {
        Ok(false)
    }

    fn make_written(&self, wanted: &MakeWritten, control: Control<'_>) -> Result<Done> {
        let range = match wanted.range {
            Some(range) => self.clip(range)?,
            None => self.place(0, self.volume.size_bytes())?,
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

/// The user of a block device: a mount, a process, or a driver that has claimed it.
pub(super) fn user_of_node(node: &Path) -> Option<String> {
    if let Some(place) = mounted_at(node) {
        return Some(format!("mounted at {place}"));
    }
    if let Some(who) = describe_holders(node) {
        return Some(who);
    }
    if let Some(device) = device_on(node) {
        return Some(format!("the device {device} is on {}", node.display()));
    }
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(OFlags::EXCL.bits().cast_signed());
    match options.open(node) {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => Some(format!(
            "{} is claimed (a mount, swap, RAID or device-mapper device)",
            node.display()
        )),
        _ => None,
    }
}

/// A device that is stacked on `node`, by name.
fn device_on(node: &Path) -> Option<String> {
    let number = fs::metadata(node).ok()?.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let holders = fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders")).ok()?;
    let holder = holders.flatten().next()?;
    let name = fs::read_to_string(holder.path().join("dm/name"));
    Some(match name {
        Ok(name) => format!("{} ({})", holder.file_name().display(), name.trim()),
        Err(_) => holder.file_name().display().to_string(),
    })
}
