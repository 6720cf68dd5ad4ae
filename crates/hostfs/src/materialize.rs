//! Holes and unwritten parts become written zeros; existing data is preserved.
//!
//! Order: exclude other writers, refuse what cannot stay in place, allocate the
//! holes in requests as large as possible, write zeros over what is still
//! unwritten, sync, hold the result against the map.
//!
//! What keeps data safe:
//! - zeros go only where the map, read after a flush, says hole or unwritten;
//! - a write lease keeps everybody else out, as data written between the look at
//!   the map and the write of zeros would be lost ([`Exclusion::Shared`] gives that
//!   up for callers who know that nobody writes);
//! - a cancel or an error waits for every zero in flight.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use extant_space::{
    ByteRange, Control, Error, ErrorKind, ExtentFlags, ExtentState, FallocateMode, Phase, Result,
    SpaceFile, SyncMode,
};
use rustix::fs::IFlags;
use serde::Serialize;

use crate::extents::MapSource;
use crate::file::{Access, HostFile};
use crate::filesystem::{FileSystem, FileSystemKind};
use crate::holders;
use crate::pace::{Pace, Pacer};
use crate::plan::{Plan, Strategy, refusal};
use crate::swap;
use crate::sys::lease::WriteLease;
use crate::verify::{self, Verified};
use crate::zero_writer::ZeroWriter;

/// A request for space is answered in about this long, so that a cancel is.
const CALL: Duration = Duration::from_millis(40);
/// Space asked for in one request: at first, and at most. Large, so that the allocator sees
/// what is wanted; an extent of ext4 ends at 128 MiB, one of XFS at 8 GiB.
const ALLOCATE_START: u64 = 16 << 30;
const ALLOCATE_MAX: u64 = 256 << 30;
/// In memory, allocating means zeroing pages.
const ALLOCATE_MEMORY: u64 = 32 << 20;
/// Zeroed by the kernel in one request: at first, and at most.
const WRITE_ZEROES_START: u64 = 64 << 20;
const WRITE_ZEROES_MAX: u64 = 16 << 30;
/// Pieces of a range end at multiples of this, which is a multiple of any block.
const CUT: u64 = 1 << 20;
/// Granularity of paced requests, bytes: a multiple of any block.
const PACED_UNIT: u32 = 64 << 10;
/// How long somebody who has the file open is waited for: a process just started holds what its
/// parent had open for a moment, and so does a look at a file by an indexer.
const LEASE_PATIENCE: Duration = Duration::from_millis(200);
/// Looked at in one piece where holes cannot be told from data.
const LOOK_THROUGH: u64 = 1 << 20;

/// How other writers are kept out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Exclusion {
    /// By a write lease: refused when somebody has the file open, stopped when somebody opens it.
    #[default]
    Lease,
    /// Not at all: the caller knows that nobody writes to the holes.
    Shared,
}

/// What is done about parts shared with other files (reflinks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shared {
    /// The file is refused: its next overwrite would allocate.
    #[default]
    Refuse,
    /// The parts get space of their own (`FALLOC_FL_UNSHARE_RANGE`), data preserved.
    Unshare,
}

/// Options of [`materialize`].
#[derive(Clone, Copy, Debug, Default)]
pub struct MaterializeOptions {
    /// The bytes to make real; `None`: the whole file. Cut at the end of the file.
    pub range: Option<ByteRange>,
    /// How other writers are kept out.
    pub exclusion: Exclusion,
    /// What is done about shared parts.
    pub shared: Shared,
    /// How the disk is used.
    pub pace: Pace,
}

