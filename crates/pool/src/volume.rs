//! Volumes: the regular files of a pool whose names are names of volumes.
//!
//! Links, hidden files, and names that are not UTF-8 or have control characters are no volumes: they are
//! neither shown nor followed.

use std::ffi::CStr;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use extant_hostfs::{HostFile, remove_soon};
use extant_space::{
    ByteRange, Error, ErrorKind, ExtentFlags, ExtentState, MapSummary, Result, SpaceFile,
};
use rustix::fs::{FileType, FlockOperation, OFlags, Stat, XattrFlags, flock};
use rustix::io::Errno;
use serde::Serialize;

use crate::folder::Folder;
use crate::format::Format;
use crate::name::VolumeName;
use crate::pool::Pool;
use crate::xml::Kept;

/// How long a volume may seem locked, or open, after its last job has ended.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Where a volume has what libvirt's description of it said beside what is known.
const KEPT_ATTRIBUTE: &str = "user.extant.libvirt";

/// A volume in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVolume {
    /// Its name.
    pub name: VolumeName,
    /// How its content lies in the file.
    pub format: Format,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// What it takes on the file system, bytes.
    pub allocation_bytes: u64,
}

/// A volume and its space.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeInfo {
    /// Its name.
    pub name: VolumeName,
    /// Its file.
    #[serde(serialize_with = "serialize_path")]
    pub path: PathBuf,
    /// How its content lies in the file.
    pub format: Format,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// What it takes on the file system, bytes.
    pub allocation_bytes: u64,
    /// Bytes whose overwrite changes no metadata of the file system.
    pub written_bytes: u64,
    /// Extents of the file, holes left out.
    pub extents: u64,
    /// A write into the volume may fail because the file system is full.
    pub may_run_out_of_space: bool,
    /// Figures of the extent map.
    pub map: MapSummary,
    /// Permissions of the file.
    pub mode: u32,
    /// Its owner's number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
}

impl Pool {
    /// The volumes, by name.
    pub fn volumes(&self) -> Result<Vec<ListedVolume>> {
        let mut all = Vec::new();
        for_each_file(self.folder(), |name, stat| {
            let capacity_bytes = stat.st_size as u64;
            all.push(ListedVolume {
                name: name.clone(),
                format: Format::of_listed(self.folder(), name, capacity_bytes),
                capacity_bytes,
                allocation_bytes: stat.st_blocks as u64 * 512,
            });
        })?;
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// A volume and its space.
    pub fn volume(&self, name: &VolumeName) -> Result<VolumeInfo> {
        let file = self.open_volume(name, OFlags::RDONLY)?;
        let stat = rustix::fs::fstat(file.as_file()).map_err(|errno| file_error(&file, errno))?;
        let capacity_bytes = stat.st_size as u64;
        let mut map = MapSummary::for_block_size(stat.st_blksize.clamp(512, 1 << 16) as u64);
        let mut safe_bytes = 0;
        file.for_each_extent(ByteRange::new(0, capacity_bytes), &mut |extent| {
            map.add(&extent);
            let moves = ExtentFlags::SHARED | ExtentFlags::DELAYED;
            if extent.state != ExtentState::Hole && !extent.flags.intersects(moves) {
                safe_bytes += extent.logical.len();
            }
            ControlFlow::Continue(())
        })?;
        Ok(VolumeInfo {
            name: name.clone(),
            path: self.folder().path().join(name.as_str()),
            format: Format::of(file.as_file()),
            capacity_bytes,
            allocation_bytes: stat.st_blocks as u64 * 512,
            written_bytes: map.extant_bytes(),
            extents: map.extents(),
            may_run_out_of_space: safe_bytes < capacity_bytes || !file.overwrites_in_place()?,
            map,
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
        })
    }

    /// Removes a volume. One that another process has open is refused, unless `force` is given: its data would be
    /// lost when that process ends.
    pub fn delete(&self, name: &VolumeName, force: bool) -> Result<()> {
        let file = self.open_volume(name, OFlags::RDONLY)?;
        let _locked = lock_alone(&file)?;
        if !force {
            check_nobody_has_it_open(&file)?;
        }
        remove_soon(self.folder(), name.as_str().as_ref())
            .map_err(|error| error.about(self.folder().path().join(name.as_str())))?;
        self.folder().sync()
    }

    /// Opens the file of a volume.
    pub(crate) fn open_volume(&self, name: &VolumeName, access: OFlags) -> Result<HostFile> {
        let file = self.folder().file(name.as_str(), access)?;
        HostFile::from_file(file, &self.folder().path().join(name.as_str()))
    }
}

/// Visits the files of volumes, in no order.
pub(crate) fn for_each_file(
    folder: &Folder,
    mut visit: impl FnMut(&VolumeName, &Stat),
) -> Result<()> {
    folder.for_each_name(|listed: &CStr| {
        let Some(name) = listed.to_str().ok().and_then(|name| name.parse().ok()) else {
            return;
        };
        let Some(stat) = folder.stat_listed(listed) else {
            return;
        };
        if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
            visit(&name, &stat);
        }
    })
}

