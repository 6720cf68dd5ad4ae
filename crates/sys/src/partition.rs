//! Partitions of a disk as the kernel knows them: its list in sysfs, and its changes without a
//! partition scan (`BLKPG`, linux/blkpg.h), which other partitions in use do not prevent.

use std::ffi::{c_char, c_int, c_void};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use extant_space::ByteRange;

use crate::disk;
use crate::loop_device::device_number;

/// Unit of sizes in sysfs.
const SECTOR_BYTES: u64 = 512;

// _IO(0x12, 105) of linux/blkpg.h, and its operations.
const BLKPG: libc::Ioctl = 0x1269;
const ADD_PARTITION: c_int = 1;
const DELETE_PARTITION: c_int = 2;
const RESIZE_PARTITION: c_int = 3;

/// `struct blkpg_partition`.
#[repr(C)]
struct BlkpgPartition {
    start: i64,
    length: i64,
    pno: c_int,
    devname: [c_char; 64],
    volname: [c_char; 64],
}

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct BlkpgArgument {
    op: c_int,
    flags: c_int,
    datalen: c_int,
    data: *mut c_void,
}

/// A partition that the kernel has a device for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number in the partition table.
    pub number: u32,
    /// Its place on the disk.
    pub range: ByteRange,
    /// Its device number.
    pub device: u64,
    /// Its node; `None` if `/dev` has none.
    pub node: Option<PathBuf>,
}

/// The partitions of the disk with device number `device`.
pub fn partitions(device: u64) -> Vec<Partition> {
    let Some(sysfs) = disk::node(device) else {
        return Vec::new();
    };
    let entries = fs::read_dir(sysfs).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Partition::of(&entry.path()))
        .collect()
}

impl Partition {
    fn of(sysfs: &Path) -> Option<Self> {
        let number = disk::number(&sysfs.join("partition"))?;
        let start = disk::number(&sysfs.join("start"))?.checked_mul(SECTOR_BYTES)?;
        let length = disk::number(&sysfs.join("size"))?.checked_mul(SECTOR_BYTES)?;
        let device = device_number(sysfs)?;
        let node = Path::new("/dev").join(sysfs.file_name()?);
        let is_node = |metadata: &fs::Metadata| {
            metadata.file_type().is_block_device() && metadata.rdev() == device
        };
        Some(Self {
            number: number.try_into().ok()?,
            range: ByteRange::at(start, length)?,
            device,
            node: fs::metadata(&node)
                .is_ok_and(|found| is_node(&found))
                .then_some(node),
        })
    }
}

/// Makes a device for a partition.
///
/// # Errors
/// `EBUSY` if it overlaps one that the kernel knows, `EINVAL` for a disk without partition devices.
pub fn add(disk: &File, number: u32, range: ByteRange) -> io::Result<()> {
    blkpg(disk, ADD_PARTITION, number, range)
}

/// Removes the device of a partition.
///
/// # Errors
/// `EBUSY` while it is in use, `ENXIO` if there is none.
pub fn remove(disk: &File, number: u32) -> io::Result<()> {
    blkpg(disk, DELETE_PARTITION, number, ByteRange::default())
}

/// Changes the end of the device of a partition.
///
/// # Errors
/// `EBUSY` if it overlaps another one, `ENXIO` if there is none.
pub fn resize(disk: &File, number: u32, range: ByteRange) -> io::Result<()> {
    blkpg(disk, RESIZE_PARTITION, number, range)
}

fn blkpg(disk: &File, op: c_int, number: u32, range: ByteRange) -> io::Result<()> {
    let invalid = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let mut partition = BlkpgPartition {
        start: range.start().try_into().map_err(invalid)?,
        length: range.len().try_into().map_err(invalid)?,
        pno: number.try_into().map_err(invalid)?,
        devname: [0; 64],
        volname: [0; 64],
    };
    let mut argument = BlkpgArgument {
        op,
        flags: 0,
        datalen: size_of::<BlkpgPartition>() as c_int,
        data: (&raw mut partition).cast(),
    };
    // SAFETY: the kernel reads both structures, which live for the call, as does the descriptor.
    match unsafe { libc::ioctl(disk.as_raw_fd(), BLKPG, &raw mut argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
