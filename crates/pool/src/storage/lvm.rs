//! A volume group of LVM: volumes are logical volumes with all of their space.
//!
//! Model: the name and the tags of a logical volume are the only truth about it
//! (`lvm/report.rs`). An unfinished volume has a [hidden name](super::hidden) of this definition;
//! its space is zeroed, and one rename publishes it. Whatever earlier volumes left in the group is
//! never readable under the new name.
//!
//! A volume that grows has a hidden name as well until its new part is zeroed. Meanwhile it is
//! listed under its own name with its earlier size, which it gets back if the job is undone. A
//! replaced volume gets a hidden name before the new one gets its name.
//!
//! The state directory holds the UUID of the group, so that another group of the same name is
//! detected. Locks of volumes are bytes of its file `locks`, by a hash of the volume's UUID.

mod group;
mod names;
mod report;
mod volume;

use std::path::PathBuf;
use std::sync::Arc;

use extant_hostfs::{Access, Directory, Existing, Pace};
use extant_space::{Control, Error, ErrorKind, Remedy, Result, SpaceFile};

use super::block_file::BlockFile;
use super::hidden::{HiddenName, hidden, is_replaced, replaced_by};
use super::volume_locks::VolumeLocks;
use super::{
    Caller, Checkpoint, Done, Feature, FileStat, NewFile, Peek, PeekedRaw, Purpose, ResizeWork,
    Storage, Store, VolumeDevice, VolumeFile, WorkFile, write_place,
};
use crate::name::VolumeName;
use group::{Group, path_of_group};
use report::{INCOMPLETE, LogicalVolume, Report, growing_tag, replaced_tag};
use volume::{ThickVolume, growth_identity, stat};

/// The file of the state directory with the UUID of the volume group.
const GROUP: &str = "group";
/// More than any UUID has.
const UUID_BYTES_MAX: u64 = 64;

/// The volume group of a pool.
#[derive(Debug)]
pub(crate) struct LvmStore {
    group: String,
    identifier: String,
}

impl LvmStore {
    pub(crate) fn new(group: &str, identifier: &str) -> Self {
        Self {
            group: group.to_owned(),
            identifier: identifier.to_owned(),
        }
    }
}

impl Store for LvmStore {
    fn open(
        &self,
        purpose: Purpose,
        own: Option<&Directory>,
        _: Caller<'_>,
    ) -> Result<Box<dyn Storage + '_>> {
        let uuid = match own {
            None => None,
            Some(own) => own.read(GROUP, UUID_BYTES_MAX)?,
        };
        let uuid = uuid.map(|uuid| String::from_utf8_lossy(&uuid).trim().to_owned());
        Ok(Box::new(LvmStorage {
            identifier: &self.identifier,
            group: Arc::new(Group::open(&self.group, uuid, own)?),
            locks: Arc::new(VolumeLocks::new(own, purpose)?),
        }))
    }

    fn build(&self, own: &Directory, has_jobs: bool) -> Result<()> {
        names::check_group(&self.group)?;
        let report = Group::open(&self.group, None, Some(own))?.fresh()?;
        if let Some(fault) = report.fault {
            return Err(Error::new(ErrorKind::Unsupported)
                .at(path_of_group(&self.group))
                .detail(fault));
        }
        write_place(own, GROUP, report.uuid.as_bytes(), has_jobs)
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        path_of_group(&self.group).join(name.as_str())
    }
}

/// The volume group, for one operation.
struct LvmStorage<'s> {
    /// Of the definition.
    identifier: &'s str,
    group: Arc<Group>,
    locks: Arc<VolumeLocks>,
}

/// The role of a logical volume in the pool.
enum Meaning<'r> {
    /// A volume with its name and size.
    Volume(&'r str, u64),
    /// An unfinished file.
    Work,
    /// Of another pool, or of other programs.
    Foreign,
}

