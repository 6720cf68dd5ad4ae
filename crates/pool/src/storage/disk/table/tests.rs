//! The table under power cuts, damage and hostile headers.

use std::ops::ControlFlow;

use extant_space::{Extent, FallocateMode};
use parking_lot::Mutex;

use super::*;

const DISK_BYTES: u64 = 10 << 20;
const GUID: [u8; 16] = [7; 16];
const SECTOR: usize = 512;

/// A disk in memory that logs its writes.
struct LoggedDisk {
    bytes: Mutex<Vec<u8>>,
    writes: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl LoggedDisk {
    fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes: Mutex::new(bytes),
            writes: Mutex::default(),
        }
    }

    fn blank() -> Self {
        Self::new(vec![0; DISK_BYTES as usize])
    }
}

impl SpaceFile for LoggedDisk {
    fn size(&self) -> Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = self.bytes.lock();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        let at = offset as usize;
        self.bytes.lock()[at..at + buffer.len()].copy_from_slice(buffer);
        self.writes.lock().push((offset, buffer.to_vec()));
        Ok(())
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    fn fallocate(&self, _: FallocateMode, _: ByteRange) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }

    fn for_each_extent(
        &self,
        _: ByteRange,
        _: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        Ok(())
    }
}

fn names(disk: &dyn SpaceFile) -> Vec<(EntryKind, String)> {
    let table = Table::read(disk).unwrap().expect("a table");
    table
        .entries()
        .map(|entry| (entry.kind, entry.name))
        .collect()
}

fn mib(from: u64, to: u64) -> ByteRange {
    ByteRange::new(from << 20, to << 20)
}

/// Changes that jobs make, one after the other.
fn steps() -> Vec<fn(&mut Table, &dyn SpaceFile)> {
    vec![
        |table, disk| table.add(disk, "1.complete", mib(1, 3)).unwrap(),
        |table, disk| table.publish(disk, 1, "web", None).unwrap(),
        |table, disk| table.add(disk, "2.copy", mib(3, 5)).unwrap(),
        |table, disk| table.set_end(disk, 1, 5 << 20, Some(2)).unwrap(),
        |table, disk| table.add(disk, "3.copy", mib(5, 6)).unwrap(),
        |table, disk| table.publish(disk, 2, "web", Some(1)).unwrap(),
        |table, disk| table.remove(disk, 2).unwrap(),
    ]
}

/// Every state of the disk if the power fails during `writes`: whole writes, and a part of the
/// next one, by sectors.
fn cuts(before: &[u8], writes: &[(u64, Vec<u8>)]) -> Vec<Vec<u8>> {
    let mut states = Vec::new();
    let mut bytes = before.to_vec();
    for (offset, data) in writes {
        let all = data.len().div_ceil(SECTOR);
        for sectors in [0, 1, 2, 17, all - 1] {
            let mut torn = bytes.clone();
            let length = (sectors * SECTOR).min(data.len());
            torn[*offset as usize..*offset as usize + length].copy_from_slice(&data[..length]);
            states.push(torn);
        }
        bytes[*offset as usize..*offset as usize + data.len()].copy_from_slice(data);
    }
    states.push(bytes);
    states
}

#[test]
fn change_that_is_cut_at_any_write_leaves_the_table_before_or_after_it() {
    let disk = LoggedDisk::blank();
    let mut table = Table::create(&disk, 512, GUID).unwrap();
    let all = steps();
    for (index, step) in all.iter().enumerate() {
        let before_bytes = disk.bytes.lock().clone();
        let before = names(&disk);
        disk.writes.lock().clear();
        step(&mut table, &disk);
        let after = names(&disk);
        assert_ne!(before, after);
        let writes = disk.writes.lock().clone();
        for state in cuts(&before_bytes, &writes) {
            let cut = LoggedDisk::new(state.clone());
            let found = names(&cut);
            assert!(found == before || found == after, "step {index}: {found:?}");
            // The next change is cut as well: nothing goes back further than one change.
            let mut again = Table::read(&cut).unwrap().unwrap();
            again.add(&cut, "next", mib(8, 9)).unwrap();
            let mut last = found.clone();
            last.push((EntryKind::Incomplete, "next".to_owned()));
            last.sort_by_key(|(_, name)| name.clone());
            let mut first = found.clone();
            first.sort_by_key(|(_, name)| name.clone());
            let writes = cut.writes.lock().clone();
            for state in cuts(&state, &writes).into_iter().step_by(5) {
                let mut found = names(&LoggedDisk::new(state));
                found.sort_by_key(|(_, name)| name.clone());
                assert!(found == first || found == last, "step {index}: {found:?}");
            }
        }
    }
}

