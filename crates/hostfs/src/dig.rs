//! Allocated zeros: reported ([`report_holes`]) and converted to holes ([`dig_holes`]).
//!
//! Semantics are those of `fallocate -d` and `-r` of util-linux. The file is read in blocks of
//! `st_blksize`, counted from the start of its data (`SEEK_DATA`) or of the range, whichever is
//! later. A zero block extends the current run; another block, a hole and the end of the range end
//! it.
//!
//! Safety of data:
//! - a run ends where the last block that was read as zero ends; no byte after it is touched. Only
//!   at the end of the file the punch extends to the end of the block, which holds no byte of the
//!   file, unless the file has grown since;
//! - a long run is punched in parts of 16 to 32 MiB, soon after they were read.
//!
//! Other writers are not excluded: data that another process writes into a run between the read and
//! the punch is lost, as with util-linux.
//!
//! Memory: one buffer of 1 MiB, whatever the size of the file.

mod scan;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, ExtentState, FallocateMode, Result, SpaceFile};
use extant_sys::extents::{self, MapSource};
use serde::Serialize;

use crate::file::HostFile;
use scan::{DataMap, Scan};

/// A run this long is punched before its end is known, up to a multiple of [`PUNCH_ALIGN_BYTES`].
const RUN_MAX: u64 = 32 << 20;
/// A multiple of any block.
const PUNCH_ALIGN_BYTES: u64 = 16 << 20;

/// The kind of a range of a file, for freeing space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// The file system has no data there.
    Hole,
    /// Zeros that take space.
    Zeros,
    /// Blocks that are not zero.
    Data,
}

/// Consecutive bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// State of the span.
    pub kind: SpanKind,
    /// The bytes.
    pub range: ByteRange,
}

/// Runs of zeros, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HoleReport {
    /// The scanned range.
    pub range: ByteRange,
    /// Size of the file, bytes.
    pub size_bytes: u64,
    /// Runs of zeros that were allocated.
    pub zero_runs: u64,
    /// Bytes in them.
    pub zero_bytes: u64,
    /// Holes of the file system.
    pub holes: u64,
    /// Bytes in them.
    pub hole_bytes: u64,
}

/// Punches holes where `file` holds blocks of zeros, in `range` or everywhere.
///
/// The file keeps its size and every byte. A cancel leaves a part of the holes dug.
/// Progress reports the bytes scanned.
pub fn dig_holes(
    file: &HostFile,
    range: Option<ByteRange>,
    control: Control<'_>,
) -> Result<HoleReport> {
    let map = SeekData::new(file, range)?;
    let scan = Scan::new(file, &map, block_bytes(file)?, range, control)?;
    dig(file, &scan)
}

/// Calls `visit` with the spans of `file`, in `range` or everywhere, in order and without
/// gaps, until it breaks; neighbours differ in kind or in their class for `SEEK_DATA`.
pub fn report_holes(
    file: &HostFile,
    range: Option<ByteRange>,
    control: Control<'_>,
    visit: &mut dyn FnMut(Span) -> ControlFlow<()>,
) -> Result<HoleReport> {
    let map = SeekData::new(file, range)?;
    let scan = Scan::new(file, &map, block_bytes(file)?, range, control)?;
    report(&scan, visit)
}

/// [`dig_holes`] in any file, with blocks of `block_bytes`: what its map calls written is data.
pub fn dig_holes_in(
    file: &dyn SpaceFile,
    block_bytes: u64,
    range: Option<ByteRange>,
    control: Control<'_>,
) -> Result<HoleReport> {
    let map = WrittenParts(file);
    let scan = Scan::new(file, &map, block_bytes, range, control)?;
    dig(file, &scan)
}

/// [`report_holes`] of any file, with blocks of `block_bytes`: what its map calls written is data.
pub fn report_holes_in(
    file: &dyn SpaceFile,
    block_bytes: u64,
    range: Option<ByteRange>,
    control: Control<'_>,
    visit: &mut dyn FnMut(Span) -> ControlFlow<()>,
) -> Result<HoleReport> {
    let map = WrittenParts(file);
    let scan = Scan::new(file, &map, block_bytes, range, control)?;
    report(&scan, visit)
}

