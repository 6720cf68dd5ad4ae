//! A device over a space file, like the kernel's loop driver, with assign passed down.
//!
//! | request | to the file, at the same offset |
//! |---|---|
//! | read, write | read, write; FUA adds a sync of the data |
//! | flush | sync of the data |
//! | discard | punch hole |
//! | write zeroes, may unmap | punch hole |
//! | write zeroes, allocated | zero range |
//! | write zeroes, written | write zeroes, else allocate and write data |
//! | assign | allocate, keep size |
//! | status | the extents |
//!
//! An operation that the file refuses with `Unsupported` is not tried again: zeros are then written
//! as data (unless only fast ones are wanted), a discard does nothing, an assign is refused.
//!
//! A batch runs on a few threads. Its assigns run sequentially on one of them, lowest offset first:
//! concurrent ones would wait for the same inode and interleave their extents. Between the parts of
//! a large assign the file is free for others. One sync at the end serves every flush and FUA write
//! of the batch.

mod batch;
mod modes;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_space::{
    ByteRange, Error, ErrorKind, Extent, ExtentState, FallocateMode, LayerRange, LayerVisitor,
    Result, SpaceFile, SyncMode,
};

use crate::foreground::{AssignThrottle, ForegroundTracker};
use crate::runs::Runs;
use crate::split::submit_within;
use crate::{
    Device, Features, Geometry, Limits, Operation, Persistence, RangeLimit, RangeStatus, Request,
    Speed, ZeroedSpace, Zeroing,
};
use modes::Modes;

/// Zeros written as data.
const ZEROES: &[u8] = &[0; 64 << 10];
/// A kernel file system allocates so much in a few milliseconds, while others wait for the inode.
const ASSIGN_MAX: u64 = 1 << 30;

/// Options of a device over a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopOptions {
    /// First byte of the file that belongs to the device.
    pub offset: u64,
    /// Bytes of the device; `None`: up to the end of the file, in whole logical blocks.
    pub size: Option<u64>,
    /// A power of two.
    pub logical_block: u32,
    /// Whether anything may be changed.
    pub access: LoopAccess,
    /// Most bytes of one allocation, for which others wait; while they do, allocations are smaller.
    pub assign_max: u64,
    /// Most threads at work on one batch, the caller's among them; at least 1.
    pub threads: usize,
}

/// Access to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopAccess {
    /// Everything.
    ReadWrite,
    /// Reading; the device says [`Features::READ_ONLY`].
    ReadOnly,
}

impl Default for LoopOptions {
    /// The whole file, in blocks of 512 bytes, by up to four threads.
    fn default() -> Self {
        Self {
            offset: 0,
            size: None,
            logical_block: 512,
            access: LoopAccess::ReadWrite,
            assign_max: ASSIGN_MAX,
            threads: 4,
        }
    }
}

/// A block device whose blocks are those of a file.
///
/// Opening or growing the device never extends the file. If another user truncates it, reads past
/// its end fail, and writes extend it again.
pub struct LoopDevice<F: ?Sized = dyn SpaceFile> {
    file: Arc<F>,
    options: LoopOptions,
    /// All but the size, which is below.
    geometry: Geometry,
    size: AtomicU64,
    modes: Modes,
    foreground: ForegroundTracker,
}

impl<F: SpaceFile + ?Sized> LoopDevice<F> {
    /// A device over `file`.
    ///
    /// # Errors
    /// `InvalidArgument` if the file is shorter than offset and size require.
    ///
    /// # Panics
    /// When the logical block is no power of two, or no thread is allowed.
    pub fn new(file: Arc<F>, options: LoopOptions) -> Result<Self> {
        let block = options.logical_block;
        assert!(block.is_power_of_two(), "logical block of {block} bytes");
        assert!(options.threads > 0, "no thread to work on a batch");
        let assign_max = options.assign_max.max(u64::from(block)) & !u64::from(block - 1);
        let mut features = match options.access {
            LoopAccess::ReadOnly => Features::READ_ONLY,
            LoopAccess::ReadWrite => {
                Features::DISCARD
                    | Features::WRITE_ZEROES
                    | Features::WRITE_ZEROES_UNMAP
                    | Features::WRITE_ZEROES_ALLOCATE
                    | Features::ASSIGN
            }
        } | Features::VOLATILE_CACHE;
        let first = ByteRange::new(options.offset, options.offset.saturating_add(1));
        if file
            .for_each_extent(first, &mut |_| ControlFlow::Break(()))
            .is_ok()
        {
            features |= Features::STATUS | Features::EXTENTS;
        }
        let geometry = Geometry {
            size: 0,
            logical_block: block,
            physical_block: block.max(4096),
            limits: Limits {
                assign: RangeLimit::at_most(assign_max),
                ..Limits::NONE
            },
            features,
        };
        let device = Self {
            file,
            options,
            geometry,
            size: AtomicU64::new(0),
            modes: Modes::default(),
            foreground: ForegroundTracker::default(),
        };
        device.refresh()?;
        Ok(device)
    }

