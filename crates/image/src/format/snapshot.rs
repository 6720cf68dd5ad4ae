//! Internal snapshots: a list of names, each with an L1 table of its own.

use extant_ondisk::on_disk;
use extant_space::{Result, SpaceFile};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::Header;
use super::fault::{corrupt, table_range};

on_disk! {
    /// Begins an entry; extra data, identifier and name follow, filled up to a multiple of 8 bytes.
    pub struct RawSnapshot: 40 {
        0x00 l1_table_offset: U64,
        0x08 l1_size: U32,
        0x0C id_str_size: U16,
        0x0E name_size: U16,
        0x10 date_sec: U32,
        0x14 date_nsec: U32,
        0x18 vm_clock_nsec: U64,
        0x20 vm_state_size: U32,
        0x24 extra_data_size: U32,
    }

    /// The extra data that is known.
    pub struct RawSnapshotExtra: 16 {
        0x00 vm_state_size_large: U64,
        0x08 disk_size: U64,
    }
}

/// Offset of the instruction count in the extra data; all bits set mean not counted.
const INSTRUCTIONS: usize = size_of::<RawSnapshotExtra>();
/// QEMU's limits.
const EXTRA_MAX: u32 = 1024;
const LIST_BYTES_MAX: u64 = 64 << 20;
const L1_BYTES_MAX: u64 = 32 << 20;

/// An internal snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its identifier.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Time of creation, seconds since 1970.
    pub date_seconds: u32,
    /// The nanoseconds of that.
    pub date_nanoseconds: u32,
    /// The clock of the machine, nanoseconds.
    pub vm_clock_nanoseconds: u64,
    /// Instructions that the machine had executed, where they were counted.
    pub instructions: Option<u64>,
    /// Bytes of the machine's state in it.
    pub vm_state_bytes: u64,
    /// The size of the disk at that time; `None` if it is not stored.
    pub virtual_bytes: Option<u64>,
    /// Offset of its L1 table.
    pub l1_offset: u64,
    /// The entries of that.
    pub l1_entries: u32,
    /// Bytes of the entry in the list.
    pub(crate) entry_bytes: u64,
}

/// Reads the list of snapshots, calling `take` for each.
///
/// # Errors
/// `Corrupt` for an entry that contradicts the file, or a list of more than 64 MiB; and errors of
/// reading.
pub fn read_snapshots(
    file: &dyn SpaceFile,
    header: &Header,
    take: &mut dyn FnMut(Snapshot) -> Result<()>,
) -> Result<()> {
    let file_bytes = file.size()?;
    let mut at = header.snapshots.offset;
    for index in 0..header.snapshots.count {
        let snapshot = read_one(file, header, index, at, file_bytes)?;
        at += snapshot.entry_bytes;
        if at - header.snapshots.offset > LIST_BYTES_MAX {
            return Err(corrupt(
                "snapshot list",
                format_args!("has more than {LIST_BYTES_MAX} bytes"),
            ));
        }
        take(snapshot)?;
    }
    Ok(())
}

fn read_one(
    file: &dyn SpaceFile,
    header: &Header,
    index: u32,
    at: u64,
    file_bytes: u64,
) -> Result<Snapshot> {
    let short = || {
        corrupt(
            format_args!("snapshot {index}"),
            "is past the end of the file",
        )
    };
    let mut raw = RawSnapshot::new_zeroed();
    if file.read_at(raw.as_mut_bytes(), at)? < size_of::<RawSnapshot>() {
        return Err(short());
    }
    let extra_bytes = raw.extra_data_size.get();
    if extra_bytes > EXTRA_MAX {
        return Err(corrupt(
            format_args!("snapshot {index}: extra_data_size"),
            format_args!("{extra_bytes} is above {EXTRA_MAX}"),
        ));
    }
    let (id_bytes, name_bytes) = (raw.id_str_size.get(), raw.name_size.get());
    let rest_bytes = extra_bytes as usize + usize::from(id_bytes) + usize::from(name_bytes);
    let mut rest = vec![0; rest_bytes];
    if file.read_at(&mut rest, at + size_of::<RawSnapshot>() as u64)? < rest_bytes {
        return Err(short());
    }
    let (extra, names) = rest.split_at(extra_bytes as usize);
    let (id, name) = names.split_at(id_bytes.into());
    let known = extra.get(..8).map(|_| {
        let mut known = RawSnapshotExtra::new_zeroed();
        let length = extra.len().min(size_of::<RawSnapshotExtra>());
        known.as_mut_bytes()[..length].copy_from_slice(&extra[..length]);
        known
    });
    let l1_entries = raw.l1_size.get();
    let l1_bytes = u64::from(l1_entries) * 8;
    if l1_bytes > L1_BYTES_MAX {
        return Err(corrupt(
            format_args!("snapshot {index}: l1_size"),
            format_args!("{l1_entries} is above {}", L1_BYTES_MAX / 8),
        ));
    }
    let l1_offset = raw.l1_table_offset.get();
    let place = format!("snapshot {index}: l1_table_offset");
    let cluster_bytes = header.geometry.cluster_bytes();
    table_range(&place, l1_offset, l1_bytes, cluster_bytes, file_bytes)?;
    Ok(Snapshot {
        id: String::from_utf8_lossy(id).into_owned(),
        name: String::from_utf8_lossy(name).into_owned(),
        date_seconds: raw.date_sec.get(),
        date_nanoseconds: raw.date_nsec.get(),
        vm_clock_nanoseconds: raw.vm_clock_nsec.get(),
        instructions: extra
            .get(INSTRUCTIONS..INSTRUCTIONS + 8)
            .map(|bytes| u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
            .filter(|count| *count != u64::MAX),
        vm_state_bytes: known.map_or(u64::from(raw.vm_state_size.get()), |known| {
            known.vm_state_size_large.get()
        }),
        virtual_bytes: known
            .filter(|_| extra.len() >= size_of::<RawSnapshotExtra>())
            .map(|known| known.disk_size.get()),
        l1_offset,
        l1_entries,
        entry_bytes: (size_of::<RawSnapshot>() + rest_bytes).next_multiple_of(8) as u64,
    })
}
