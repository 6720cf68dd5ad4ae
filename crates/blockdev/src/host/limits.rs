//! The geometry of a file or disk, asked of the kernel.
//!
//! | | file | disk |
//! |---|---|---|
//! | logical block | alignment of direct I/O; 512 through the page cache; 1 to reach the exact end of a file | `BLKSSZGET` |
//! | physical block | block of the file system | `BLKPBSZGET` |
//! | limits | bounds on the length of a call | the queue in sysfs |
//!
//! Support by a file is unknown before the first attempt: the features say yes, and a method that
//! was refused is answered as if it had never been offered.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use extant_space::{Error, ErrorKind, Result};
use extant_sys::disk;
use rustix::fs::SeekFrom;

use super::opened_file::{FileKind, OpenedFile};
use super::options::{HostAccess, HostEnd, HostOptions};
use crate::{Features, Geometry, Limits, RangeLimit};

/// Bytes of one read or write: long enough for a disk, short enough for a large request to have
/// several in flight.
pub(super) const TRANSFER: usize = 1 << 20;
/// A sector, where the kernel has no say.
const SECTOR: u32 = 512;
/// Larger blocks of a file system (network file systems) say nothing of a disk.
const PHYSICAL_MAX: u64 = 64 << 10;
/// Freed or zeroed by a file system in one call.
const SPACE_MAX: u64 = 1 << 30;
/// Zeros that the kernel has to send to a disk itself, in one call.
const SENT_ZEROES_MAX: u64 = 16 << 20;

/// The disk's queue; `None` for files.
pub(super) struct Queue(Option<PathBuf>);

impl Queue {
    pub(super) fn of(opened: &OpenedFile) -> Self {
        Self(match opened.kind {
            FileKind::File => None,
            FileKind::Disk => disk::directory(opened.metadata.rdev()),
        })
    }

    fn number(&self, name: &str) -> u64 {
        let directory = self.0.as_deref();
        directory
            .and_then(|directory| disk::queue_number(directory, name))
            .unwrap_or(0)
    }

    fn says(&self, name: &str, text: &str) -> bool {
        let directory = self.0.as_deref();
        directory
            .and_then(|directory| disk::queue_text(directory, name))
            .as_deref()
            == Some(text)
    }

    /// Whether the disk writes zeroes without being sent any. The kernel revokes it when the disk
    /// refuses, so it is queried each time.
    pub(super) fn offloads_zeroes(&self) -> bool {
        self.number("write_zeroes_max_bytes") > 0
    }
}

/// All of the geometry but the size, which is 0.
pub(super) fn geometry(
    opened: &OpenedFile,
    queue: &Queue,
    options: &HostOptions,
) -> Result<Geometry> {
    let file = &opened.file;
    let (logical_block, physical_block) = match opened.kind {
        FileKind::File => {
            let logical = opened
                .direct
                .map_or(SECTOR, |direct| direct.offset_bytes.max(SECTOR));
            let file_bytes = size(file, 1)?;
            let is_exact =
                options.end == HostEnd::Exact && !file_bytes.is_multiple_of(logical.into());
            if is_exact && opened.direct.is_some() {
                return Err(Error::new(ErrorKind::Unsupported)
                    .detail(format!(
                        "the file of {file_bytes} bytes ends inside a block of {logical}, which direct I/O cannot reach"
                    ))
                    .advice("open it through the page cache"));
            }
            let logical = if is_exact { 1 } else { logical };
            let block = rustix::fs::fstatvfs(file).map_err(io::Error::from)?.f_bsize;
            let is_usual = block.is_power_of_two() && block <= PHYSICAL_MAX;
            (logical, if is_usual { block as u32 } else { 4096 })
        }
        FileKind::Disk => (
            rustix::fs::ioctl_blksszget(file).map_err(io::Error::from)?,
            rustix::fs::ioctl_blkpbszget(file).map_err(io::Error::from)?,
        ),
    };
    if !logical_block.is_power_of_two() || logical_block as usize > TRANSFER {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail(format!("logical blocks of {logical_block} bytes")));
    }
    let physical_block = physical_block.max(logical_block);
    let limits = match opened.kind {
        FileKind::File => file_limits(physical_block, logical_block, options),
        FileKind::Disk => disk_limits(queue, logical_block),
    };
    Ok(Geometry {
        size: 0,
        logical_block,
        physical_block,
        limits,
        features: features(opened, queue, options),
    })
}

fn file_limits(block: u32, logical_block: u32, options: &HostOptions) -> Limits {
    let in_blocks = |bytes| RangeLimit {
        bytes,
        granularity: u64::from(block),
    };
    let logical_block = u64::from(logical_block);
    Limits {
        transfer: TRANSFER as u64,
        discard: in_blocks(SPACE_MAX),
        write_zeroes: RangeLimit::at_most(SPACE_MAX),
        assign: in_blocks(options.assign_max.max(logical_block) & !(logical_block - 1)),
    }
}

fn disk_limits(queue: &Queue, logical_block: u32) -> Limits {
    let logical_block = u64::from(logical_block);
    // A power of two, so that a cut is at a multiple of any block and granule.
    let round = |bytes: u64, otherwise| match bytes.max(logical_block).checked_ilog2() {
        Some(log) if bytes > 0 => 1 << log,
        _ => otherwise,
    };
    let granularity = queue.number("discard_granularity");
    Limits {
        transfer: TRANSFER as u64,
        discard: RangeLimit {
            bytes: round(queue.number("discard_max_bytes"), SPACE_MAX),
            granularity: round(granularity, logical_block),
        },
        write_zeroes: RangeLimit::at_most(round(
            queue.number("write_zeroes_max_bytes"),
            SENT_ZEROES_MAX,
        )),
        assign: RangeLimit::at_most(SPACE_MAX),
    }
}

fn features(opened: &OpenedFile, queue: &Queue, options: &HostOptions) -> Features {
    let mut features = Features::empty();
    let is_direct = opened.direct.is_some();
    let writes_through = is_direct && queue.says("write_cache", "write through");
    features.set(Features::VOLATILE_CACHE, !writes_through);
    match opened.kind {
        FileKind::File => {
            features |= Features::STATUS;
            features.set(Features::FUA, is_direct);
        }
        FileKind::Disk => features.set(Features::FUA, is_direct && queue.says("fua", "1")),
    }
    if options.access == HostAccess::ReadOnly {
        return features | Features::READ_ONLY;
    }
    match opened.kind {
        FileKind::File => {
            features
                | Features::DISCARD
                | Features::WRITE_ZEROES
                | Features::WRITE_ZEROES_UNMAP
                | Features::WRITE_ZEROES_ALLOCATE
                | Features::ASSIGN
        }
        FileKind::Disk => {
            let zeroes = Features::WRITE_ZEROES | Features::WRITE_ZEROES_UNMAP;
            features.set(zeroes, queue.offloads_zeroes());
            features.set(Features::DISCARD, queue.number("discard_max_bytes") > 0);
            features | Features::WRITE_ZEROES_ALLOCATE
        }
    }
}

/// Bytes of the file or disk, in whole logical blocks.
pub(super) fn size(file: &File, logical_block: u32) -> io::Result<u64> {
    let end = rustix::fs::seek(file, SeekFrom::End(0))?;
    Ok(end & !(u64::from(logical_block) - 1))
}
