//! The GUID partition table of a disk (UEFI 2.10, chapter 5): volumes and free gaps.
//!
//! The state of a volume is in its entry: the type says whether it is complete, the name is that of
//! the volume, or of the unfinished file. Entries of other types belong to others and are never
//! changed.
//!
//! A change rewrites the table in two steps, each durable before the next: the primary copy, then
//! the backup. A copy that is not the present table is brought up to date first, so that at every
//! moment one valid copy holds the table before or after the change, and a reader that finds the
//! primary copy invalid does not go back further than one change.

use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};

use extant_space::{ByteRange, Error, ErrorKind, Result, SpaceFile, SyncMode};
use gptman::{GPT, GPTHeader, GPTPartitionEntry};

/// Volumes begin at multiples of this, and are as long.
pub(super) const ALIGN_BYTES: u64 = 1 << 20;
/// Far more than any table has; UEFI asks for 128.
const ENTRIES_MAX: u32 = 1024;
const ENTRY_BYTES: u32 = 128;
/// Where the copies of a new table end. Signatures of file systems, RAID and LVM are within.
const BLANK_BYTES: u64 = 1 << 20;
const SECTOR_SIZES: [u64; 2] = [512, 4096];
/// UTF-16 code units of a name.
const NAME_UNITS: usize = 36;

/// `4e1b7a52-90c6-4c0f-8e55-6b3d0f0a7c11`: a volume of a pool.
const VOLUME_TYPE: [u8; 16] = [
    0x52, 0x7a, 0x1b, 0x4e, 0xc6, 0x90, 0x0f, 0x4c, 0x8e, 0x55, 0x6b, 0x3d, 0x0f, 0x0a, 0x7c, 0x11,
];
/// `4e1b7a52-90c6-4c0f-8e55-6b3d0f0a7c12`: an unfinished volume.
const INCOMPLETE_TYPE: [u8; 16] = [
    0x52, 0x7a, 0x1b, 0x4e, 0xc6, 0x90, 0x0f, 0x4c, 0x8e, 0x55, 0x6b, 0x3d, 0x0f, 0x0a, 0x7c, 0x12,
];

/// Meaning of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    Volume,
    Incomplete,
    /// Of other programs.
    Foreign,
}

/// An entry in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// From 1.
    pub(super) number: u32,
    pub(super) kind: EntryKind,
    pub(super) name: String,
    pub(super) range: ByteRange,
    /// Of its GUID, which no other entry has had.
    pub(super) identity: u64,
}

/// A table as it is on the disk.
#[derive(Debug)]
pub(super) struct Table {
    sector_bytes: u64,
    /// Of the primary copy.
    header: GPTHeader,
    entries: Vec<GPTPartitionEntry>,
    has_primary: bool,
    has_backup: bool,
}

impl Table {
    /// Reads the table; `None` if the disk has none.
    ///
    /// # Errors
    /// `Corrupt` if both copies are damaged, or the entries overlap; `Unsupported` for entries of
    /// another size.
    pub(super) fn read(disk: &dyn SpaceFile) -> Result<Option<Self>> {
        let size = disk.size()?;
        for sector_bytes in SECTOR_SIZES {
            if let Some(table) = Self::read_with(disk, sector_bytes, size)? {
                table.check()?;
                return Ok(Some(table));
            }
        }
        Ok(None)
    }

