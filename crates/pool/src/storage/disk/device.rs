//! A disk with a partition table: its changes, and what the kernel knows of it.
//!
//! A change of the table is made under a lock on the disk (flock), as sfdisk, systemd and udev take
//! it. The kernel has devices for volumes only: an unfinished one has none. They are made after the
//! change, and removed before it; the kernel refuses to remove one that is in use.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use extant_hostfs::{Access, Existing, HostFile, describe_holders_or_other};
use extant_space::{ByteRange, ByteSize, Error, ErrorKind, Remedy, Result, event};
use extant_sys::partition::{self, Partition};
use extant_sys::wait::poll_until;
use extant_sys::{disk as sysfs, loop_device};
use rustix::io::Errno;

use super::table::{ALIGN_BYTES, Entry, EntryKind, Table};
use crate::storage::FileStat;
use crate::storage::block_file::user_of_node;

/// udev holds the lock while it probes the disk.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a device that is to be removed may be in use.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Sectors of an image without a table.
const IMAGE_SECTOR_BYTES: u64 = 512;

/// A disk, or the image of one.
#[derive(Debug)]
pub(super) struct Disk {
    path: PathBuf,
    /// `None` for an image.
    device: Option<u64>,
    stat: FileStat,
    /// Of the table that the pool was made with.
    guid: Option<[u8; 16]>,
}

/// A new size of a volume.
pub(super) struct ResizedEntry<'a> {
    pub(super) identity: u64,
    pub(super) size_bytes: u64,
    /// The unfinished entry behind it, which it absorbs.
    pub(super) work: Option<&'a str>,
}

