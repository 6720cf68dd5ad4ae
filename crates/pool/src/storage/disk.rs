//! A disk with a GUID partition table, or the image of one: volumes are partitions.
//!
//! Everything about a volume is in its entry of the table (`disk/table.rs`). An unfinished volume
//! is an entry of another type, which one change of the table makes a volume. Its space is zeroed
//! before: whatever earlier volumes left there is never readable under the new name.
//!
//! The state directory holds the GUID of the table, so that another disk under the same path is
//! detected. Locks of volumes are bytes of its file `locks`, by the number of the partition.

mod device;
mod partition;
mod table;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_hostfs::{Access, Directory, Existing, Pace};
use extant_space::{Control, Error, ErrorKind, Remedy, Result};

use super::block_file::BlockFile;
use super::volume_locks::VolumeLocks;
use super::{
    Caller, Checkpoint, Done, Feature, FileStat, NewFile, Peek, PeekedRaw, Purpose, ResizeWork,
    Storage, Store, VolumeDevice, VolumeFile, WorkFile, check_place, write_place,
};
use crate::name::VolumeName;
use device::{Disk, ResizedEntry};
use partition::PartitionVolume;
use table::{ALIGN_BYTES, EntryKind, Table, check_name};

/// The file of the state directory with the GUID of the table, 32 hexadecimal digits.
const TABLE: &str = "table";

/// The disk of a pool.
#[derive(Debug)]
pub(crate) struct DiskStore {
    path: PathBuf,
    /// GUID of a table to be made.
    identifier: Option<String>,
    /// A table that the pool has not made may be used.
    adopt: bool,
}

impl DiskStore {
    pub(crate) fn new(path: &Path, identifier: Option<&str>, adopt: bool) -> Self {
        Self {
            path: path.to_path_buf(),
            identifier: identifier.map(str::to_owned),
            adopt,
        }
    }
}

impl Store for DiskStore {
    fn open(
        &self,
        purpose: Purpose,
        own: Option<&Directory>,
        _: Caller<'_>,
    ) -> Result<Box<dyn Storage + '_>> {
        let guid = match own {
            None => None,
            Some(own) => own.read(TABLE, 64)?,
        };
        let guid = guid.as_deref().map(parse_guid).transpose()?;
        let disk = Disk::open(&self.path, guid)?;
        if purpose == Purpose::Change {
            disk.repair()?;
        }
        Ok(Box::new(DiskStorage {
            disk: Arc::new(disk),
            locks: Arc::new(VolumeLocks::new(own, purpose)?),
        }))
    }

    fn build(&self, own: &Directory, has_jobs: bool) -> Result<()> {
        let disk = Disk::open(&self.path, None)?;
        let wanted = match &self.identifier {
            Some(identifier) => parse_guid(identifier.as_bytes())?,
            None => return Err(Error::new(ErrorKind::InvalidArgument).at(&self.path)),
        };
        let file = disk.lock()?;
        let found = match table::is_half_made(&file, disk.sector_bytes()) {
            Ok(true) => Ok(None),
            Ok(false) => Table::read(&file),
            Err(error) => Err(error),
        };
        let digits =
            |guid: [u8; 16]| -> String { guid.iter().map(|byte| format!("{byte:02x}")).collect() };
        let made = found.and_then(|found| match found {
            None => {
                check_place(own, TABLE, digits(wanted).as_bytes(), has_jobs)?;
                Table::create(&file, disk.sector_bytes(), wanted)
            }
            Some(table) if self.adopt || table.guid() == wanted => Ok(table),
            Some(_) => Err(Error::new(ErrorKind::AlreadyExists)
                .detail("the disk has a partition table that this pool has not made")
                .remedy(Remedy::AdoptTable)),
        });
        let table = made.map_err(|error| error.at(&self.path))?;
        write_place(own, TABLE, digits(table.guid()).as_bytes(), has_jobs)
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        path_in(&self.path, name.as_str())
    }
}

