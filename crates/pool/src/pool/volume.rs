//! Volumes: the regular files of a pool whose names are names of volumes.
//!
//! Links, hidden files, and names that are not UTF-8 or have control characters are no volumes:
//! they are neither shown nor followed.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use extant_blockdev::Device;
use extant_hostfs::{Access, path_of_open};
use extant_image::{Preallocation, Qcow2Info};
use extant_space::{ByteRange, Error, ExtentFlags, ExtentState, MapSummary, Result, SyncMode};
use serde::Serialize;

use super::Pool;
use crate::definition::PoolKind;
use crate::foreign::{ForeignElements, foreign_of};
use crate::format::{Facts, Format, Trust, check_content, known, qcow2, store_format};
use crate::name::VolumeName;
use crate::storage::{Purpose, VolumeDevice, VolumeFile};
use crate::volume_lock::{check_not_open, lock_alone, lock_for_reading};

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
pub struct VolumePlace {
    /// Its file: of the host, or in the image.
    pub path: PathBuf,
    /// The ext4 image or disk that the file is in.
    pub image: Option<PathBuf>,
    /// The format of its content.
    pub format: Format,
    /// The file that was checked, if it is a host file.
    file: Option<File>,
    /// The device of a volume that has no path.
    device: Option<VolumeDevice>,
}

impl VolumePlace {
    /// A path of the host file that was checked, valid while this value exists. Its name may denote
    /// another file by now.
    pub fn path_of_file(&self) -> Option<PathBuf> {
        self.file.as_ref().map(path_of_open)
    }

    /// The device of a volume that is no file of the host, nor a file in an image. The volume is
    /// locked while this value exists.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref().map(|found| &found.device)
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
            // The bytes of the disk that move with the file are not determined.
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
        // Later jobs see that the file is open.
        drop(if to_change {
            lock_alone(&*file)?
        } else {
            lock_for_reading(&*file)?
        });
        let access = if to_change {
            Access::ReadWrite
        } else {
            Access::Read
        };
        let definition = self.definition();
        let (image, path) = match definition.kind() {
            PoolKind::Ext4 => (
                Some(definition.path().to_owned()),
                definition.directory().join(name.as_str()),
            ),
            _ => (None, self.path_of(name)),
        };
        let judged = file.as_host().map(|host| host.as_file().try_clone());
        Ok(VolumePlace {
            path,
            image,
            format,
            device: storage.device_of(name, access)?,
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

    /// Sets the format of a volume, for a file that was not made here.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for qcow2 that names a backing file, unless `allow_backing` is
    /// given, or a data file; `Corrupt` for a file that is no image.
    pub fn set_format(&self, name: &VolumeName, format: Format, allow_backing: bool) -> Result<()> {
        let storage = self.storage(Purpose::Change)?;
        let file = storage.open(name, Access::ReadWrite)?;
        let _locked = lock_alone(&*file)?;
        let trust = Trust {
            backing: allow_backing,
        };
        check_content(&*file, format, trust)
            .and_then(|()| store_format(&*file, name, format))
            .map_err(|error| error.at(file.path()))?;
        file.sync(SyncMode::All)
    }

    /// Elements of the description that a volume was made from.
    ///
    /// # Errors
    /// `NotFound`; those of reading attributes.
    pub fn foreign_elements(&self, name: &VolumeName) -> Result<Option<ForeignElements>> {
        let storage = self.storage(Purpose::Look)?;
        foreign_of(&*storage.open(name, Access::Read)?)
    }

    /// Removes a volume. One that another process has open is refused without `force`: its data
    /// would be lost when that process ends.
    pub fn delete(&self, name: &VolumeName, force: bool) -> Result<()> {
        let storage = self.storage(Purpose::Change)?;
        let file = storage.open(name, Access::Read)?;
        let locked = lock_alone(&*file)?;
        if !force {
            check_not_open(&*file)?;
        }
        storage.remove(name)?;
        drop(locked);
        drop(file);
        storage.sync()
    }
}

fn serialize_path<S: serde::Serializer>(
    path: &std::path::Path,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&path.display())
}
