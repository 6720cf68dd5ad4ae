//! Volumes: the regular files of a pool whose names are names of volumes.
//!
//! Links, hidden files, and names that are not UTF-8 or have control characters are no volumes:
//! they are neither shown nor followed.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use extant_hostfs::Access;
use extant_image::{Preallocation, Qcow2Info};
use extant_space::{ByteRange, Error, ErrorKind, ExtentFlags, ExtentState, MapSummary, Result};
use serde::Serialize;

use crate::definition::PoolKind;
use crate::folder::path_of_open;
use crate::format::{Facts, Format, known, qcow2};
use crate::name::VolumeName;
use crate::pool::Pool;
use crate::storage::{LockMode, Purpose, VolumeFile};
use crate::xml::Kept;

/// How long a volume may seem locked, or open, after its last job has ended.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// The attribute with the unknown elements of a volume's libvirt description.
const KEPT_ATTRIBUTE: &str = "user.extant.libvirt";

/// A volume in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedVolume {
    /// Its name.
    pub name: VolumeName,
    /// The format of its content; `None` if none is set and the content looks like qcow2.
    pub format: Option<Format>,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// Its space on the file system in bytes.
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
    /// The format of its content; `None` if none is set and the content looks like qcow2.
    pub format: Option<Format>,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// Size of its file, bytes.
    pub file_bytes: u64,
    /// Its space on the file system in bytes.
    pub allocation_bytes: u64,
    /// Bytes of the disk whose overwrite changes no metadata, of the file system or of the image.
    pub written_bytes: u64,
    /// Extents of the file, holes left out.
    pub extents: u64,
    /// A write into the volume may fail because the file system is full.
    pub may_run_out_of_space: bool,
    /// Figures of the file's extent map.
    pub map: MapSummary,
    /// Properties of qcow2 images only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageFacts>,
    /// Permissions of the file.
    pub mode: u32,
    /// Its owner's number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
}

/// A qcow2 volume as an image. The files that it names are not opened.
#[derive(Clone, Debug, Serialize)]
pub struct ImageFacts {
    /// The mode that it is in: the least that holds for all of the disk.
    pub preallocation: Preallocation,
    /// Facts of its header.
    #[serde(flatten)]
    pub qcow2: Qcow2Info,
}

/// The location of a volume's data, for access outside the pool.
#[derive(Debug)]
pub struct VolumePlace {
    /// Its file: of the host, or in the image.
    pub path: PathBuf,
    /// The ext4 image or disk that the file is in.
    pub image: Option<PathBuf>,
    /// The format of its content.
    pub format: Format,
    /// The file that was checked, if it is a host file.
    file: Option<File>,
}

impl VolumePlace {
    /// A path of the host file that was checked, valid while this value exists. Its name may denote
    /// another file by now.
    pub fn path_of_file(&self) -> Option<PathBuf> {
        self.file.as_ref().map(path_of_open)
    }
}

impl Pool {
    /// The volumes, by name.
    pub fn volumes(&self) -> Result<Vec<ListedVolume>> {
        let mut all = Vec::new();
        let storage = self.storage(Purpose::Look)?;
        storage.for_each_volume(&mut |name, stat| {
            let facts = Facts::listed(&*storage, name, stat);
            all.push(ListedVolume {
                name: name.clone(),
                format: facts.format,
                capacity_bytes: facts.capacity_bytes,
                allocation_bytes: stat.allocated_bytes,
            });
        })?;
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }

    /// A volume and its space.
    pub fn volume(&self, name: &VolumeName) -> Result<VolumeInfo> {
        let storage = self.storage(Purpose::Look)?;
        let file: Arc<dyn VolumeFile> = Arc::from(storage.open(name, Access::Read)?);
        let stat = file.stat()?;
        let facts = Facts::of(&*file, name)?;
        let mut map = MapSummary::for_block_size(stat.block_bytes.clamp(512, 1 << 16));
        let (mut there_bytes, mut moving_bytes) = (0, 0);
        file.for_each_extent(ByteRange::new(0, stat.size_bytes), &mut |extent| {
            map.add(&extent);
            let moves = ExtentFlags::SHARED | ExtentFlags::DELAYED;
            if extent.state != ExtentState::Hole {
                if extent.flags.intersects(moves) {
                    moving_bytes += extent.logical.len()
                } else {
                    there_bytes += extent.logical.len()
                }
            }
            ControlFlow::Continue(())
        })?;
        let look = match facts.format {
            Some(Format::Qcow2) => {
                let look = qcow2::Look::at(Arc::clone(&file));
                Some(look.map_err(|error| error.at(file.path()))?)
            }
            Some(Format::Raw) | None => None,
        };
        let (written_bytes, safe_bytes) = match &look {
            None => (map.extant_bytes(), there_bytes),
            // Which bytes of the disk move with the file is not asked.
            Some(look) => (
                look.written_bytes.saturating_sub(moving_bytes),
                look.safe_bytes.saturating_sub(moving_bytes),
            ),
        };
        Ok(VolumeInfo {
            name: name.clone(),
            path: self.path_of(name),
            format: facts.format,
            capacity_bytes: facts.capacity_bytes,
            file_bytes: stat.size_bytes,
            allocation_bytes: stat.allocated_bytes,
            written_bytes,
            extents: map.extents(),
            may_run_out_of_space: safe_bytes < facts.capacity_bytes
                || !file.overwrites_in_place()?,
            map,
            image: look.map(|look| ImageFacts {
                preallocation: look.preallocation,
                qcow2: look.facts,
            }),
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
        })
    }