fn path_in(disk: &Path, name: &str) -> PathBuf {
    let mut place = disk.as_os_str().to_owned();
    place.push(":");
    place.push(name);
    place.into()
}

fn parse_guid(text: &[u8]) -> Result<[u8; 16]> {
    let text = str::from_utf8(text).unwrap_or_default().trim();
    let number = u128::from_str_radix(text, 16);
    let number = number.map_err(|_| {
        Error::new(ErrorKind::Corrupt).detail(format!("{text:?} is no GUID of a partition table"))
    })?;
    Ok(number.to_be_bytes())
}

/// The disk, for one operation.
struct DiskStorage {
    disk: Arc<Disk>,
    locks: Arc<VolumeLocks>,
}

impl DiskStorage {
    fn place(&self, name: &str) -> PathBuf {
        path_in(self.disk.path(), name)
    }

    fn find(&self, kind: EntryKind, name: &str) -> Result<Option<table::Entry>> {
        Ok(self.disk.table()?.find(kind, name))
    }

    fn file(&self, entry: table::Entry, path: PathBuf, access: Access) -> BlockFile {
        let volume = PartitionVolume {
            disk: Arc::clone(&self.disk),
            entry,
        };
        BlockFile::new(Box::new(volume), &self.locks, path, access)
    }

    fn volume(&self, name: &VolumeName, access: Access) -> Result<BlockFile> {
        let place = self.place(name.as_str());
        match self.find(EntryKind::Volume, name.as_str())? {
            Some(entry) => Ok(self.file(entry, place, access)),
            None => Err(Error::new(ErrorKind::NotFound).at(place)),
        }
    }
}