/// What [`materialize`] did.
#[derive(Clone, Debug, Serialize)]
pub struct MaterializeReport {
    /// The bytes that are extant now.
    pub range: ByteRange,
    /// Bytes of it that were written before.
    pub already_written_bytes: u64,
    /// Bytes of zeros written, by the kernel or by us.
    pub zeroed_bytes: u64,
    /// Bytes that got space of their own.
    pub unshared_bytes: u64,
    /// The way taken; `None` when nothing was missing.
    pub plan: Option<Plan>,
    /// What the result was held against.
    pub verified: Verified,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

/// Makes the holes and unwritten parts of `path` written.
///
/// Fails with [`ErrorKind::InUse`] when somebody has the file open,
/// [`ErrorKind::CopyOnWrite`] when written space would not stay,
/// [`ErrorKind::NoSpace`] with what is missing, before anything is changed. After
/// [`ErrorKind::Cancelled`] or an error of the device the data is as before, and
/// running again does what is left.
pub fn materialize(
    path: &Path,
    options: &MaterializeOptions,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    materialize_file(path, options, control).map_err(|error| error.at(path))
}

fn materialize_file(
    path: &Path,
    options: &MaterializeOptions,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    let started = Instant::now();
    let file = HostFile::open(path, Access::ReadWrite)?;
    let metadata = file.metadata()?;
    if !metadata.file_type().is_file() {
        return Err(crate::file::wrong_type(path));
    }
    swap::check_is_none(path, metadata.dev(), metadata.ino())?;
    let attributes = file.attributes();
    if attributes.intersects(IFlags::IMMUTABLE | IFlags::APPEND) {
        return Err(Error::new(ErrorKind::Immutable)
            .at(path)
            .advice("chattr -i -a lifts it"));
    }
    let lease = match options.exclusion {
        Exclusion::Lease => Some(take_lease(&file)?),
        Exclusion::Shared => None,
    };
    let size = file.size()?;
    let whole = ByteRange::new(0, size);
    let range = match options.range {
        None => whole,
        Some(range) => range.intersection(whole).unwrap_or_default(),
    };
    let filesystem = FileSystem::of(file.as_file()).map_err(|error| error.at(path))?;
    if let Some(why) = filesystem.moves_written_space(attributes) {
        return Err(Error::new(ErrorKind::CopyOnWrite)
            .at(path)
            .detail(format!(
                "space made written here would not stay in place: {why}"
            ))
            .advice("NOCOW can be set on an empty file only: extant create --nocow makes one"));
    }
    let before = survey(&file, range)?;
    let unshared_bytes = match (before.shared_bytes, options.shared) {
        (0, _) => 0,
        (bytes, Shared::Unshare) => {
            unshare(&file, range, control)?;
            bytes
        }
        (bytes, Shared::Refuse) => {
            return Err(Error::new(ErrorKind::CopyOnWrite)
                .at(path)
                .detail(format!(
                    "{bytes} bytes are shared with other files (reflinks): their next overwrite would allocate"
                ))
                .advice("--unshare gives them space of their own"));
        }
    };
    check_space(&file, &filesystem, before.hole_bytes)?;
    let made = make_written(
        &file,
        &filesystem,
        range,
        options.pace,
        control,
        lease.as_ref(),
    )?;
    let verified = verify::written(&file, &filesystem, range, verify::Contents::Any, control)?;
    Ok(MaterializeReport {
        range,
        already_written_bytes: made.already_written_bytes,
        zeroed_bytes: made.zeroed_bytes,
        unshared_bytes,
        plan: made.plan,
        verified,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    })
}

fn take_lease(file: &HostFile) -> Result<WriteLease<'_>> {
    let deadline = Instant::now() + LEASE_PATIENCE;
    let refused = loop {
        match WriteLease::take(file.as_file()) {
            Ok(lease) => return Ok(lease),
            Err(source) if source.raw_os_error() != Some(libc::EAGAIN) => break source,
            Err(source) if Instant::now() >= deadline => break source,
            Err(_) => std::thread::sleep(LEASE_PATIENCE / 20),
        }
    };
    let errno = refused.raw_os_error();
    let error = file.error(refused);
    Err(match errno {
        Some(libc::EAGAIN) => {
            let who = holders::describe(file.path())
                .unwrap_or_else(|| "a process that cannot be seen from here".to_owned());
            error
                .with_kind(ErrorKind::InUse)
                .detail(format!("the file is open elsewhere: {who}"))
                .advice("stop it, or use --shared if nobody writes to the file's holes")
        }
        Some(libc::EACCES | libc::EPERM) => error
            .with_kind(ErrorKind::PermissionDenied)
            .detail("other writers cannot be kept out: a lease needs the file's owner or CAP_LEASE")
            .advice("use --shared if nobody writes to the file's holes"),
        _ => error
            .with_kind(ErrorKind::Unsupported)
            .detail("other writers cannot be kept out: this file system has no leases")
            .advice("use --shared if nobody writes to the file's holes"),
    })
}

/// Nobody waits to open the file.
pub(crate) fn check_lease(file: &HostFile, lease: Option<&WriteLease<'_>>) -> Result<()> {
    if lease.is_some_and(WriteLease::is_contended) {
        return Err(Error::new(ErrorKind::InUse)
            .at(file.path())
            .detail("stopped, as somebody opens the file; its data is as before")
            .advice("run again later to do what is left"));
    }
    Ok(())
}

/// Bytes of a range by what is to be done about them.
#[derive(Clone, Copy, Debug, Default)]
struct Survey {
    hole_bytes: u64,
    written_bytes: u64,
    shared_bytes: u64,
}

fn survey(file: &HostFile, range: ByteRange) -> Result<Survey> {
    let mut survey = Survey::default();
    file.for_each_extent(range, &mut |extent| {
        let bytes = extent.logical.len();
        match extent.state {
            ExtentState::Hole => survey.hole_bytes += bytes,
            ExtentState::Unwritten => {}
            ExtentState::Written => survey.written_bytes += bytes,
        }
        if extent.flags.contains(ExtentFlags::SHARED) {
            survey.shared_bytes += bytes;
        }
        ControlFlow::Continue(())
    })?;
    Ok(survey)
}