fn dig(file: &dyn SpaceFile, scan: &Scan<'_>) -> Result<HoleReport> {
    let mut report = scan.empty_report();
    // The part of the run at hand that is not punched yet.
    let mut pending: Option<ByteRange> = None;
    scan.run(&mut |piece| {
        report.count(piece.span, piece.is_new);
        if piece.is_new
            && let Some(rest) = pending.take()
        {
            punch(file, scan, rest)?;
        }
        if piece.span.kind == SpanKind::Zeros {
            let start = pending.map_or(piece.span.range.start(), ByteRange::start);
            let run = ByteRange::new(start, piece.span.range.end());
            let cut = run.end() - run.end() % PUNCH_ALIGN_BYTES;
            pending = if run.len() >= RUN_MAX && cut > run.start() {
                punch(file, scan, ByteRange::new(run.start(), cut))?;
                (cut < run.end()).then(|| ByteRange::new(cut, run.end()))
            } else {
                Some(run)
            };
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if let Some(rest) = pending {
        punch(file, scan, rest)?;
    }
    Ok(report)
}

fn punch(file: &dyn SpaceFile, scan: &Scan<'_>, zeros: ByteRange) -> Result<()> {
    scan.control.cancel.check()?;
    let mut end = zeros.end();
    if end == scan.size_bytes && file.size()? == end {
        // The rest of the last block is past the end: without it the block would stay.
        end = end.next_multiple_of(scan.block_bytes);
    }
    file.fallocate(FallocateMode::PunchHole, ByteRange::new(zeros.start(), end))
}

fn report(scan: &Scan<'_>, visit: &mut dyn FnMut(Span) -> ControlFlow<()>) -> Result<HoleReport> {
    let mut report = scan.empty_report();
    let mut pending: Option<Span> = None;
    scan.run(&mut |piece| {
        report.count(piece.span, piece.is_new);
        match &mut pending {
            Some(span) if !piece.is_new => {
                span.range = ByteRange::new(span.range.start(), piece.span.range.end());
                Ok(ControlFlow::Continue(()))
            }
            _ => {
                let done = pending.replace(piece.span);
                let answer = done.map_or(ControlFlow::Continue(()), &mut *visit);
                if answer.is_break() {
                    pending = None;
                }
                Ok(answer)
            }
        }
    })?;
    if let Some(span) = pending {
        let _ = visit(span);
    }
    Ok(report)
}

impl HoleReport {
    fn count(&mut self, span: Span, is_new: bool) {
        let (runs, bytes) = match span.kind {
            SpanKind::Hole => (&mut self.holes, &mut self.hole_bytes),
            SpanKind::Zeros => (&mut self.zero_runs, &mut self.zero_bytes),
            SpanKind::Data => return,
        };
        *runs += u64::from(is_new);
        *bytes += span.range.len();
    }
}

/// Data by `SEEK_DATA` and `SEEK_HOLE`. Unlike the extent map they include delayed allocation, and
/// skip unwritten space.
struct SeekData<'a>(&'a HostFile);

impl<'a> SeekData<'a> {
    /// Refuses a range past the largest file of the file system.
    fn new(file: &'a HostFile, range: Option<ByteRange>) -> Result<Self> {
        let start = range.map_or(0, ByteRange::start);
        rustix::fs::seek(file.as_file(), rustix::fs::SeekFrom::Start(start))
            .map_err(|errno| file.error(errno).during("seek"))?;
        Ok(Self(file))
    }
}

impl DataMap for SeekData<'_> {
    fn size_bytes(&self) -> Result<u64> {
        // A block device has no holes, and `stat` reports no size for it.
        Ok(self.0.metadata()?.len())
    }

    fn next_data(&self, range: ByteRange) -> Result<Option<ByteRange>> {
        let mut found = None;
        extents::for_each(self.0.as_file(), MapSource::Seek, range, &mut |extent| {
            if extent.state == ExtentState::Hole {
                return ControlFlow::Continue(());
            }
            found = Some(extent.logical);
            ControlFlow::Break(())
        })
        .map_err(|source| self.0.error(source).during("seek"))?;
        Ok(found)
    }
}

/// Written extents by the extent map, for files whose map is always current.
struct WrittenParts<'a>(&'a dyn SpaceFile);

impl DataMap for WrittenParts<'_> {
    fn size_bytes(&self) -> Result<u64> {
        self.0.size()
    }

    fn next_data(&self, range: ByteRange) -> Result<Option<ByteRange>> {
        let mut found: Option<ByteRange> = None;
        self.0.for_each_extent(range, &mut |extent| {
            let is_data = extent.state == ExtentState::Written;
            found = match (found, is_data) {
                (None, false) => return ControlFlow::Continue(()),
                (Some(_), false) => return ControlFlow::Break(()),
                (None, true) => Some(extent.logical),
                (Some(data), true) => Some(ByteRange::new(data.start(), extent.logical.end())),
            };
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

fn block_bytes(file: &HostFile) -> Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(file.metadata()?.blksize())
}