impl LvmStorage<'_> {
    fn meaning<'r>(&self, volume: &'r LogicalVolume) -> Meaning<'r> {
        if !volume.is_own() {
            return Meaning::Foreign;
        }
        match HiddenName::parse(&volume.name) {
            None => Meaning::Volume(&volume.name, volume.size_bytes),
            Some(hidden) if hidden.identifier != self.identifier => Meaning::Foreign,
            Some(_) => match volume.growing() {
                Some((name, bytes)) => Meaning::Volume(name, bytes.min(volume.size_bytes)),
                None => Meaning::Work,
            },
        }
    }

    /// The volume called `name`, and its size.
    fn volume_in(&self, report: &Report, name: &str) -> Option<(LogicalVolume, u64)> {
        report
            .volumes
            .iter()
            .find_map(|volume| match self.meaning(volume) {
                Meaning::Volume(own, bytes) if own == name => Some((volume.clone(), bytes)),
                _ => None,
            })
    }

    fn volume(&self, report: &Report, name: &str) -> Result<(LogicalVolume, u64)> {
        self.volume_in(report, name).ok_or_else(|| {
            let error = Error::new(ErrorKind::NotFound).at(self.group.path(name));
            match report.named(name) {
                Some(_) => error.detail("the logical volume was not made by a pool"),
                None => error,
            }
        })
    }

    fn hidden(&self, inner: &str) -> String {
        hidden(self.identifier, inner)
    }

    fn file(&self, logical: LogicalVolume, size_bytes: u64, access: Access) -> BlockFile {
        self.file_prepared_from(logical, size_bytes, 0, access)
    }

    fn file_prepared_from(
        &self,
        logical: LogicalVolume,
        size_bytes: u64,
        prepared_from: u64,
        access: Access,
    ) -> BlockFile {
        let path = self.group.path(&logical.name);
        let volume = ThickVolume {
            group: Arc::clone(&self.group),
            logical,
            size_bytes,
            prepared_from,
        };
        BlockFile::new(Box::new(volume), &self.locks, path, access)
    }

    fn open_volume(&self, name: &VolumeName, access: Access) -> Result<BlockFile> {
        let (logical, size_bytes) = self.volume(&*self.group.report()?, name.as_str())?;
        Ok(self.file(logical, size_bytes, access))
    }

    /// The unfinished volume `inner`, which an earlier process may have made.
    fn make_work(&self, inner: &str, bytes: u64) -> Result<BlockFile> {
        let name = self.hidden(inner);
        let report = self.group.fresh()?;
        let logical = match report.named(&name) {
            Some(logical) => logical.clone(),
            None => {
                let bytes = bytes.next_multiple_of(report.extent_bytes);
                self.group.create(&name, bytes)?
            }
        };
        let size_bytes = logical.size_bytes;
        Ok(self.file(logical, size_bytes, Access::ReadWrite))
    }

    /// Removes the volume that `inner` names as replaced, or gives its name back.
    fn settle(&self, inner: &str) -> Result<()> {
        let report = self.group.fresh()?;
        let Some(old) = report.named(&self.hidden(inner)) else {
            return Ok(());
        };
        let Some(name) = old.replaced() else {
            return Ok(());
        };
        let tag = replaced_tag(name);
        match report.named(name) {
            None => {
                self.group.rename(&old.name, name)?;
                self.group.remove_tag(&self.group.find(name)?, &tag)
            }
            Some(new) if new.has_tag(&tag) => {
                self.group.remove(old)?;
                self.group.remove_tag(new, &tag)
            }
            Some(_) => Err(Error::new(ErrorKind::AlreadyExists)
                .at(self.group.path(&old.name))
                .detail(format!(
                    "the name {name} was given to another volume meanwhile"
                ))
                .advice("lvrename gives this one another")),
        }
    }

    /// Gives a volume that grows its earlier size and its name back.
    fn undo_growth(&self, logical: &LogicalVolume, name: &str, bytes: u64) -> Result<()> {
        if logical.size_bytes > bytes {
            self.group.reduce(logical, bytes)?;
        }
        self.group.rename(&logical.name, name)?;
        self.end_growth(name)
    }

    fn end_growth(&self, name: &str) -> Result<()> {
        let logical = self.group.find(name)?;
        match logical.growing() {
            Some((own, bytes)) => self.group.remove_tag(&logical, &growing_tag(own, bytes)),
            None => Ok(()),
        }
    }

    /// Makes a volume larger, under the hidden name of `resize`.
    fn grow(
        &self,
        logical: LogicalVolume,
        before_bytes: u64,
        resize: &ResizeWork<'_>,
        control: Control<'_>,
    ) -> Result<()> {
        let (name, work) = (resize.volume.as_str(), self.hidden(resize.work));
        let mut logical = logical;
        if logical.name == name {
            let file = self.file(logical.clone(), before_bytes, Access::Read);
            if let Some(who) = file.holders() {
                return Err(Error::new(ErrorKind::InUse)
                    .at(self.group.path(name))
                    .detail(format!("the volume is open elsewhere: {who}"))
                    .advice(
                        "a logical volume grows only while no process uses it: stop its user",
                    ));
            }
            logical.check_no_snapshots()?;
            if let Some((own, bytes)) = logical.growing() {
                // Of a job that ended.
                self.group.remove_tag(&logical, &growing_tag(own, bytes))?;
            }
            let tag = growing_tag(name, before_bytes);
            self.group.add_tag(&[&logical], &tag)?;
            self.group.rename(name, &work)?;
            logical = self.group.find(&work)?;
        } else if logical.name != work {
            return Err(Error::new(ErrorKind::InUse)
                .at(self.group.path(name))
                .detail("another job has begun to make the volume larger")
                .remedy(Remedy::RefreshPool));
        }
        let size_bytes = resize
            .size_bytes
            .next_multiple_of(self.group.report()?.extent_bytes);
        if logical.size_bytes < size_bytes {
            // Its extents may be others than those of an earlier attempt.
            let identity = growth_identity(&logical, before_bytes);
            resize.checkpoint.set_done_bytes(identity, 0);
            self.group.extend(&logical, size_bytes)?;
            logical = self.group.find(&work)?;
        }
        let size_bytes = logical.size_bytes;
        let file = self.file_prepared_from(logical, size_bytes, before_bytes, Access::ReadWrite);
        file.prepare(before_bytes, resize.pace, resize.checkpoint, control)?;
        drop(file);
        control.cancel.check()?;
        self.group.rename(&work, name)?;
        self.end_growth(name)
    }
}