    fn read_with(disk: &dyn SpaceFile, sector_bytes: u64, size: u64) -> Result<Option<Self>> {
        if size < 4 * BLANK_BYTES {
            return Ok(None);
        }
        let last = size / sector_bytes - 1;
        let primary = read_copy(disk, sector_bytes, 1)?;
        let backup_at = match &primary {
            Copy::Valid(header, _) => header.backup_lba,
            _ => last,
        };
        let backup = read_copy(disk, sector_bytes, backup_at)?;
        let (header, entries, has_primary, has_backup) = match (primary, backup) {
            (Copy::Valid(header, entries), backup) => {
                let is_same = matches!(
                    &backup, Copy::Valid(other, same)
                    if *same == entries && other.disk_guid == header.disk_guid
                );
                (header, entries, true, is_same)
            }
            (primary, Copy::Valid(backup, entries)) => {
                if matches!(primary, Copy::None) && !has_protective_mbr(disk)? {
                    // The end of an earlier table.
                    return Ok(None);
                }
                let mut header = backup;
                header.backup_lba = header.primary_lba;
                header.primary_lba = 1;
                header.partition_entry_lba = 2;
                (header, entries, false, true)
            }
            (Copy::None, Copy::None) => return Ok(None),
            _ => return Err(corrupt("both copies of the partition table are damaged")),
        };
        if !has_protective_mbr(disk)? {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail("the disk has a GUID partition table, but its MBR has other partitions"));
        }
        Ok(Some(Self {
            sector_bytes,
            header,
            entries,
            has_primary,
            has_backup,
        }))
    }

    /// Makes an empty table on a disk without data.
    ///
    /// # Errors
    /// `AlreadyExists` if there is anything on the disk; those of the disk.
    pub(super) fn create(disk: &dyn SpaceFile, sector_bytes: u64, guid: [u8; 16]) -> Result<Self> {
        let size = disk.size()?;
        if size < 4 * BLANK_BYTES {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("a disk of a pool has at least 4 MiB"));
        }
        let half_made = half_made(disk, sector_bytes, size)?;
        check_is_blank(disk, size, &half_made)?;
        let mut area = Area::at(0, size);
        let header = GPTHeader::new_from(&mut area, sector_bytes, guid).map_err(explain)?;
        GPT::write_protective_mbr_into(&mut area, sector_bytes).map_err(explain)?;
        let entries = vec![GPTPartitionEntry::empty(); header.number_of_partition_entries as usize];
        let mut table = Self {
            sector_bytes,
            header,
            entries,
            has_primary: false,
            has_backup: false,
        };
        table.write_backup(disk)?;
        table.write_primary(disk)?;
        // It makes a table of the rest, so it is last.
        disk.write_at(&area.bytes, 0)?;
        disk.sync(SyncMode::All)?;
        Ok(table)
    }

    pub(super) fn guid(&self) -> [u8; 16] {
        self.header.disk_guid
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = Entry> {
        let used = self
            .entries
            .iter()
            .zip(1..)
            .filter(|(entry, _)| entry.is_used());
        used.map(|(entry, number)| Entry {
            number,
            kind: match entry.partition_type_guid {
                VOLUME_TYPE => EntryKind::Volume,
                INCOMPLETE_TYPE => EntryKind::Incomplete,
                _ => EntryKind::Foreign,
            },
            name: entry.partition_name.as_str().to_owned(),
            range: self.range_of(entry),
            identity: u64::from_le_bytes(
                entry.unique_partition_guid[..8]
                    .try_into()
                    .expect("8 bytes"),
            ),
        })
    }

    /// The first entry of that kind and name.
    pub(super) fn find(&self, kind: EntryKind, name: &str) -> Option<Entry> {
        self.entries()
            .find(|entry| entry.kind == kind && entry.name == name)
    }

    fn range_of(&self, entry: &GPTPartitionEntry) -> ByteRange {
        let bytes = self.sector_bytes;
        ByteRange::new(entry.starting_lba * bytes, (entry.ending_lba + 1) * bytes)
    }

    /// The space between the tables, in whole units.
    pub(super) fn usable(&self) -> ByteRange {
        let first = self.header.first_usable_lba * self.sector_bytes;
        let end = (self.header.last_usable_lba + 1) * self.sector_bytes;
        aligned(first, end).unwrap_or_default()
    }

    /// Free space in whole units, by offset.
    pub(super) fn gaps(&self) -> Vec<ByteRange> {
        let mut used: Vec<ByteRange> = self.entries().map(|entry| entry.range).collect();
        used.sort_by_key(|range| range.start());
        let usable = self.usable();
        let mut at = usable.start();
        let mut gaps = Vec::new();
        for range in used {
            gaps.extend(aligned(at, range.start().min(usable.end())));
            at = at.max(range.end());
        }
        gaps.extend(aligned(at, usable.end()));
        gaps
    }

    /// Adds an unfinished volume at `range`.
    pub(super) fn add(&mut self, disk: &dyn SpaceFile, name: &str, range: ByteRange) -> Result<()> {
        check_name(name)?;
        let free = self.entries.iter().position(GPTPartitionEntry::is_unused);
        let free = free.ok_or_else(|| {
            Error::new(ErrorKind::NoSpace).detail(format!(
                "the partition table is full: it has {} entries",
                self.entries.len()
            ))
        })?;
        let mut guid = [0; 16];
        rustix::rand::getrandom(&mut guid, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::from(io::Error::from(errno)).during("make a GUID"))?;
        self.change(disk, |entries, sector_bytes| {
            entries[free] = GPTPartitionEntry {
                partition_type_guid: INCOMPLETE_TYPE,
                unique_partition_guid: guid,
                starting_lba: range.start() / sector_bytes,
                ending_lba: range.end() / sector_bytes - 1,
                attribute_bits: 0,
                partition_name: name.into(),
            };
        })
    }

    /// Makes the unfinished entry `work` a volume, in place of the entry `replaced`.
    pub(super) fn publish(
        &mut self,
        disk: &dyn SpaceFile,
        work: u32,
        name: &str,
        replaced: Option<u32>,
    ) -> Result<()> {
        check_name(name)?;
        self.change(disk, |entries, _| {
            if let Some(number) = replaced {
                entries[index(number)] = GPTPartitionEntry::empty();
            }
            let entry = &mut entries[index(work)];
            entry.partition_type_guid = VOLUME_TYPE;
            entry.partition_name = name.into();
        })
    }

    pub(super) fn remove(&mut self, disk: &dyn SpaceFile, number: u32) -> Result<()> {
        self.change(disk, |entries, _| {
            entries[index(number)] = GPTPartitionEntry::empty();
        })
    }

    /// Moves the end of a volume, which takes the place of the entry `absorbed`.
    pub(super) fn set_end(
        &mut self,
        disk: &dyn SpaceFile,
        number: u32,
        end_bytes: u64,
        absorbed: Option<u32>,
    ) -> Result<()> {
        self.change(disk, |entries, sector_bytes| {
            if let Some(absorbed) = absorbed {
                entries[index(absorbed)] = GPTPartitionEntry::empty();
            }
            entries[index(number)].ending_lba = end_bytes / sector_bytes - 1;
        })
    }

    /// Both copies are current.
    pub(super) fn is_whole(&self) -> bool {
        self.has_primary && self.has_backup
    }

    /// Rewrites a copy that is not current.
    pub(super) fn repair(&mut self, disk: &dyn SpaceFile) -> Result<()> {
        if !self.has_primary {
            self.write_primary(disk)?;
        }
        if !self.has_backup {
            self.write_backup(disk)?;
        }
        Ok(())
    }

    fn change(
        &mut self,
        disk: &dyn SpaceFile,
        change: impl FnOnce(&mut [GPTPartitionEntry], u64),
    ) -> Result<()> {
        self.repair(disk)?;
        let before = self.entries.clone();
        change(&mut self.entries, self.sector_bytes);
        if let Err(error) = self.check() {
            self.entries = before;
            return Err(error);
        }
        self.has_backup = false;
        self.write_primary(disk)?;
        self.write_backup(disk)
    }

    fn write_primary(&mut self, disk: &dyn SpaceFile) -> Result<()> {
        self.has_primary = false;
        let mut header = self.header.clone();
        self.write_copy(disk, &mut header)?;
        self.has_primary = true;
        Ok(())
    }

    fn write_backup(&mut self, disk: &dyn SpaceFile) -> Result<()> {
        let mut header = self.header.clone();
        header.primary_lba = self.header.backup_lba;
        header.backup_lba = self.header.primary_lba;
        header.partition_entry_lba = header.primary_lba.saturating_sub(self.entry_sectors());
        self.write_copy(disk, &mut header)?;
        self.has_backup = true;
        Ok(())
    }

    /// In one write, and durably.
    fn write_copy(&self, disk: &dyn SpaceFile, header: &mut GPTHeader) -> Result<()> {
        let start = header.primary_lba.min(header.partition_entry_lba) * self.sector_bytes;
        let mut area = Area::at(start, disk.size()?);
        header
            .write_into(&mut area, self.sector_bytes, &self.entries)
            .map_err(explain)?;
        disk.write_at(&area.bytes, start)?;
        disk.sync(SyncMode::All)
    }

    fn entry_sectors(&self) -> u64 {
        let bytes = self.entries.len() as u64 * u64::from(ENTRY_BYTES);
        bytes.div_ceil(self.sector_bytes)
    }

    /// Refuses entries that end before they begin, are outside the usable space, or overlap.
    fn check(&self) -> Result<()> {
        let header = &self.header;
        let mut used: Vec<(u64, u64)> = self
            .entries
            .iter()
            .filter(|entry| entry.is_used())
            .map(|entry| (entry.starting_lba, entry.ending_lba))
            .collect();
        used.sort_unstable();
        let mut free = header.first_usable_lba;
        for (start, end) in used {
            if start < free || end < start || end > header.last_usable_lba {
                return Err(corrupt(
                    "partitions overlap each other or the ends of the disk",
                ));
            }
            free = end + 1;
        }
        Ok(())
    }
}

