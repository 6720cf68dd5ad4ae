//! The sources of the extent map of a host file.
//!
//! FIEMAP reports all three states. On a file system without it (tmpfs, FUSE, NFS),
//! `SEEK_DATA`/`SEEK_HOLE` distinguishes holes from data, and the file system chooses which of the
//! two *unwritten* space is; a file system with neither shows one data extent. What a map can prove
//! depends on its source: see [`MapSource`].

use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde::Serialize;

use crate::fiemap::{self, Batch, Flush};
use crate::mounted;

/// The interface through which the map of a file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapSource {
    /// `FS_IOC_FIEMAP`: states, flags and places.
    Fiemap,
    /// The control call of a mount of Extant: states and places.
    ExtantMount,
    /// `SEEK_DATA` and `SEEK_HOLE`: holes and data, no places.
    Seek,
}

impl MapSource {
    /// The best source that works for `file`.
    pub fn of(file: &File) -> io::Result<Self> {
        match fiemap::next_batch(file, ByteRange::new(0, 1), Flush::No) {
            Ok(_) => Ok(Self::Fiemap),
            Err(error) => match error.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::ENOSYS | libc::EINVAL) => {
                    Self::without_fiemap(file)
                }
                _ => Err(error),
            },
        }
    }

    fn without_fiemap(file: &File) -> io::Result<Self> {
        // Drivers of devices have calls of their own.
        let is_mounted = file.metadata()?.is_file() && mounted::probe(file)?.is_some();
        Ok(if is_mounted {
            Self::ExtantMount
        } else {
            Self::Seek
        })
    }

    /// Whether the map distinguishes unwritten from written space.
    pub fn distinguishes_unwritten(self) -> bool {
        match self {
            Self::Fiemap | Self::ExtantMount => true,
            Self::Seek => false,
        }
    }
}

/// Visits the extents of `range` in order, holes included, until `visit` breaks. If the source
/// reports states, dirty data is written back first.
pub fn for_each(
    file: &File,
    source: MapSource,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
) -> io::Result<()> {
    for_each_after(file, source, Flush::First, range, visit)
}

/// [`for_each`] after this flush of dirty data.
pub(crate) fn for_each_after(
    file: &File,
    source: MapSource,
    mut flush: Flush,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
) -> io::Result<()> {
    match source {
        MapSource::Fiemap => for_each_batch(range, visit, |rest| {
            let batch = fiemap::next_batch(file, rest, flush)?;
            flush = Flush::No;
            Ok(batch)
        }),
        MapSource::ExtantMount => for_each_batch(range, visit, |rest| mounted_batch(file, rest)),
        MapSource::Seek => for_each_seek(file, range, visit),
    }
}

fn for_each_batch(
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    mut next_batch: impl FnMut(ByteRange) -> io::Result<Batch>,
) -> io::Result<()> {
    let mut at = range.start();
    while at < range.end() {
        let batch = next_batch(ByteRange::new(at, range.end()))?;
        let before = at;
        for extent in &batch.extents {
            // An extent can move while the map is read in batches: a reported part is not reported
            // again.
            let rest = ByteRange::new(at, range.end());
            let Some(extent) = extent.clip(rest) else {
                continue;
            };
            if extent.logical.start() > at
                && visit(Extent::hole(ByteRange::new(at, extent.logical.start()))).is_break()
            {
                return Ok(());
            }
            at = extent.logical.end();
            if visit(extent).is_break() {
                return Ok(());
            }
        }
        if batch.is_last || at == before {
            break;
        }
    }
    if at < range.end() {
        let _ = visit(Extent::hole(ByteRange::new(at, range.end())));
    }
    Ok(())
}

fn mounted_batch(file: &File, range: ByteRange) -> io::Result<Batch> {
    let page = mounted::extents(file, range)?;
    let extents = page.extents().iter().map(|extent| {
        let impossible = || io::Error::other("the mount reported an impossible extent");
        extent.to_extent().ok_or_else(impossible)
    });
    Ok(Batch {
        extents: extents.collect::<io::Result<_>>()?,
        is_last: page.length == 0,
    })
}

fn for_each_seek(
    file: &File,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut at = range.start();
    while at < range.end() {
        let data = seek(file, SeekFrom::Data(at))?
            .unwrap_or(range.end())
            .min(range.end());
        if data > at && visit(Extent::hole(ByteRange::new(at, data))).is_break() {
            return Ok(());
        }
        if data == range.end() {
            return Ok(());
        }
        let end = seek(file, SeekFrom::Hole(data))?
            .unwrap_or(range.end())
            .min(range.end());
        let extent = Extent {
            logical: ByteRange::new(data, end.max(data + 1)),
            physical: None,
            state: ExtentState::Written,
            flags: ExtentFlags::empty(),
        };
        at = extent.logical.end();
        if visit(extent).is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// `None`: nothing of the kind up to the end of the file.
fn seek(file: &File, to: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, to) {
        Ok(offset) => Ok(Some(offset)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