#[test]
fn disk_with_data_or_another_table_is_not_touched() {
    for at in [0, 1024, DISK_BYTES - 512] {
        let mut bytes = vec![0; DISK_BYTES as usize];
        bytes[at as usize] = 1;
        let disk = LoggedDisk::new(bytes);
        let error = Table::create(&disk, 512, GUID).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{at}");
        assert!(disk.writes.lock().is_empty());
    }
    // The end of an old table without its start is no table.
    let disk = LoggedDisk::blank();
    Table::create(&disk, 512, GUID).unwrap();
    disk.bytes.lock()[..1 << 20].fill(0);
    assert!(Table::read(&disk).unwrap().is_none());
}

#[test]
fn damage_of_one_copy_is_repaired_and_of_both_reported() {
    let disk = LoggedDisk::blank();
    let mut table = Table::create(&disk, 512, GUID).unwrap();
    table.add(&disk, "work", mib(1, 2)).unwrap();
    let whole = disk.bytes.lock().clone();
    let (first, last) = (1024, DISK_BYTES as usize - 33 * 512);
    for at in [first, last] {
        let disk = LoggedDisk::new(whole.clone());
        disk.bytes.lock()[at] ^= 1;
        assert_eq!(names(&disk).len(), 1);
        let mut table = Table::read(&disk).unwrap().unwrap();
        table.publish(&disk, 1, "web", None).unwrap();
        assert_eq!(names(&disk), [(EntryKind::Volume, "web".to_owned())]);
    }
    let disk = LoggedDisk::new(whole);
    for at in [first, last] {
        disk.bytes.lock()[at] ^= 1;
    }
    assert_eq!(Table::read(&disk).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn header_that_asks_for_much_memory_or_other_entries_is_refused() {
    for (offset, value) in [(80, u32::MAX), (80, 0), (84, 256), (84, 0)] {
        let disk = LoggedDisk::blank();
        Table::create(&disk, 512, GUID).unwrap();
        {
            let mut bytes = disk.bytes.lock();
            let header = &mut bytes[512..604];
            header[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
            header[16..20].fill(0);
            let sum = crc32(header);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
        }
        let error = Table::read(&disk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{offset} {value}");
    }
}

/// CRC-32 of IEEE 802.3, as UEFI has it.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 * (sum & 1))
        })
    })
}

#[test]
fn gaps_are_whole_units_between_the_entries() {
    let disk = LoggedDisk::blank();
    let mut table = Table::create(&disk, 512, GUID).unwrap();
    assert_eq!(table.gaps(), [mib(1, 9)]);
    table.add(&disk, "a", mib(2, 4)).unwrap();
    table
        .add(&disk, "b", ByteRange::new((6 << 20) + 512, 7 << 20))
        .unwrap();
    assert_eq!(table.gaps(), [mib(1, 2), mib(4, 6), mib(7, 9)]);
    let overlap = table.add(&disk, "c", mib(3, 5)).unwrap_err();
    assert_eq!(overlap.kind(), ErrorKind::Corrupt);
    assert_eq!(table.gaps(), [mib(1, 2), mib(4, 6), mib(7, 9)]);
}

#[test]
fn name_that_an_entry_cannot_hold_is_refused() {
    assert!(check_name(&"n".repeat(36)).is_ok());
    assert!(check_name(&"ä".repeat(36)).is_ok());
    let error = check_name(&"n".repeat(37)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
