//! Files and disks of the host as devices.
//!
//! | request | to a file | to a disk |
//! |---|---|---|
//! | read, write | `preadv`, `pwritev`; FUA is `RWF_DSYNC` | the same |
//! | flush | `fdatasync` | the same |
//! | discard | punch hole | `BLKDISCARD` |
//! | zeros, may unmap | punch hole, else zero range | punch hole, else zero range |
//! | zeros, allocated | write zeroes, else zero range | zero range |
//! | zeros, written | write zeroes, else allocate and write data | write data |
//! | assign | allocate, keep size | refused |
//! | status | `FIEMAP`, else `SEEK_DATA` | data |
//!
//! If no method is left, zeros are written as data (unless only fast ones are wanted), a discard
//! does nothing and an assign is refused; a method that the kernel has refused is not tried again.
//!
//! A batch is in flight as a whole, up to the depth, through io_uring, Linux AIO or from threads
//! (`engine.rs`, `batch.rs`); a stream as long as it has input (`stream.rs`). An assign preserves
//! data, also shared (reflinked) data: it remains shared, and a write to it allocates as before. On
//! a copy-on-write file system every write does.
//!
//! A failed flush fails all later flushes, and all that overlapped it (`syncs.rs`): the kernel
//! reports an error once and then forgets the data.

mod batch;
mod bounce;
mod engine;
mod limits;
mod offload;
mod opened_file;
mod options;
mod stream;
mod syncs;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentState, LayerRange, LayerVisitor, Result,
};
use extant_sys::buffer::AlignedBuffer;
use extant_sys::call::{Call, Durability};
use extant_sys::direct::DirectIo;
use extant_sys::extents::{self, MapSource};
use extant_sys::stack::Stack;

use crate::foreground::ForegroundTracker;
use crate::runs::Runs;
use crate::split::submit_within;
use crate::{Device, Features, Geometry, RangeStatus, Request, Transfer, TransferStream};
use batch::Batch;
use bounce::BounceBuffers;
use engine::Engine;
use limits::{Queue, TRANSFER};
use offload::{OffloadMethod, UnsupportedMethods};
use opened_file::{FileKind, OpenedFile};
use stream::Streamed;
use syncs::Syncs;

pub use options::{HostAccess, HostCache, HostEnd, HostEngine, HostOptions};

/// A regular file or a block device of the host, as a device.
///
/// The device has the size of the file in whole logical blocks; a partial block at the end of the
/// file is left alone, unless the options ask for the exact end. If another process truncates the
/// file, reads past its end fail.
pub struct HostDevice {
    file: File,
    path: PathBuf,
    kind: FileKind,
    direct: Option<DirectIo>,
    queue: Queue,
    /// Source of the status; `None` for disks.
    map: Option<MapSource>,
    /// All but the size, which is below.
    geometry: Geometry,
    size: AtomicU64,
    engine: Engine,
    refusals: UnsupportedMethods,
    foreground: ForegroundTracker,
    bounce: BounceBuffers,
    zeroes: AlignedBuffer,
    syncs: Syncs,
}

impl HostDevice {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    /// `InUse` when the file is locked or the block device claimed elsewhere, `WrongType` for other
    /// file types, `ReadOnly`, `Unsupported` when there is no direct I/O or not the engine that the
    /// options require, `InvalidArgument` for options that exclude each other.
    pub fn open(path: impl AsRef<Path>, options: &HostOptions) -> Result<Self> {
        let path = path.as_ref();
        let place = |error: Error| error.during("open").at(path);
        let opened = OpenedFile::open(path, options)?;
        let queue = Queue::of(&opened);
        let mut geometry = limits::geometry(&opened, &queue, options).map_err(place)?;
        let map = match opened.kind {
            FileKind::Disk => None,
            FileKind::File => {
                Some(MapSource::of(&opened.file).map_err(|source| place(source.into()))?)
            }
        };
        if map.is_some_and(MapSource::distinguishes_unwritten) {
            geometry.features |= Features::EXTENTS;
        }
        let device = Self {
            path: path.to_path_buf(),
            kind: opened.kind,
            direct: opened.direct,
            queue,
            map,
            geometry,
            size: AtomicU64::new(0),
            engine: Engine::new(options).map_err(place)?,
            refusals: UnsupportedMethods::default(),
            foreground: ForegroundTracker::default(),
            bounce: BounceBuffers::default(),
            zeroes: AlignedBuffer::new(TRANSFER).map_err(|source| place(source.into()))?,
            syncs: Syncs::default(),
            file: opened.file,
        };
        device.refresh()?;
        Ok(device)
    }