fn unshare(file: &HostFile, range: ByteRange, control: Control<'_>) -> Result<()> {
    for piece in range.chunks(LOOK_THROUGH * 64) {
        control.cancel.check()?;
        file.fallocate(FallocateMode::UnshareRange, piece)
            .map_err(|error| match error.kind() {
                ErrorKind::Unsupported => error
                    .with_kind(ErrorKind::CopyOnWrite)
                    .detail("this file system cannot unshare; copy the file instead"),
                _ => error,
            })?;
    }
    Ok(())
}

/// Fails with the missing amount when `wanted_bytes` do not fit.
pub(crate) fn check_space(
    file: &HostFile,
    filesystem: &FileSystem,
    wanted_bytes: u64,
) -> Result<()> {
    // A file system that does not count (some FUSE) shows a size of 0.
    if filesystem.total_bytes == 0 || wanted_bytes <= filesystem.available_bytes {
        return Ok(());
    }
    let missing = wanted_bytes - filesystem.available_bytes;
    Err(Error::new(ErrorKind::NoSpace)
        .at(file.path())
        .detail(format!(
            "no space: {} wanted, {} available, {} missing",
            size(wanted_bytes),
            size(filesystem.available_bytes),
            size(missing)
        )))
}

fn size(bytes: u64) -> String {
    extant_space::ByteSize(bytes).to_string()
}

/// What [`make_written`] did.
pub(crate) struct Made {
    pub(crate) plan: Option<Plan>,
    pub(crate) already_written_bytes: u64,
    pub(crate) zeroed_bytes: u64,
}

/// Allocates the holes of `range`, which must lie inside the file, and writes zeros over what
/// is not written. The caller keeps others out and has looked for shared parts. Synced on return.
pub(crate) fn make_written(
    file: &HostFile,
    filesystem: &FileSystem,
    range: ByteRange,
    pace: Pace,
    control: Control<'_>,
    lease: Option<&WriteLease<'_>>,
) -> Result<Made> {
    let before = survey(file, range)?;
    let total = range.len();
    let mut made = Made {
        plan: None,
        already_written_bytes: before.written_bytes,
        zeroed_bytes: 0,
    };
    let is_blind = map_is_blind(file, filesystem);
    if before.written_bytes == total && !is_blind {
        return Ok(made);
    }
    let allocated = match before.hole_bytes {
        0 if !is_blind => Ok(()),
        _ => allocate(
            file,
            filesystem,
            range,
            FallocateMode::AllocateKeepSize,
            control,
        ),
    };
    let no_fallocate = match allocated {
        Ok(()) => None,
        Err(error) if error.kind() == ErrorKind::Unsupported => Some(refusal(&error)),
        Err(error) => return Err(error),
    };
    let trial = first_unwritten(file, range)?;
    let mut plan = Plan::of(file, filesystem, trial)?;
    if let Some(reason) = no_fallocate {
        plan.fall_back_to_write_in_order(&reason);
    }
    let done_bytes = if is_blind { 0 } else { before.written_bytes };
    made.zeroed_bytes = if plan.strategy == Strategy::WriteZeroes {
        // What the plan was tried on is zeroed already.
        let tried = trial.map_or(0, ByteRange::len);
        let rest = write_zeroes_by_kernel(file, range, pace, control, lease, done_bytes + tried)?;
        // Linux up to 7.1 at least zeroes a block at the edge of the range, and leaves it unwritten.
        let mut edges = ZeroWriter::new(file, &plan, pace, control, lease, (total, total))?;
        for_each_missing(file, range, false, &mut |missing| edges.zero(missing))?;
        edges.finish()?;
        tried + rest
    } else {
        let mut writer = ZeroWriter::new(file, &plan, pace, control, lease, (done_bytes, total))?;
        for_each_missing(file, range, is_blind, &mut |missing| writer.zero(missing))?;
        writer.finish()?
    };
    if is_blind {
        made.already_written_bytes = total - made.zeroed_bytes;
    }
    made.plan = Some(plan);
    control.report(Phase::Sync, total, total);
    file.sync(SyncMode::Data)?;
    Ok(made)
}

/// Allocates `range` in requests as large as a cancel allows.
pub(crate) fn allocate(
    file: &HostFile,
    filesystem: &FileSystem,
    range: ByteRange,
    mode: FallocateMode,
    control: Control<'_>,
) -> Result<()> {
    let (start, most) = match filesystem.kind {
        FileSystemKind::Memory => (ALLOCATE_MEMORY, ALLOCATE_MEMORY),
        _ => (ALLOCATE_START, ALLOCATE_MAX),
    };
    in_timed_calls(range, start, most, |piece| {
        control.cancel.check()?;
        control.report(Phase::Allocate, piece.start() - range.start(), range.len());
        file.fallocate(mode, piece)
    })
}