impl Disk {
    pub(super) fn open(path: &Path, guid: Option<[u8; 16]>) -> Result<Self> {
        let found = std::fs::metadata(path).map_err(|source| Error::from(source).at(path))?;
        let is_disk = found.file_type().is_block_device();
        if !is_disk && !found.is_file() {
            return Err(Error::new(ErrorKind::WrongType)
                .at(path)
                .detail("not a disk and not an image of one"));
        }
        Ok(Self {
            path: path.to_path_buf(),
            device: is_disk.then(|| found.rdev()),
            stat: FileStat {
                size_bytes: 0,
                allocated_bytes: 0,
                block_bytes: found.blksize(),
                mode: found.mode() & 0o7777,
                uid: found.uid(),
                gid: found.gid(),
            },
            guid,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn sector_bytes(&self) -> u64 {
        let directory = self.device.and_then(sysfs::directory);
        directory
            .and_then(|directory| sysfs::queue_number(&directory, "logical_block_size"))
            .unwrap_or(IMAGE_SECTOR_BYTES)
    }

    /// Reads the table that the pool was made with.
    pub(super) fn table(&self) -> Result<Table> {
        self.table_of(&HostFile::open(&self.path, Access::Read)?)
    }

    fn table_of(&self, file: &HostFile) -> Result<Table> {
        let error = |kind| Error::new(kind).at(&self.path);
        let table = Table::read(file).map_err(|error| error.at(&self.path))?;
        let table = table.ok_or_else(|| {
            error(ErrorKind::NotFound)
                .detail("the disk has no GUID partition table")
                .remedy(Remedy::DefinePool)
        })?;
        match self.guid {
            Some(guid) if guid != table.guid() => Err(error(ErrorKind::NotFound)
                .detail("the disk has another partition table than the one the pool was made with")
                .advice(
                    "attach the pool's disk, or delete the definition and define the pool again",
                )),
            _ => Ok(table),
        }
    }

    /// Takes the lock of the disk, opened for changes.
    pub(super) fn lock(&self) -> Result<HostFile> {
        let file = HostFile::open(&self.path, Access::ReadWrite)?;
        let locked = poll_until(LOCK_TIMEOUT, LOCK_POLL_INTERVAL, || {
            match file.as_file().try_lock() {
                Err(TryLockError::WouldBlock) => None,
                answer => Some(answer),
            }
        });
        match locked {
            Some(Ok(())) => Ok(file),
            Some(Err(TryLockError::Error(source))) => {
                Err(Error::from(source).at(&self.path).during("lock"))
            }
            None | Some(Err(TryLockError::WouldBlock)) => {
                let who = describe_holders_or_other(&self.path);
                Err(Error::new(ErrorKind::InUse)
                    .at(&self.path)
                    .detail(format!("the disk is locked by {who}")))
            }
        }
    }

    /// Changes the table under the lock.
    fn change<T>(&self, change: impl FnOnce(&HostFile, &mut Table) -> Result<T>) -> Result<T> {
        let file = self.lock()?;
        let mut table = self.table_of(&file)?;
        change(&file, &mut table).map_err(|error| error.at(&self.path))
    }

    /// Ends the change that a killed process has begun.
    pub(super) fn repair(&self) -> Result<()> {
        if self.table()?.is_whole() {
            return Ok(());
        }
        self.change(|file, table| table.repair(file))
    }

    /// The unfinished entry `name`, made in the first gap that is large enough if there is none.
    pub(super) fn make_work(&self, name: &str, bytes: u64) -> Result<Entry> {
        self.change(|file, table| {
            if let Some(entry) = table.find(EntryKind::Incomplete, name) {
                return Ok(entry);
            }
            let bytes = bytes.next_multiple_of(ALIGN_BYTES);
            let gaps = table.gaps();
            let gap = gaps.iter().find(|gap| gap.len() >= bytes);
            let gap = gap.ok_or_else(|| no_gap(bytes, &gaps))?;
            let range = ByteRange::new(gap.start(), gap.start() + bytes);
            self.add(file, table, name, range)
        })
    }

    /// The same directly behind the volume `identity`, which is to have `size_bytes`.
    pub(super) fn make_work_behind(
        &self,
        name: &str,
        identity: u64,
        size_bytes: u64,
    ) -> Result<Entry> {
        self.change(|file, table| {
            if let Some(entry) = table.find(EntryKind::Incomplete, name) {
                return Ok(entry);
            }
            let volume = find_identity(table, identity)?;
            let wanted = ByteRange::new(volume.range.end(), volume.range.start() + size_bytes);
            let gaps = table.gaps();
            let behind = gaps.iter().find(|gap| gap.start() == wanted.start());
            match behind {
                Some(gap) if gap.end() >= wanted.end() => self.add(file, table, name, wanted),
                _ => {
                    let free = behind.map_or(0, |gap| gap.len());
                    Err(Error::new(ErrorKind::NoSpace)
                        .detail(format!(
                            "a partition grows in place: {} wanted behind it, {} free there",
                            ByteSize(wanted.len()),
                            ByteSize(free)
                        ))
                        .advice("make a larger volume and copy: clone, or download and upload"))
                }
            }
        })
    }

    fn add(
        &self,
        file: &HostFile,
        table: &mut Table,
        name: &str,
        range: ByteRange,
    ) -> Result<Entry> {
        table.add(file, name, range)?;
        let added = table.find(EntryKind::Incomplete, name);
        Ok(added.expect("it was added"))
    }

    /// Fails with the largest gap if no gap has `bytes`.
    pub(super) fn check_gap(&self, bytes: u64) -> Result<()> {
        let gaps = self.table()?.gaps();
        let bytes = bytes.next_multiple_of(ALIGN_BYTES);
        if gaps.iter().any(|gap| gap.len() >= bytes) {
            Ok(())
        } else {
            Err(no_gap(bytes, &gaps))
        }
    }

    /// Makes the unfinished entry `work` the volume `name`.
    pub(super) fn publish(&self, work: &str, name: &str, existing: Existing) -> Result<()> {
        self.change(|file, table| {
            let entry = table.find(EntryKind::Incomplete, work);
            let entry = entry.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
            let replaced = table.find(EntryKind::Volume, name);
            if replaced.is_some() && existing == Existing::Refuse {
                return Err(Error::new(ErrorKind::AlreadyExists));
            }
            if let Some(replaced) = &replaced {
                self.remove_device(file.as_file(), replaced)?;
            }
            table.publish(file, entry.number, name, replaced.map(|entry| entry.number))?;
            self.announce(file.as_file(), table);
            Ok(())
        })
    }

    pub(super) fn remove_volume(&self, name: &str) -> Result<()> {
        self.change(|file, table| {
            let entry = table.find(EntryKind::Volume, name);
            let entry = entry.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
            self.remove_device(file.as_file(), &entry)?;
            let removed = table.remove(file, entry.number);
            if removed.is_err() {
                self.announce(file.as_file(), table);
            }
            removed
        })
    }

    pub(super) fn remove_work(&self, name: &str) -> Result<()> {
        self.change(|file, table| {
            let entry = table.find(EntryKind::Incomplete, name);
            let entry = entry.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
            table.remove(file, entry.number)
        })
    }

    /// Moves the end of a volume. A larger one takes the place of the unfinished entry behind it.
    pub(super) fn resize(&self, resized: &ResizedEntry<'_>) -> Result<()> {
        self.change(|file, table| {
            let volume = find_identity(table, resized.identity)?;
            let end = volume.range.start() + resized.size_bytes.next_multiple_of(ALIGN_BYTES);
            if end == volume.range.end() {
                return Ok(());
            }
            let work = match resized.work {
                Some(work) => table.find(EntryKind::Incomplete, work),
                None => None,
            };
            let is_prepared = work
                .as_ref()
                .is_some_and(|work| work.range == ByteRange::new(volume.range.end(), end));
            if end > volume.range.end() && !is_prepared {
                return Err(Error::new(ErrorKind::Unsupported)
                    .detail("the space behind a partition is prepared before it gets it"));
            }
            let absorbed = work.map(|work| work.number);
            table.set_end(file, volume.number, end, absorbed)?;
            let range = ByteRange::new(volume.range.start(), end);
            if self.partition_of(&volume).is_some() {
                let told = partition::resize(file.as_file(), volume.number, range);
                self.note("resize", &volume, told);
            }
            Ok(())
        })
    }

    /// Makes devices for the volumes that have none. A disk may have no devices for partitions;
    /// then the volumes are used at their offsets.
    pub(super) fn announce(&self, file: &File, table: &Table) {
        let Some(device) = self.device else {
            return;
        };
        let known = partition::partitions(device);
        let volumes = table
            .entries()
            .filter(|entry| entry.kind == EntryKind::Volume);
        for entry in volumes {
            if !known.iter().any(|known| known.range == entry.range) {
                let told = partition::add(file, entry.number, entry.range);
                self.note("add", &entry, told);
            }
        }
    }

    /// # Errors
    /// `InUse` with the user.
    fn remove_device(&self, file: &File, entry: &Entry) -> Result<()> {
        let Some(found) = self.partition_of(entry) else {
            return Ok(());
        };
        // udev has a new device open for a moment.
        let removed = poll_until(
            DEVICE_TIMEOUT,
            LOCK_POLL_INTERVAL,
            || match partition::remove(file, found.number) {
                Err(source) if Errno::from_io_error(&source) == Some(Errno::BUSY) => None,
                answer => Some(answer),
            },
        );
        match removed.unwrap_or_else(|| Err(io::Error::from(Errno::BUSY))) {
            Err(source) if Errno::from_io_error(&source) == Some(Errno::BUSY) => {
                let who = self.user_of(entry);
                let who = who.unwrap_or_else(|| "its device is open".to_owned());
                Err(Error::new(ErrorKind::InUse)
                    .detail(format!("the partition is in use: {who}"))
                    .advice("stop its user, or umount it"))
            }
            told => {
                self.note("remove", entry, told);
                Ok(())
            }
        }
    }

    fn note(&self, change: &str, entry: &Entry, told: io::Result<()>) {
        if let Err(error) = told {
            event!(
                INFO,
                "partition device",
                change = change,
                path = %self.path.display(),
                number = entry.number,
                error = %error
            );
        }
    }

    /// The kernel's partition of an entry.
    fn partition_of(&self, entry: &Entry) -> Option<Partition> {
        let all = partition::partitions(self.device?).into_iter();
        let mut own = all.filter(|known| known.range == entry.range);
        own.next()
    }

    /// The node of an entry's device.
    pub(super) fn node_of(&self, entry: &Entry) -> Option<PathBuf> {
        self.partition_of(entry)?.node
    }

    /// The user of an entry's device, or of a loop device that shows a part of it, as text.
    pub(super) fn user_of(&self, entry: &Entry) -> Option<String> {
        let own = self.partition_of(entry).and_then(|found| found.node);
        let of_loops = loop_device::all_over(&self.path).into_iter();
        let above = of_loops.filter_map(|device| {
            let place = device.place()?;
            place.intersection(entry.range)?;
            let inner = partition::partitions(device.number).into_iter();
            let mut same = inner.filter(|known| {
                ByteRange::at(place.start() + known.range.start(), known.range.len())
                    == Some(entry.range)
            });
            match same.next() {
                Some(partition) => partition.node,
                // All of the device is the partition, as for a mount with an offset.
                None => (place.start() >= entry.range.start()).then_some(device.path),
            }
        });
        own.into_iter()
            .chain(above)
            .find_map(|node| user_of_node(&node))
    }

    pub(super) fn stat(&self, entry: &Entry) -> FileStat {
        FileStat {
            size_bytes: entry.range.len(),
            allocated_bytes: entry.range.len(),
            ..self.stat
        }
    }
}

fn find_identity(table: &Table, identity: u64) -> Result<Entry> {
    let mut volumes = table.entries();
    let found = volumes.find(|entry| entry.kind == EntryKind::Volume && entry.identity == identity);
    found.ok_or_else(|| Error::new(ErrorKind::NotFound).detail("the partition was removed"))
}

fn no_gap(wanted: u64, gaps: &[ByteRange]) -> Error {
    let largest = gaps.iter().map(|gap| gap.len()).max().unwrap_or(0);
    Error::new(ErrorKind::NoSpace)
        .detail(format!(
            "no gap: a partition of {} wanted, the largest of {} gaps has {}",
            ByteSize(wanted),
            gaps.len(),
            ByteSize(largest)
        ))
        .advice("choose a smaller capacity, or remove volumes that are neighbours")
}