/// One of the two copies.
enum Copy {
    /// No signature.
    None,
    Damaged,
    Valid(GPTHeader, Vec<GPTPartitionEntry>),
}

fn read_copy(disk: &dyn SpaceFile, sector_bytes: u64, lba: u64) -> Result<Copy> {
    let size = disk.size()?;
    let sectors = size / sector_bytes;
    let mut first = vec![0; 512];
    let at = lba.saturating_mul(sector_bytes);
    if at >= size || disk.read_at(&mut first, at)? < first.len() {
        return Ok(Copy::Damaged);
    }
    if !first.starts_with(b"EFI PART") {
        return Ok(Copy::None);
    }
    let Ok(header) = GPTHeader::read_from(&mut Cursor::new(&first)) else {
        return Ok(Copy::Damaged);
    };
    if header.size_of_partition_entry != ENTRY_BYTES
        || !(1..=ENTRIES_MAX).contains(&header.number_of_partition_entries)
    {
        return Err(Error::new(ErrorKind::Unsupported).detail(format!(
            "the partition table has {} entries of {} bytes",
            header.number_of_partition_entries, header.size_of_partition_entry
        )));
    }
    let array_bytes = u64::from(header.number_of_partition_entries) * u64::from(ENTRY_BYTES);
    let array_sectors = array_bytes.div_ceil(sector_bytes);
    let is_inside =
        |lba: u64, length: u64| lba.checked_add(length).is_some_and(|end| end <= sectors);
    let is_sane = header.primary_lba == lba
        && is_inside(header.backup_lba, 1)
        && is_inside(header.partition_entry_lba, array_sectors)
        && header.first_usable_lba > 1
        && header.first_usable_lba <= header.last_usable_lba
        && is_inside(header.last_usable_lba, 1);
    if !is_sane {
        return Ok(Copy::Damaged);
    }
    let (first, last) = (lba.min(header.backup_lba), lba.max(header.backup_lba));
    let is_primary = lba == 1;
    let is_usual = header.first_usable_lba > first + array_sectors
        && header.last_usable_lba + array_sectors < last
        && (!is_primary || header.partition_entry_lba == 2);
    if !is_usual {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail("the entries of the partition table are not next to its headers"));
    }
    let start = header.partition_entry_lba * sector_bytes;
    let mut array = Area::at(start, size);
    array.bytes = vec![0; array_bytes as usize];
    if disk.read_at(&mut array.bytes, start)? < array.bytes.len() {
        return Ok(Copy::Damaged);
    }
    // The crate reads more than an entry.
    array.bytes.resize(array.bytes.len() + 512, 0);
    match header.read_partitions(&mut array, sector_bytes) {
        Ok(entries) => Ok(Copy::Valid(header, entries)),
        Err(_) => Ok(Copy::Damaged),
    }
}