/// Calls `call` on consecutive pieces, each as long as takes about [`CALL`], and cut at whole
/// MiB, so that no block is in two.
fn in_timed_calls(
    range: ByteRange,
    start: u64,
    most: u64,
    mut call: impl FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    let (mut at, mut length) = (range.start(), start);
    while at < range.end() {
        let cut = at.saturating_add(length) & !(CUT - 1);
        let piece = ByteRange::new(at, range.end().min(cut));
        let began = Instant::now();
        call(piece)?;
        at = piece.end();
        let took = began.elapsed();
        if took > CALL {
            length = (length / 2).max(CUT);
        } else if took < CALL / 4 {
            length = (length * 2).min(most);
        }
    }
    Ok(())
}

/// Calls `zero`, which has the kernel write zeroes, on consecutive pieces of `range`.
pub(crate) fn zero_in_calls(
    range: ByteRange,
    zero: impl FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    in_timed_calls(range, WRITE_ZEROES_START, WRITE_ZEROES_MAX, zero)
}

fn write_zeroes_by_kernel(
    file: &HostFile,
    range: ByteRange,
    pace: Pace,
    control: Control<'_>,
    lease: Option<&WriteLease<'_>>,
    done_bytes: u64,
) -> Result<u64> {
    let mut pacer = match pace {
        Pace::Full => None,
        paced => Some(Pacer::of_file(file, paced)?),
    };
    let mut zeroed = 0;
    let mut zero = |piece: ByteRange| {
        control.cancel.check()?;
        check_lease(file, lease)?;
        file.fallocate(FallocateMode::WriteZeroes, piece)?;
        zeroed += piece.len();
        control.report(Phase::Write, done_bytes + zeroed, range.len());
        Ok(())
    };
    for_each_missing(file, range, false, &mut |missing| match &mut pacer {
        None => zero_in_calls(missing, &mut zero),
        Some(pacer) => pacer.one_at_a_time(missing, PACED_UNIT, control.cancel, &mut zero),
    })?;
    Ok(zeroed)
}

/// The piece to try the kernel's write zeroes on.
fn first_unwritten(file: &HostFile, range: ByteRange) -> Result<Option<ByteRange>> {
    let mut found = None;
    file.for_each_extent(range, &mut |extent| {
        if extent.state == ExtentState::Unwritten {
            let end = extent
                .logical
                .end()
                .min(extent.logical.start() + LOOK_THROUGH);
            found = Some(ByteRange::new(extent.logical.start(), end));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

/// Holes and data are all that the map tells, so unwritten space may pass for data. Not in
/// memory: pages that were never written are holes there.
pub(crate) fn map_is_blind(file: &HostFile, filesystem: &FileSystem) -> bool {
    file.map_source() == MapSource::Seek && filesystem.kind != FileSystemKind::Memory
}

/// Visits what is not written. Where the map is blind, what reads as zeros counts as missing:
/// zeros written over zeros change no data.
fn for_each_missing(
    file: &HostFile,
    range: ByteRange,
    is_blind: bool,
    visit: &mut dyn FnMut(ByteRange) -> Result<()>,
) -> Result<()> {
    if is_blind {
        let mut buffer = vec![0; LOOK_THROUGH as usize];
        for piece in range.chunks(LOOK_THROUGH) {
            let buffer = &mut buffer[..piece.len() as usize];
            let read = file.read_at(buffer, piece.start())?;
            for zeros in zero_runs(&buffer[..read]) {
                let (start, end) = (piece.start() + zeros.start, piece.start() + zeros.end);
                visit(ByteRange::new(start, end))?;
            }
        }
        return Ok(());
    }
    let mut outcome = Ok(());
    file.for_each_extent(range, &mut |extent| {
        if extent.state == ExtentState::Written {
            return ControlFlow::Continue(());
        }
        outcome = visit(extent.logical);
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;
    outcome
}

/// Runs of zero sectors in `bytes`: no file system has blocks smaller than a sector.
fn zero_runs(bytes: &[u8]) -> Vec<std::ops::Range<u64>> {
    const SECTOR: usize = 512;
    let mut runs: Vec<std::ops::Range<u64>> = Vec::new();
    for (index, sector) in bytes.chunks(SECTOR).enumerate() {
        if sector.iter().any(|&byte| byte != 0) {
            continue;
        }
        let start = (index * SECTOR) as u64;
        let end = start + sector.len() as u64;
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}