    /// Follows a file or disk whose size has changed, and returns the size of the device.
    pub fn refresh(&self) -> Result<u64> {
        let size = limits::size(&self.file, self.geometry.logical_block)
            .map_err(|source| Error::from(source).during("size").at(&self.path))?;
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// Truncates the file, or extends it by a hole, and follows it. A block device has a fixed
    /// size.
    ///
    /// # Errors
    /// `ReadOnly`, `Unsupported` for a disk, and those of `ftruncate`.
    pub fn resize(&self, file_bytes: u64) -> Result<u64> {
        let place = |error: Error| error.during("resize").at(&self.path);
        if self.geometry.features.contains(Features::READ_ONLY) {
            return Err(place(Error::new(ErrorKind::ReadOnly)));
        }
        if self.kind == FileKind::Disk {
            let error =
                Error::new(ErrorKind::Unsupported).detail("a block device has a fixed size");
            return Err(place(error));
        }
        self.file
            .set_len(file_bytes)
            .map_err(|source| place(source.into()))?;
        self.refresh()
    }

    /// Bytes of the file, the rest of a block at its end among them.
    pub fn file_bytes(&self) -> Result<u64> {
        limits::size(&self.file, 1)
            .map_err(|source| Error::from(source).during("size").at(&self.path))
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The engine at work: [`HostEngine::Threads`] for [`HostEngine::Auto`] without io_uring.
    pub fn engine(&self) -> HostEngine {
        self.engine.kind()
    }

    /// The way sends no data, not even from the kernel to the disk.
    fn is_fast(&self, way: OffloadMethod) -> bool {
        match (self.kind, way) {
            (FileKind::Disk, OffloadMethod::ZeroRange) => self.queue.offloads_zeroes(),
            _ => true,
        }
    }

    /// A call by which the kernel may report failed writeback: a sync, or a durable write through
    /// the page cache.
    fn tells_of_write_back(&self, call: &Call<'_>) -> bool {
        match call {
            Call::SyncData => true,
            Call::Write { durability, .. } => {
                *durability == Durability::Durable && self.direct.is_none()
            }
            _ => false,
        }
    }

    fn sync_error(errno: i32) -> Error {
        Error::from_errno(errno)
            .advice("data written since the last flush may be lost; open the device again")
    }

    /// The extents of a range, whole blocks of the device or not.
    fn visit_extents(
        &self,
        map: MapSource,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut at = range.start();
        let mut flow = ControlFlow::Continue(());
        extents::for_each(&self.file, map, range, &mut |extent| {
            if let Some(extent) = extent.clip(range) {
                flow = visit(extent);
                at = extent.logical.end();
            }
            flow
        })
        .map_err(|source| self.status_error(range, source.into()))?;
        if flow.is_continue() && at < range.end() {
            // The map of a file that was cut may end early.
            flow = visit(Extent::hole(ByteRange::new(at, range.end())));
        }
        Ok(flow)
    }

    fn admit_status(&self, range: ByteRange) -> Result<()> {
        let admitted = self.geometry().admit_status(range);
        admitted.map_err(|error| error.at(&self.path))
    }

    fn status_error(&self, range: ByteRange, error: Error) -> Error {
        error.during("status").in_range(range).at(&self.path)
    }
}

fn status_of(extent: &Extent) -> RangeStatus {
    match extent.state {
        ExtentState::Hole => RangeStatus::Hole,
        ExtentState::Unwritten => RangeStatus::Zero,
        ExtentState::Written => RangeStatus::Data,
    }
}

impl Device for HostDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size.load(Ordering::Relaxed),
            ..self.geometry.clone()
        }
    }

    fn refresh(&self) -> Result<u64> {
        self.refresh()
    }

    fn grow(&self, size: u64) -> Result<()> {
        if size <= self.geometry().size {
            return Ok(());
        }
        self.resize(size).map(drop)
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        submit_within(&self.geometry(), requests, |requests| {
            let mut batch = Batch::new(self);
            for request in requests.iter_mut() {
                batch.add(&mut request.operation);
            }
            self.engine.run(&self.file, &mut batch);
            let results = batch.into_results();
            for (request, result) in requests.iter_mut().zip(results) {
                request.complete(result.map_err(|error| error.at(&self.path)));
            }
        });
    }

    /// As the engine can (`engine.rs`).
    fn run_stream(&self, stream: &mut dyn TransferStream) -> bool {
        let cache = match self.direct {
            None => HostCache::Buffered,
            Some(direct) if direct.memory_bytes <= Transfer::ALIGNMENT => HostCache::Direct,
            // Buffers would have to be copied.
            Some(_) => return false,
        };
        let mut streamed = Streamed::new(self, stream);
        self.engine.run_stream(&self.file, cache, &mut streamed)
    }

    fn shared_memory_alignment(&self) -> Option<usize> {
        let block = self.geometry.logical_block;
        self.direct
            .map(|direct| direct.memory_bytes.max(block) as usize)
    }

    /// A file's dirty pages are written out first. On a file system without `FIEMAP` (tmpfs), a
    /// hole is a range that reads as zeros, with or without space.
    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.admit_status(range)?;
        let _request = self.foreground.begin_request();
        let mut runs = Runs::new(visit);
        let flow = match self.map {
            None => runs.push(range, RangeStatus::Data),
            Some(map) => self.visit_extents(map, range, &mut |extent| {
                runs.push(extent.logical, status_of(&extent))
            })?,
        };
        if flow.is_continue() {
            runs.finish();
        }
        Ok(())
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.admit_status(range)?;
        let _request = self.foreground.begin_request();
        let mut visit = |extent| {
            visit(Extent {
                physical: None,
                ..extent
            })
        };
        let _ = match self.map {
            Some(map) => self.visit_extents(map, range, &mut visit)?,
            None => visit(Extent {
                state: ExtentState::Written,
                ..Extent::hole(range)
            }),
        };
        Ok(())
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let _request = self.foreground.begin_request();
        let fail = |source| self.status_error(at.range, Error::from(source));
        let stack = Stack::below(&self.file).map_err(fail)?;
        let Some(map) = self.map else {
            return stack.visit(at, visit).map_err(fail);
        };
        let name = self.path.to_string_lossy();
        let mut failed = Ok(());
        let flow = self.visit_extents(map, at.range, &mut |extent| {
            let mut flow = visit(&at.extent(&name, extent));
            if flow.is_continue()
                && let Some(below) = at.below(&extent)
            {
                flow = stack.visit(below, visit).unwrap_or_else(|source| {
                    failed = Err(fail(source));
                    ControlFlow::Break(())
                });
            }
            flow
        })?;
        failed.map(|()| flow)
    }

    fn open_store(&self) -> Result<Option<File>> {
        let again = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        match OpenOptions::new().read(true).open(again) {
            Ok(file) => Ok(Some(file)),
            Err(source) => Err(Error::from(source).during("open").at(&self.path)),
        }
    }
}

/// For locks; changes to the file outside of the device are not noticed.
impl AsFd for HostDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.load(Ordering::Relaxed);
        write!(f, "HostDevice({}, {size} bytes)", self.path.display())
    }
}