/// The first sector of a disk with a GUID partition table has a partition of type 0xEE.
fn has_protective_mbr(disk: &dyn SpaceFile) -> Result<bool> {
    let mut mbr = [0; 512];
    if disk.read_at(&mut mbr, 0)? < mbr.len() || mbr[510..] != [0x55, 0xaa] {
        return Ok(false);
    }
    Ok((0..4).any(|slot| mbr[446 + 16 * slot + 4] == 0xee))
}

/// Whether a process was killed while it made a table there: the MBR, which is last, is missing,
/// and a copy without partitions is there. The table can be made again.
pub(super) fn is_half_made(disk: &dyn SpaceFile, sector_bytes: u64) -> Result<bool> {
    let size = disk.size()?;
    if size < 4 * BLANK_BYTES || has_protective_mbr(disk)? {
        return Ok(false);
    }
    let half_made = half_made(disk, sector_bytes, size)?;
    Ok(!half_made.is_empty() && check_is_blank(disk, size, &half_made).is_ok())
}

/// Places of the copies without partitions.
fn half_made(disk: &dyn SpaceFile, sector_bytes: u64, size: u64) -> Result<Vec<ByteRange>> {
    let mut places = Vec::new();
    for lba in [1, size / sector_bytes - 1] {
        if let Copy::Valid(header, entries) = read_copy(disk, sector_bytes, lba)?
            && entries.iter().all(GPTPartitionEntry::is_unused)
        {
            let start = header.partition_entry_lba * sector_bytes;
            let bytes = u64::from(header.number_of_partition_entries)
                * u64::from(header.size_of_partition_entry);
            places.push(ByteRange::new(lba * sector_bytes, (lba + 1) * sector_bytes));
            places.push(ByteRange::new(
                start,
                start + bytes.next_multiple_of(sector_bytes),
            ));
        }
    }
    Ok(places)
}