impl Storage for DiskStorage {
    fn lacks(&self, feature: Feature) -> Option<&'static str> {
        Some(match feature {
            Feature::Sparse => {
                "a partition has all of its space: preallocation off and a smaller allocation are not for pools of kind disk"
            }
            Feature::Unwritten => {
                "a partition has no unwritten space: preallocation falloc is not for pools of kind disk"
            }
            Feature::Qcow2 => {
                "a pool of kind disk has raw volumes only: an image on a partition could grow past its end"
            }
            Feature::SharedSpace => "partitions cannot share space",
            Feature::Permissions => "a partition has the permissions of its disk",
            Feature::Attributes => "a partition keeps no unknown elements of libvirt's XML",
        })
    }

    fn unit_bytes(&self) -> u64 {
        ALIGN_BYTES
    }

    fn check_place(&self, bytes: u64) -> Result<()> {
        self.disk.check_gap(bytes)
    }

    fn check_name(&self, name: &VolumeName) -> Result<()> {
        check_name(name.as_str())
    }

    fn largest_gap_bytes(&self) -> Result<Option<u64>> {
        let gaps = self.disk.table()?.gaps();
        Ok(Some(gaps.iter().map(|gap| gap.len()).max().unwrap_or(0)))
    }

    fn device_of(&self, name: &VolumeName, access: Access) -> Result<Option<VolumeDevice>> {
        self.volume(name, access)?.into_device().map(Some)
    }

    fn for_each_volume(&self, visit: &mut dyn FnMut(&VolumeName, &FileStat)) -> Result<u64> {
        let table = self.disk.table()?;
        let mut names: Vec<VolumeName> = Vec::new();
        let mut others = 0;
        for entry in table.entries() {
            match (entry.kind, entry.name.parse::<VolumeName>()) {
                (EntryKind::Volume, Ok(name)) if !names.contains(&name) => {
                    visit(&name, &self.disk.stat(&entry));
                    names.push(name);
                }
                (EntryKind::Incomplete, _) => {}
                _ => others += 1,
            }
        }
        Ok(others)
    }

    fn has_name(&self, name: &VolumeName) -> Result<bool> {
        Ok(self.find(EntryKind::Volume, name.as_str())?.is_some())
    }

    fn open(&self, name: &VolumeName, access: Access) -> Result<Box<dyn VolumeFile>> {
        Ok(Box::new(self.volume(name, access)?))
    }

    fn peek(&self, _: &VolumeName) -> Option<Box<dyn Peek>> {
        Some(Box::new(PeekedRaw))
    }

    fn remove(&self, name: &VolumeName) -> Result<()> {
        let removed = self.disk.remove_volume(name.as_str());
        removed.map_err(|error| error.about(self.place(name.as_str())))
    }

    fn sync(&self) -> Result<()> {
        // Every change of the table is durable.
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64> {
        let gaps = self.disk.table()?.gaps();
        Ok(gaps.iter().map(|gap| gap.len()).sum())
    }

    fn total_bytes(&self) -> Result<u64> {
        Ok(self.disk.table()?.usable().len())
    }

    fn work_path(&self) -> PathBuf {
        self.place("")
    }

    fn work_files(&self) -> Result<Vec<WorkFile>> {
        let table = self.disk.table()?;
        let unfinished = table
            .entries()
            .filter(|entry| entry.kind == EntryKind::Incomplete);
        let files = unfinished.map(|entry| WorkFile {
            allocated_bytes: entry.range.len(),
            name: entry.name,
        });
        Ok(files.collect())
    }

    fn open_work(&self, name: &str) -> Result<Option<Box<dyn VolumeFile>>> {
        match self.find(EntryKind::Incomplete, name)? {
            Some(entry) => {
                let file = self.file(entry, self.place(name), Access::ReadWrite);
                Ok(Some(Box::new(file)))
            }
            None => Ok(None),
        }
    }

    fn new_work(&self, name: &str, size_bytes: u64) -> Result<Box<dyn VolumeFile>> {
        let entry = self.disk.make_work(name, size_bytes)?;
        Ok(Box::new(self.file(
            entry,
            self.place(name),
            Access::ReadWrite,
        )))
    }

    fn create_work(
        &self,
        name: &str,
        new: &NewFile,
        pace: Pace,
        checkpoint: &dyn Checkpoint,
        control: Control<'_>,
    ) -> Result<Done> {
        let entry = self.disk.make_work(name, new.image.file_bytes())?;
        let file = self.file(entry, self.place(name), Access::ReadWrite);
        file.prepare(0, &pace, checkpoint, control)
    }

    fn resizes_at_once(&self) -> bool {
        true
    }

    fn resize_volume(&self, resize: &ResizeWork<'_>, control: Control<'_>) -> Result<bool> {
        let name = resize.volume.as_str();
        let volume = self.find(EntryKind::Volume, name)?;
        let volume = volume.ok_or_else(|| Error::new(ErrorKind::NotFound).at(self.place(name)))?;
        let size_bytes = resize.size_bytes.next_multiple_of(ALIGN_BYTES);
        let mut resized = ResizedEntry {
            identity: volume.identity,
            size_bytes,
            work: None,
        };
        if size_bytes > volume.range.len() {
            let entry = self
                .disk
                .make_work_behind(resize.work, volume.identity, size_bytes)?;
            let file = self.file(entry, self.place(resize.work), Access::ReadWrite);
            file.prepare(0, resize.pace, resize.checkpoint, control)?;
            resized.work = Some(resize.work);
        }
        control.cancel.check()?;
        self.disk.resize(&resized).map(|()| true)
    }

    fn remove_work(&self, name: &str) -> Result<()> {
        let removed = self.disk.remove_work(name);
        removed.map_err(|error| error.about(self.place(name)))
    }

    fn publish(&self, work: &str, volume: &VolumeName, existing: Existing) -> Result<()> {
        let published = self.disk.publish(work, volume.as_str(), existing);
        published.map_err(|error| error.about(self.place(volume.as_str())))
    }

    fn path_of(&self, name: &VolumeName) -> PathBuf {
        self.place(name.as_str())
    }

    fn can_share(&self, _: &dyn VolumeFile) -> Result<bool> {
        Ok(false)
    }
}
