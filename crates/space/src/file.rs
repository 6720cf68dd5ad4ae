//! The trait that joins host files and files inside images.

use std::fs::File;
use std::ops::ControlFlow;

use crate::layer::{LayerRange, LayerVisitor};
use crate::{ByteRange, Extent, ExtentState, FallocateMode, Result};

/// Extents that [`SpaceFile::walk_extents`] reads before it visits them.
const WALK_EXTENTS: usize = 1024;

/// Scope of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Data and the metadata needed to read it back (`fdatasync`).
    Data,
    /// Data and all attributes (`fsync`).
    All,
}

/// Detail of a file's extent map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapDetail {
    /// Holes, unwritten and written space.
    States,
    /// Holes and data: unwritten space may appear as data.
    HolesAndData,
    /// Pages in memory: those written are data, all others are holes.
    Pages,
}

/// The kernel's view of a file of the host, for I/O that bypasses [`SpaceFile`].
#[derive(Clone, Copy, Debug)]
pub struct HostIo<'f> {
    /// The open file.
    pub file: &'f File,
    /// Size of a block of the file system, bytes.
    pub block_bytes: u64,
    /// Number (`st_dev`) of the block device below, where there is one.
    pub device: Option<u64>,
}

/// A file whose space can be seen and managed.
///
/// All methods take `&self` and may be called from several threads. The provided methods describe
/// a file inside a file system of this process, whose map is exact and whose written space stays
/// in place; files of the host override them.
pub trait SpaceFile: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> Result<u64>;

    /// Reads at `offset` until `buffer` is full or the file ends; returns the bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes all of `buffer` at `offset`, growing the file as needed.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;

    /// Cuts the file or makes it longer by a hole.
    fn resize(&self, size_bytes: u64) -> Result<()>;

    /// One operation of `fallocate(2)`, as the file system below does it:
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where it does not.
    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()>;

    /// Visits the extents of `range` in order, holes included, until `visit` breaks.
    /// Neighbouring extents may share state and place; nothing is merged.
    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Makes written data durable.
    fn sync(&self, mode: SyncMode) -> Result<()>;

    /// Visits the extents of the layers that store `at`, bytes of this file, until `visit` breaks.
    /// `at.depth` is the number of the first layer below. Each range is followed to the lowest
    /// layer before the next one. Layers without a map are not visited.
    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let _ = (at, visit);
        Ok(ControlFlow::Continue(()))
    }

    /// [`visit_layers`](Self::visit_layers) of `range`, with this file at the top.
    fn for_each_extent_below(&self, range: ByteRange, visit: &mut LayerVisitor<'_>) -> Result<()> {
        let at = LayerRange {
            depth: 1,
            top_start: range.start(),
            range,
        };
        self.visit_layers(at, visit).map(drop)
    }

    /// Whether written space of this file is to be written in the layers below as well.
    fn writes_through(&self) -> bool {
        false
    }

    /// Makes the parts of `range` that are written in this file but hole or unwritten in a layer
    /// below written there too; data stays. Returns the bytes zeroed for that, which are durable
    /// after the next sync. Does nothing unless the file [`writes_through`](Self::writes_through).
    fn write_through(&self, range: ByteRange) -> Result<u64> {
        let _ = range;
        Ok(0)
    }

    /// The extents of `range` in a list. For maps of unknown length prefer
    /// [`for_each_extent`](Self::for_each_extent), which needs no memory.
    fn extents(&self, range: ByteRange) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        self.for_each_extent(range, &mut |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        })?;
        Ok(extents)
    }

    /// Visits the extents of `range` in order, holes included, until `visit` breaks. Unlike in
    /// [`for_each_extent`](Self::for_each_extent), `visit` may use the file: the map is read in
    /// parts, so it shows changes that were made meanwhile.
    fn walk_extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut at = range.start();
        loop {
            let mut part: Vec<Extent> = Vec::new();
            self.for_each_extent(ByteRange::new(at, range.end()), &mut |extent| {
                part.push(extent);
                if part.len() < WALK_EXTENTS {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })?;
            let is_last = part.len() < WALK_EXTENTS;
            for extent in part {
                at = extent.logical.end();
                if let Some(extent) = extent.clip(range)
                    && visit(extent)?.is_break()
                {
                    return Ok(());
                }
            }
            if is_last || at >= range.end() {
                return Ok(());
            }
        }
    }

    /// Detail of the extent map.
    fn map_detail(&self) -> Result<MapDetail> {
        Ok(MapDetail::States)
    }

    /// Bytes of space that the file has.
    fn allocated_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        self.for_each_extent(ByteRange::new(0, self.size()?), &mut |extent| {
            if extent.state != ExtentState::Hole {
                bytes += extent.logical.len();
            }
            ControlFlow::Continue(())
        })?;
        Ok(bytes)
    }

    /// Bytes that the file system has free for this user; `None` where it does not count them.
    fn available_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Fails with [`ErrorKind::CopyOnWrite`](crate::ErrorKind::CopyOnWrite) where an overwrite of
    /// written space allocates.
    fn check_written_stays(&self) -> Result<()> {
        Ok(())
    }

    /// Makes written data durable, as [`sync`](Self::sync). While it waits for the device, `check`
    /// is called every 20 ms, and its error ends the wait.
    fn sync_checked(&self, check: &dyn Fn() -> Result<()>) -> Result<()> {
        check()?;
        self.sync(SyncMode::All)
    }

    /// Opens, for reading, the file or disk of the host that stores this file, in which the
    /// physical places of the extent map are offsets. `None` for a file of the host, which has a
    /// [kernel's view](Self::host_io), and for what is stored in no file.
    fn open_store(&self) -> Result<Option<File>> {
        Ok(None)
    }

    /// The kernel's view; `None` for a file that is not the kernel's.
    fn host_io(&self) -> Option<HostIo<'_>> {
        None
    }
}