/// Refuses a disk with anything in its first and last MiB outside of `ignored`.
fn check_is_blank(disk: &dyn SpaceFile, size: u64, ignored: &[ByteRange]) -> Result<()> {
    let mut bytes = vec![0; BLANK_BYTES as usize];
    for at in [0, size - BLANK_BYTES] {
        let read = disk.read_at(&mut bytes, at)?;
        let looked = ByteRange::new(at, at + BLANK_BYTES);
        for part in ignored
            .iter()
            .filter_map(|range| range.intersection(looked))
        {
            bytes[(part.start() - at) as usize..(part.end() - at) as usize].fill(0);
        }
        if read < bytes.len() || bytes.iter().any(|&byte| byte != 0) {
            return Err(Error::new(ErrorKind::AlreadyExists)
                .detail("the disk is not blank, and has no GUID partition table")
                .advice("if its data is not needed: wipefs --all, or write zeros over its first and last MiB"));
        }
    }
    Ok(())
}

/// Refuses a name that an entry cannot hold.
pub(super) fn check_name(name: &str) -> Result<()> {
    if name.encode_utf16().count() <= NAME_UNITS {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument)
        .detail("names of partitions have at most 36 UTF-16 code units"))
}

fn index(number: u32) -> usize {
    number as usize - 1
}

/// The whole units between two offsets.
fn aligned(start: u64, end: u64) -> Option<ByteRange> {
    let start = start.next_multiple_of(ALIGN_BYTES);
    let end = end / ALIGN_BYTES * ALIGN_BYTES;
    (start < end).then(|| ByteRange::new(start, end))
}

fn corrupt(detail: &str) -> Error {
    Error::new(ErrorKind::Corrupt).detail(detail)
}

fn explain(error: gptman::Error) -> Error {
    corrupt("the partition table cannot be changed").detail(error.to_string())
}

/// A part of the disk in memory, addressed by offsets of the disk.
struct Area {
    start: u64,
    disk_bytes: u64,
    bytes: Vec<u8>,
    at: u64,
}

impl Area {
    fn at(start: u64, disk_bytes: u64) -> Self {
        Self {
            start,
            disk_bytes,
            bytes: Vec::new(),
            at: start,
        }
    }

    fn offset(&self) -> io::Result<usize> {
        let offset = self.at.checked_sub(self.start);
        offset
            .and_then(|offset| usize::try_from(offset).ok())
            .ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl Seek for Area {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.disk_bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

impl Read for Area {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = self.bytes.get(self.offset()?..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.at += length as u64;
        Ok(length)
    }
}

impl Write for Area {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let offset = self.offset()?;
        let end = offset + buffer.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(buffer);
        self.at += buffer.len() as u64;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
