//! Partition tables of pools of disks: headers and entries with wrong fields, and mostly right
//! checksums.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use arbitrary::{Arbitrary, Unstructured};
use extant_pool::{Definition, Limits, Pool};
use tempfile::TempDir;

use crate::damage::Damage;
use crate::input::{list, parse};

const DISK: u64 = 8 << 20;
const SECTOR: u64 = 512;
const ENTRIES_BYTES: usize = 128 * 128;
/// The MBR, the header, and the entries.
const TABLE_BYTES: usize = 2 * 512 + ENTRIES_BYTES;

struct Place {
    _directory: TempDir,
    pool: Pool,
    disk: File,
    start: Vec<u8>,
    /// Entries and header.
    end: Vec<u8>,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.img");
    let disk = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path);
    let disk = disk.expect("a file");
    disk.set_len(DISK).expect("a file");
    let name = "p".parse().expect("it is one");
    let definition = Definition::on_disk(name, &path, None, false, Limits::default());
    let pool = Pool::build(definition.expect("it is valid")).expect("a blank disk");
    let mut start = vec![0; TABLE_BYTES];
    disk.read_exact_at(&mut start, 0).expect("inside");
    let mut end = vec![0; TABLE_BYTES - 512];
    let at = DISK - end.len() as u64;
    disk.read_exact_at(&mut end, at).expect("inside");
    Place {
        _directory: directory,
        pool,
        disk,
        start,
        end,
    }
});

/// An entry in use.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Entry {
    number: u8,
    kind: u8,
    first: u16,
    last: u16,
    name: u8,
}

struct Input {
    entries: Vec<Entry>,
    mbr: Vec<Damage>,
    primary: Vec<Damage>,
    backup: Vec<Damage>,
    table: Vec<Damage>,
    seal_primary: bool,
    seal_backup: bool,
    same: bool,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        Ok(Self {
            seal_primary: from.arbitrary::<u8>()? != 1,
            seal_backup: from.arbitrary::<u8>()? != 1,
            same: from.arbitrary::<u8>()? != 1,
            entries: list(from, 5)?,
            primary: list(from, 4)?,
            backup: list(from, 4)?,
            table: list(from, 4)?,
            mbr: list(from, 3)?,
        })
    }
}

pub(crate) fn target(data: &[u8]) {
    let Some(input) = parse::<Input>(data) else {
        return;
    };
    let place = &*PLACE;
    let (mut start, mut end) = (place.start.clone(), place.end.clone());
    let mut entries = start[1024..].to_vec();
    for entry in &input.entries {
        put_entry(&mut entries, *entry);
    }
    for damage in &input.table {
        damage.apply(&mut entries[..1024]);
    }
    start[1024..].copy_from_slice(&entries);
    if input.same {
        end[..ENTRIES_BYTES].copy_from_slice(&entries);
    }
    let (mbr, header) = start[..1024].split_at_mut(512);
    // The table of partitions, which is behind the code.
    input
        .mbr
        .iter()
        .for_each(|damage| damage.apply(&mut mbr[440..]));
    damage_header(header, &input.primary, input.seal_primary, &entries);
    let (backup_entries, header) = end.split_at_mut(ENTRIES_BYTES);
    damage_header(header, &input.backup, input.seal_backup, backup_entries);
    place.disk.write_all_at(&start, 0).expect("a file");
    let at = DISK - end.len() as u64;
    place.disk.write_all_at(&end, at).expect("a file");

    if let Ok(volumes) = place.pool.volumes() {
        for volume in volumes {
            let _ = place.pool.volume(&volume.name);
        }
    }
    let _ = place.pool.info();
}

fn put_entry(entries: &mut [u8], entry: Entry) {
    let at = usize::from(entry.number % 8) * 128;
    let bytes = &mut entries[at..at + 128];
    bytes.fill(0);
    bytes[..16].copy_from_slice(&[
        0x52,
        0x7a,
        0x1b,
        0x4e,
        0xc6,
        0x90,
        0x0f,
        0x4c,
        0x8e,
        0x55,
        0x6b,
        0x3d,
        0x0f,
        0x0a,
        0x7c,
        0x11 + entry.kind % 4,
    ]);
    bytes[16..32].fill(entry.number | 1);
    let unit = |number: u16| u64::from(number % 4096) * 4;
    bytes[32..40].copy_from_slice(&unit(entry.first).to_le_bytes());
    bytes[40..48].copy_from_slice(&unit(entry.last).saturating_sub(1).to_le_bytes());
    bytes[56] = entry.name;
}

fn damage_header(header: &mut [u8], damages: &[Damage], is_sealed: bool, entries: &[u8]) {
    for damage in damages {
        damage.apply(&mut header[..92]);
    }
    if is_sealed {
        let sum = crc32(entries);
        header[88..92].copy_from_slice(&sum.to_le_bytes());
        let length = u32::from_le_bytes(header[12..16].try_into().expect("4 bytes"));
        let length = (length as usize).clamp(92, SECTOR as usize);
        header[16..20].fill(0);
        let sum = crc32(&header[..length]);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
    }
}

/// That of Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let steps = |sum: u32| {
        (0..8).fold(sum, |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0xEDB8_8320 } else { 0 }
        })
    };
    !bytes
        .iter()
        .fold(u32::MAX, |sum, &byte| steps(sum ^ u32::from(byte)))
}
