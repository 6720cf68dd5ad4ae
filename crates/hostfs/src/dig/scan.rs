//! One pass over a file: its holes, its zeros and its data, a piece at a time.

use std::cell::RefCell;
use std::ops::ControlFlow;

use extant_space::{ByteRange, Control, Phase, Result, SpaceFile};
use extant_sys::buffer::is_zero;

use super::{HoleReport, Span, SpanKind};

/// Read at once: large enough for the disk, small enough for a cancel.
const READ_BYTES: u64 = 1 << 20;
/// Default and bounds of the block size; a value outside is an error of the file system.
const BLOCK_DEFAULT: u64 = 4096;
const BLOCK_MAX: u64 = READ_BYTES;

/// Finds data and holes.
pub(super) trait DataMap {
    /// The end of the range to be read.
    fn size_bytes(&self) -> Result<u64>;

    /// The first data in `range`, up to its end or that of the data; never empty.
    fn next_data(&self, range: ByteRange) -> Result<Option<ByteRange>>;
}

/// A part of a span.
pub(super) struct SpanPart {
    /// The span.
    pub span: Span,
    /// It begins a span; otherwise it continues the last one.
    pub is_new: bool,
}

type Visit<'a> = dyn FnMut(SpanPart) -> Result<ControlFlow<()>> + 'a;

/// A file, the range to scan, and the options.
pub(super) struct Scan<'a> {
    file: &'a dyn SpaceFile,
    map: &'a dyn DataMap,
    range: ByteRange,
    buffer: RefCell<Vec<u8>>,
    /// Granularity, bytes: a power of two.
    pub block_bytes: u64,
    /// Size of the file when the scan began.
    pub size_bytes: u64,
    pub control: Control<'a>,
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        file: &'a dyn SpaceFile,
        map: &'a dyn DataMap,
        block_bytes: u64,
        range: Option<ByteRange>,
        control: Control<'a>,
    ) -> Result<Self> {
        let size_bytes = map.size_bytes()?;
        let end = range.map_or(size_bytes, |range| range.end().min(size_bytes));
        let start = range.map_or(0, ByteRange::start).min(end);
        let is_plausible =
            block_bytes.is_power_of_two() && (512..=BLOCK_MAX).contains(&block_bytes);
        Ok(Self {
            file,
            map,
            range: ByteRange::new(start, end),
            buffer: RefCell::new(vec![0; READ_BYTES as usize]),
            block_bytes: if is_plausible {
                block_bytes
            } else {
                BLOCK_DEFAULT
            },
            size_bytes,
            control,
        })
    }

    pub(super) fn empty_report(&self) -> HoleReport {
        HoleReport {
            range: self.range,
            size_bytes: self.size_bytes,
            ..HoleReport::default()
        }
    }

    /// Visits the range in order until `visit` breaks.
    pub(super) fn run(&self, visit: &mut Visit<'_>) -> Result<()> {
        let mut at = self.range.start();
        while at < self.range.end() {
            self.control.cancel.check()?;
            let rest = ByteRange::new(at, self.range.end());
            let data = self.map.next_data(rest)?;
            let hole_end = data.map_or(rest.end(), ByteRange::start);
            if hole_end > at {
                let hole = SpanPart {
                    span: Span {
                        kind: SpanKind::Hole,
                        range: ByteRange::new(at, hole_end),
                    },
                    is_new: true,
                };
                if visit(hole)?.is_break() {
                    return Ok(());
                }
            }
            let Some(data) = data else { break };
            assert!(data.start() >= at && data.end() <= rest.end() && !data.is_empty());
            if self.scan_data(data, visit)?.is_break() {
                return Ok(());
            }
            at = data.end();
        }
        Ok(())
    }

    /// Visits the blocks of `data`, counted from its start.
    fn scan_data(&self, data: ByteRange, visit: &mut Visit<'_>) -> Result<ControlFlow<()>> {
        let mut buffer = self.buffer.borrow_mut();
        let mut last = None;
        let mut at = data.start();
        while at < data.end() {
            self.control.cancel.check()?;
            let wanted = (data.end() - at).min(READ_BYTES);
            let buffer = &mut buffer[..wanted as usize];
            let read = self.file.read_at(buffer, at)?;
            for (index, block) in buffer[..read].chunks(self.block_bytes as usize).enumerate() {
                let start = at + index as u64 * self.block_bytes;
                let kind = if is_zero(block) {
                    SpanKind::Zeros
                } else {
                    SpanKind::Data
                };
                let piece = SpanPart {
                    span: Span {
                        kind,
                        range: ByteRange::new(start, start + block.len() as u64),
                    },
                    is_new: last != Some(kind),
                };
                last = Some(kind);
                if visit(piece)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            at += read as u64;
            let done = at - self.range.start();
            self.control.report(Phase::Scan, done, self.range.len());
            if (read as u64) < wanted {
                // Another process truncated the file.
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