    /// Follows a file whose size has changed, and returns the size of the device. A device of a
    /// fixed size keeps it.
    ///
    /// # Errors
    /// `InvalidArgument` when the file no longer holds the offset or the fixed size; nothing is
    /// changed then.
    pub fn refresh(&self) -> Result<u64> {
        let file_size = self.file.size()?;
        let too_short = || {
            let detail = format!(
                "the file has {file_size} bytes, too few for {} bytes from {}",
                self.options.size.unwrap_or(0),
                self.options.offset
            );
            Error::new(ErrorKind::InvalidArgument).detail(detail)
        };
        let room = file_size.checked_sub(self.options.offset);
        let room = room.ok_or_else(too_short)?;
        let block = u64::from(self.options.logical_block);
        let size = match self.options.size {
            Some(fixed) if fixed > room => return Err(too_short()),
            Some(fixed) if !fixed.is_multiple_of(block) => {
                let detail = format!("{fixed} bytes are not whole blocks of {block} bytes");
                return Err(Error::new(ErrorKind::InvalidArgument).detail(detail));
            }
            Some(fixed) => fixed,
            None => room & !(block - 1),
        };
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// The file below.
    pub fn file(&self) -> &Arc<F> {
        &self.file
    }

    /// Runs an operation other than assign, without the sync of a flush or FUA.
    fn execute(&self, operation: &mut Operation<'_>) -> Result<()> {
        let _request = self.foreground.begin_request();
        match operation {
            Operation::Read { offset, into } => {
                let mut at = *offset;
                for part in into {
                    self.read(part, at)?;
                    at += part.len() as u64;
                }
                Ok(())
            }
            Operation::Write { offset, from, .. } => {
                let mut at = *offset;
                for part in from {
                    self.write(part, at)?;
                    at += part.len() as u64;
                }
                Ok(())
            }
            Operation::Flush => Ok(()),
            Operation::Discard(range) => match self.fallocate(FallocateMode::PunchHole, *range) {
                Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
                result => result,
            },
            Operation::WriteZeroes(range, zeroing) => self.zero(*range, *zeroing),
            Operation::Assign(_) => unreachable!("an assign has a throttle"),
        }
    }

    fn read(&self, into: &mut [u8], offset: u64) -> Result<()> {
        let wanted = ByteRange::new(offset, offset + into.len() as u64);
        let read = self
            .file
            .read_at(into, offset + self.options.offset)
            .map_err(|error| error.in_range_above(wanted))?;
        if read == into.len() {
            return Ok(());
        }
        let missing = ByteRange::new(offset + read as u64, wanted.end());
        Err(Error::new(ErrorKind::Io)
            .detail("the file below ends before the device does")
            .in_range(missing))
    }

    fn write(&self, from: &[u8], offset: u64) -> Result<()> {
        self.file
            .write_at(from, offset + self.options.offset)
            .map_err(|error| {
                error.in_range_above(ByteRange::new(offset, offset + from.len() as u64))
            })
    }

    fn zero(&self, range: ByteRange, zeroing: Zeroing) -> Result<()> {
        let modes: &[FallocateMode] = match zeroing.space {
            ZeroedSpace::MayUnmap => &[FallocateMode::PunchHole],
            ZeroedSpace::Allocated => &[FallocateMode::ZeroRangeKeepSize],
            ZeroedSpace::Written => &[FallocateMode::WriteZeroes],
        };
        for mode in modes {
            match self.fallocate(*mode, range) {
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                result => return result,
            }
        }
        match zeroing.speed {
            Speed::OnlyIfFast => Err(Error::new(ErrorKind::Unsupported)
                .detail("the file below takes zeros only as data")
                .in_range(range)),
            Speed::Any => {
                if zeroing.space == ZeroedSpace::Written {
                    // Data that follows an allocation is in as few extents as the allocation.
                    match self.fallocate(FallocateMode::AllocateKeepSize, range) {
                        Err(error) if error.kind() != ErrorKind::Unsupported => return Err(error),
                        _ => {}
                    }
                }
                range.chunks(ZEROES.len() as u64).try_for_each(|piece| {
                    self.write(&ZEROES[..piece.len() as usize], piece.start())
                })
            }
        }
    }

    fn assign(&self, range: ByteRange, throttle: &mut AssignThrottle<'_>) -> Result<()> {
        let mut rest = range;
        while !rest.is_empty() {
            throttle.yield_to_foreground();
            let piece = throttle.take_chunk(&mut rest);
            self.fallocate(FallocateMode::AllocateKeepSize, piece)?;
        }
        Ok(())
    }

    /// Without asking the file again when it has refused before.
    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        if self.modes.is_refused(mode) {
            return Err(Error::new(ErrorKind::Unsupported)
                .detail(format!("the file below does not offer '{mode}'"))
                .in_range(range));
        }
        let result = self.file.fallocate(mode, self.in_file(range));
        if let Err(error) = &result
            && error.kind() == ErrorKind::Unsupported
        {
            self.modes.refuse(mode);
        }
        result.map_err(|error| error.in_range_above(range))
    }