impl Storage for LvmStorage<'_> {
    fn lacks(&self, feature: Feature) -> Option<&'static str> {
        Some(match feature {
            Feature::Sparse => {
                "a logical volume has all of its space: preallocation off and a smaller allocation are not for pools of kind lvm"
            }
            Feature::Unwritten => {
                "a logical volume has no unwritten space: preallocation falloc is not for pools of kind lvm"
            }
            Feature::Qcow2 => {
                "a pool of kind lvm has raw volumes only: an image on a logical volume could grow past its end"
            }
            Feature::SharedSpace => "logical volumes cannot share space",
            Feature::Permissions => "udev sets the permissions of logical volumes",
            Feature::Attributes => "a logical volume keeps no unknown elements of libvirt's XML",
        })
    }

    fn unit_bytes(&self) -> u64 {
        // Without a report every other call fails.
        self.group.report().map_or(1, |report| report.extent_bytes)
    }

    fn check_name(&self, name: &VolumeName) -> Result<()> {
        names::check_name(self.group.name(), name.as_str())
    }

    fn resizes_at_once(&self) -> bool {
        true
    }

    fn resize_volume(&self, resize: &ResizeWork<'_>, control: Control<'_>) -> Result<bool> {
        let name = resize.volume.as_str();
        let report = self.group.fresh()?;
        let (logical, before_bytes) = self.volume(&report, name)?;
        let size_bytes = resize.size_bytes.next_multiple_of(report.extent_bytes);
        if size_bytes > before_bytes {
            return self
                .grow(logical, before_bytes, resize, control)
                .map(|()| true);
        }
        self.file(logical, before_bytes, Access::ReadWrite)
            .resize(size_bytes)?;
        self.end_growth(name).map(|()| true)
    }

    fn device_of(&self, name: &VolumeName, access: Access) -> Result<Option<VolumeDevice>> {
        self.open_volume(name, access)?.into_device().map(Some)
    }

    fn for_each_volume(&self, visit: &mut dyn FnMut(&VolumeName, &FileStat)) -> Result<u64> {
        let mut others = 0;
        for logical in &self.group.report()?.volumes {
            match self.meaning(logical) {
                Meaning::Volume(name, bytes) => match name.parse::<VolumeName>() {
                    Ok(name) => visit(&name, &stat(logical, bytes)),
                    Err(_) => others += 1,
                },
                Meaning::Work => {}
                Meaning::Foreign => others += 1,
            }
        }
        Ok(others)
    }

    fn has_name(&self, name: &VolumeName) -> Result<bool> {
        let report = self.group.report()?;
        let name = name.as_str();
        Ok(report.named(name).is_some() || self.volume_in(&report, name).is_some())
    }

    fn open(&self, name: &VolumeName, access: Access) -> Result<Box<dyn VolumeFile>> {
        Ok(Box::new(self.open_volume(name, access)?))
    }

    fn peek(&self, _: &VolumeName) -> Option<Box<dyn Peek>> {
        Some(Box::new(PeekedRaw))
    }

    fn remove(&self, name: &VolumeName) -> Result<()> {
        let (logical, _) = self.volume(&*self.group.fresh()?, name.as_str())?;
        let removed = self.group.remove(&logical);
        removed.map_err(|error| error.about(self.path_of(name)))
    }

    fn sync(&self) -> Result<()> {
        // Every command of the tools is durable.
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.group.report()?.free_bytes)
    }

    fn total_bytes(&self) -> Result<u64> {
        Ok(self.group.report()?.size_bytes)
    }

    fn work_path(&self) -> PathBuf {
        // Names of unfinished volumes are in no directory of their own.
        self.group.path(&self.hidden(""))
    }

    fn work_files(&self) -> Result<Vec<WorkFile>> {
        let report = self.group.fresh()?;
        let files = report.volumes.iter().filter_map(|logical| {
            let hidden = HiddenName::parse(&logical.name)?;
            let is_own = logical.is_own() && hidden.identifier == self.identifier;
            let before_bytes = logical.growing().map_or(0, |(_, bytes)| bytes);
            is_own.then(|| WorkFile {
                name: hidden.inner.to_owned(),
                allocated_bytes: logical.size_bytes.saturating_sub(before_bytes),
            })
        });
        Ok(files.collect())
    }

    fn open_work(&self, name: &str) -> Result<Option<Box<dyn VolumeFile>>> {
        match self.group.fresh()?.named(&self.hidden(name)) {
            Some(logical) => {
                let size_bytes = logical.size_bytes;
                let file = self.file(logical.clone(), size_bytes, Access::ReadWrite);
                Ok(Some(Box::new(file)))
            }
            None => Ok(None),
        }
    }

    fn new_work(&self, name: &str, size_bytes: u64) -> Result<Box<dyn VolumeFile>> {
        Ok(Box::new(self.make_work(name, size_bytes)?))
    }

    fn create_work(
        &self,
        name: &str,
        new: &NewFile,
        pace: Pace,
        checkpoint: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        let file = self.make_work(name, new.image.file_bytes())?;
        file.prepare(0, &pace, checkpoint, control)
    }

    fn remove_work(&self, name: &str) -> Result<()> {
        if is_replaced(name) {
            return self.settle(name);
        }
        self.settle(&replaced_by(name))?;
        let report = self.group.report()?;
        let Some(logical) = report.named(&self.hidden(name)) else {
            return Ok(());
        };
        let removed = match logical.growing() {
            Some((name, bytes)) => self.undo_growth(logical, name, bytes),
            None => self.group.remove(logical),
        };
        removed.map_err(|error| error.about(self.group.path(&logical.name)))
    }

    fn publish(&self, work: &str, volume: &VolumeName, existing: Existing) -> Result<()> {
        let (name, inner) = (volume.as_str(), replaced_by(work));
        // Of an earlier process of the job.
        self.settle(&inner)?;
        let report = self.group.report()?;
        let new = self.group.find(&self.hidden(work))?;
        if new.has_tag(INCOMPLETE) {
            self.group.set_complete(&new)?;
        }
        if existing == Existing::Replace
            && let Some((old, _)) = self.volume_in(&report, name)
        {
            old.check_no_snapshots()
                .map_err(|error| error.at(self.group.path(name)))?;
            self.group.add_tag(&[&old, &new], &replaced_tag(name))?;
            self.group.rename(name, &self.hidden(&inner))?;
        }
        if let Err(error) = self.group.rename(&new.name, name) {
            // Otherwise a rollback does it.
            let _ = self.settle(&inner);
            return Err(error.about(self.group.path(name)));
        }
        // The next refresh removes what is left.
        let _ = self.settle(&inner);
        Ok(())
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.group.path(name.as_str())
    }

    fn can_share(&self, _: &dyn VolumeFile) -> Result<bool> {
        Ok(false)
    }
}