/// A lock on a volume, given back when dropped.
#[must_use]
pub(crate) struct VolumeLock<'a> {
    file: &'a HostFile,
}

impl Drop for VolumeLock<'_> {
    /// Not left to the close: a process that syncs the file, or was just forked, may have it open for longer.
    fn drop(&mut self) {
        let _ = flock(self.file.as_file(), FlockOperation::Unlock);
    }
}

/// Keeps other jobs off the volume.
pub(crate) fn lock_alone(file: &HostFile) -> Result<VolumeLock<'_>> {
    lock(file, FlockOperation::NonBlockingLockExclusive)
}

/// Keeps other jobs from changing the volume.
pub(crate) fn lock_for_reading(file: &HostFile) -> Result<VolumeLock<'_>> {
    lock(file, FlockOperation::NonBlockingLockShared)
}

/// A process that was killed keeps its lock for the moment that its last writes take.
fn lock(file: &HostFile, operation: FlockOperation) -> Result<VolumeLock<'_>> {
    let started = Instant::now();
    loop {
        match flock(file.as_file(), operation) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                return Ok(VolumeLock { file });
            }
            Err(Errno::WOULDBLOCK) if started.elapsed() < LAST_WRITES => {
                std::thread::sleep(Duration::from_millis(10));
            }
            Err(Errno::WOULDBLOCK) => {
                return Err(Error::new(ErrorKind::InUse)
                    .at(file.path())
                    .detail("another process works on the volume"));
            }
            Err(errno) => return Err(file_error(file, errno).during("lock")),
        }
    }
}

/// Refuses what destroys data that somebody is using.
pub(crate) fn check_nobody_has_it_open(file: &HostFile) -> Result<()> {
    let started = Instant::now();
    loop {
        let holders = extant_hostfs::holders(file.path());
        let Some(holder) = holders.first() else {
            return Ok(());
        };
        if started.elapsed() > LAST_WRITES {
            return Err(Error::new(ErrorKind::InUse)
                .at(file.path())
                .detail(format!(
                    "the volume is open elsewhere: {} (pid {})",
                    holder.command, holder.pid
                ))
                .advice("stop it, or use --force"));
        }
        // A process just started holds what its parent had open for a moment.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Keeps it with the file.
pub(crate) fn keep(file: &HostFile, kept: &Kept) -> Result<()> {
    let bytes = kept.as_str().as_bytes();
    rustix::fs::fsetxattr(file.as_file(), KEPT_ATTRIBUTE, bytes, XattrFlags::empty())
        .map_err(|errno| file_error(file, errno).during("keep unknown XML elements"))
}

/// What is kept with a file. Anybody who may write to the file can have written it.
pub(crate) fn kept_of(file: &HostFile) -> Result<Option<Kept>> {
    let mut bytes = vec![0; 4 << 10];
    match rustix::fs::fgetxattr(file.as_file(), KEPT_ATTRIBUTE, &mut bytes[..]) {
        Ok(length) => {
            let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default();
            Kept::from_text(text)
                .map(Some)
                .map_err(|error| error.at(file.path()))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
        Err(errno) => Err(file_error(file, errno).during("read extended attribute")),
    }
}

pub(crate) fn file_error(file: &HostFile, errno: Errno) -> Error {
    Error::from(std::io::Error::from(errno)).at(file.path())
}

fn serialize_path<S: serde::Serializer>(
    path: &std::path::Path,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}