    /// The location of a volume's data, which the caller is about to open for changes or for
    /// reading.
    ///
    /// # Errors
    /// `InUse` while a job works on the volume, `Unsupported` if its format is unknown.
    pub fn place_of(&self, name: &VolumeName, to_change: bool) -> Result<VolumePlace> {
        let storage = self.storage(Purpose::Look)?;
        let file = storage.open(name, Access::Read)?;
        let format = known(&*file, name)?;
        // Jobs that come later see that the file is open.
        drop(if to_change {
            lock_alone(&*file)?
        } else {
            lock_for_reading(&*file)?
        });
        let definition = self.definition();
        let (image, directory) = match definition.kind() {
            PoolKind::Dir => (None, definition.path()),
            PoolKind::Ext4 => (Some(definition.path().to_owned()), definition.directory()),
        };
        let judged = file.as_host().map(|host| host.as_file().try_clone());
        Ok(VolumePlace {
            path: directory.join(name.as_str()),
            image,
            format,
            file: judged
                .transpose()
                .map_err(|source| Error::from(source).at(file.path()))?,
        })
    }

    /// Default preallocation of a volume's new part: that of the pool, but `off` in an image with a
    /// backing file, which would be hidden.
    pub fn preallocation_of(&self, name: &VolumeName) -> Result<Preallocation> {
        let storage = self.storage(Purpose::Look)?;
        let file = storage.open(name, Access::Read)?;
        let is_image = Facts::of(&*file, name)?.format == Some(Format::Qcow2);
        if is_image && qcow2::has_backing(&*file).map_err(|error| error.at(file.path()))? {
            return Ok(Preallocation::Off);
        }
        Ok(self.definition().limits().preallocation.into())
    }

    /// Removes a volume. One that another process has open is refused without `force`: its data
    /// would be lost when that process ends.
    pub fn delete(&self, name: &VolumeName, force: bool) -> Result<()> {
        let storage = self.storage(Purpose::Change)?;
        let file = storage.open(name, Access::Read)?;
        let locked = lock_alone(&*file)?;
        if !force {
            check_nobody_has_it_open(&*file)?;
        }
        storage.remove(name)?;
        drop(locked);
        drop(file);
        storage.sync()
    }
}

/// A lock on a volume, released on drop.
#[must_use]
pub(crate) struct VolumeLock<'a> {
    file: &'a dyn VolumeFile,
}

impl Drop for VolumeLock<'_> {
    /// Not left to the close: a process that syncs the file, or was just forked, may have it open
    /// for longer.
    fn drop(&mut self) {
        self.file.unlock();
    }
}

/// Keeps other jobs off the volume.
pub(crate) fn lock_alone(file: &dyn VolumeFile) -> Result<VolumeLock<'_>> {
    lock(file, LockMode::Alone)
}

/// Keeps other jobs from changing the volume.
pub(crate) fn lock_for_reading(file: &dyn VolumeFile) -> Result<VolumeLock<'_>> {
    lock(file, LockMode::Shared)
}

/// A process that was killed keeps its lock for the moment that its last writes take.
fn lock(file: &dyn VolumeFile, mode: LockMode) -> Result<VolumeLock<'_>> {
    let started = Instant::now();
    while !file.try_lock(mode)? {
        if started.elapsed() >= LAST_WRITES {
            let detail = match file.holders() {
                Some(who) => format!("another process works on the volume: {who}"),
                None => "another process works on the volume".to_owned(),
            };
            return Err(Error::new(ErrorKind::InUse).at(file.path()).detail(detail));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(VolumeLock { file })
}

/// Refuses to destroy data that is in use.
pub(crate) fn check_nobody_has_it_open(file: &dyn VolumeFile) -> Result<()> {
    let started = Instant::now();
    loop {
        let Some(who) = file.holders() else {
            return Ok(());
        };
        if started.elapsed() > LAST_WRITES {
            return Err(Error::new(ErrorKind::InUse)
                .at(file.path())
                .detail(format!("the volume is open elsewhere: {who}"))
                .advice("stop it, or use --force"));
        }
        // A process just started holds what its parent had open for a moment.
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Keeps it with the file.
pub(crate) fn keep(file: &dyn VolumeFile, kept: &Kept) -> Result<()> {
    file.set_attribute(KEPT_ATTRIBUTE, kept.as_str().as_bytes())
        .map_err(|error| error.during("keep unknown XML elements"))
}

/// The elements stored with a file. Every process that may write to the file can set them.
pub(crate) fn kept_of(file: &dyn VolumeFile) -> Result<Option<Kept>> {
    let Some(bytes) = file.attribute(KEPT_ATTRIBUTE)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    Kept::from_text(text)
        .map(Some)
        .map_err(|error| error.at(file.path()))
}

fn serialize_path<S: serde::Serializer>(
    path: &std::path::Path,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}