    fn in_file(&self, range: ByteRange) -> ByteRange {
        let offset = self.options.offset;
        ByteRange::new(range.start() + offset, range.end() + offset)
    }

    /// The extents of a range, at their places on the device.
    fn visit_extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let mut at = range.start();
        let mut flow = ControlFlow::Continue(());
        let wanted = self.in_file(range);
        self.file.for_each_extent(wanted, &mut |extent| {
            if let Some(extent) = extent.clip(wanted) {
                let offset = self.options.offset;
                let (start, end) = (extent.logical.start(), extent.logical.end());
                let logical = ByteRange::new(start - offset, end - offset);
                at = logical.end();
                flow = visit(Extent {
                    logical,
                    physical: None,
                    ..extent
                });
            }
            flow
        })?;
        if flow.is_continue() && at < range.end() {
            // The map of a file that was cut ends early.
            flow = visit(Extent::hole(ByteRange::new(at, range.end())));
        }
        Ok(flow)
    }
}

fn status_of(extent: &Extent) -> RangeStatus {
    match extent.state {
        ExtentState::Hole => RangeStatus::Hole,
        ExtentState::Unwritten => RangeStatus::Zero,
        ExtentState::Written => RangeStatus::Data,
    }
}

impl<F: SpaceFile + ?Sized> Device for LoopDevice<F> {
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
        if size > self.geometry().size {
            self.file.resize(size)?;
            self.refresh()?;
        }
        Ok(())
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        submit_within(&self.geometry(), requests, |requests| {
            let mut throttle = None;
            batch::run(
                requests,
                self.options.threads,
                &|operation| self.execute(operation),
                &mut |range| {
                    let throttle = throttle.get_or_insert_with(|| self.foreground.begin_assign());
                    self.assign(range, throttle)
                },
            );
            let wants_sync = |request: &Request<'_>| match request.operation {
                Operation::Flush => true,
                Operation::Write { persistence, .. } => persistence == Persistence::Fua,
                Operation::WriteZeroes(_, zeroing) => zeroing.persistence == Persistence::Fua,
                _ => false,
            };
            if !requests.iter().any(wants_sync) {
                return;
            }
            let _request = self.foreground.begin_request();
            if let Err(error) = self.file.sync(SyncMode::Data) {
                for request in requests.iter_mut().filter(|request| wants_sync(request)) {
                    request.complete(Err(Error::caused_by(error.clone())));
                }
            }
        });
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.geometry().admit_status(range)?;
        if !self.geometry.features.contains(Features::STATUS) {
            let _ = visit(range, RangeStatus::Data);
            return Ok(());
        }
        let _request = self.foreground.begin_request();
        let mut runs = Runs::new(visit);
        let flow = self.visit_extents(range, &mut |extent| {
            runs.push(extent.logical, status_of(&extent))
        })?;
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
        self.geometry().admit_status(range)?;
        if !self.geometry.features.contains(Features::STATUS) {
            let _ = visit(Extent {
                state: ExtentState::Written,
                ..Extent::hole(range)
            });
            return Ok(());
        }
        let _request = self.foreground.begin_request();
        self.visit_extents(range, visit).map(drop)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let at = LayerRange {
            range: self.in_file(at.range),
            ..at
        };
        if self.geometry.features.contains(Features::STATUS) {
            let mut flow = ControlFlow::Continue(());
            self.file.for_each_extent(at.range, &mut |extent| {
                if let Some(extent) = extent.clip(at.range) {
                    flow = visit(&at.extent("loop", extent));
                }
                flow
            })?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        let below = LayerRange {
            depth: at.depth + 1,
            ..at
        };
        self.file.visit_layers(below, visit)
    }
}
