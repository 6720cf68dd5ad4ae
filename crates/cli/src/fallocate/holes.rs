//! The output of `-d` and `-r`, line for line as in util-linux.
//!
//! The library reports every span of the range. util-linux prints a hole when it reaches the data
//! after it, so a hole at the end of the range is not printed, and the first one begins at 0
//! whatever `--offset` is. `extant map` prints the exact map.

use std::io::{self, Write};
use std::ops::ControlFlow;

use extant_hostfs::{
    HoleReport, HostFile, Span, SpanKind, dig_holes, dig_holes_in, report_holes, report_holes_in,
};
use extant_space::{ByteRange, CancelToken, Control, Result, Silent, SpaceFile};

use super::words::Share;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The totals.
    Summary,
    /// Every hole as well.
    Holes,
}

/// Digs; the line for `-v`, which begins behind the file's name.
pub fn dig(file: &HostFile, range: Option<ByteRange>, cancel: &CancelToken) -> Result<String> {
    dig_holes(file, range, Control::new(cancel, &Silent)).map(|report| dug(&report))
}

/// The same for a file inside an image, with blocks of `block_bytes`.
pub fn dig_inside(
    file: &dyn SpaceFile,
    block_bytes: u64,
    range: Option<ByteRange>,
    cancel: &CancelToken,
) -> Result<String> {
    let control = Control::new(cancel, &Silent);
    dig_holes_in(file, block_bytes, range, control).map(|report| dug(&report))
}

fn dug(report: &HoleReport) -> String {
    let share = share(report.zero_runs, report.zero_bytes, report.size_bytes);
    format!("{share} converted to sparse holes.")
}

/// Reports to `out`; the inner result is that of writing there.
pub fn report(
    file: &HostFile,
    range: Option<ByteRange>,
    detail: Detail,
    cancel: &CancelToken,
    out: &mut impl Write,
) -> Result<io::Result<()>> {
    let mut told = HoleOutput::new(out, detail);
    let control = Control::new(cancel, &Silent);
    let report = report_holes(file, range, control, &mut |span| told.span(span))?;
    Ok(told.summary(&report))
}

/// The same for a file inside an image, with blocks of `block_bytes`.
pub fn report_inside(
    file: &dyn SpaceFile,
    block_bytes: u64,
    range: Option<ByteRange>,
    detail: Detail,
    cancel: &CancelToken,
    out: &mut impl Write,
) -> Result<io::Result<()>> {
    let mut told = HoleOutput::new(out, detail);
    let control = Control::new(cancel, &Silent);
    let visit = &mut |span| told.span(span);
    let report = report_holes_in(file, block_bytes, range, control, visit)?;
    Ok(told.summary(&report))
}

struct HoleOutput<'a, W> {
    out: &'a mut W,
    detail: Detail,
    /// End of the last data: the next file hole begins there.
    data_end: u64,
    holes: u64,
    hole_bytes: u64,
    result: io::Result<()>,
}

impl<'a, W: Write> HoleOutput<'a, W> {
    fn new(out: &'a mut W, detail: Detail) -> Self {
        Self {
            out,
            detail,
            data_end: 0,
            holes: 0,
            hole_bytes: 0,
            result: Ok(()),
        }
    }

    fn span(&mut self, span: Span) -> ControlFlow<()> {
        let result = self.tell(span);
        self.result = result;
        match self.result {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn tell(&mut self, span: Span) -> io::Result<()> {
        let range = span.range;
        if span.kind == SpanKind::Hole {
            return Ok(());
        }
        if range.start() > self.data_end {
            let hole = ByteRange::new(self.data_end, range.start());
            self.holes += 1;
            self.hole_bytes += hole.len();
            self.line("file", hole)?;
        }
        self.data_end = range.end();
        if span.kind == SpanKind::Zeros {
            self.line("data", range)?;
        }
        Ok(())
    }

    fn line(&mut self, kind: &str, range: ByteRange) -> io::Result<()> {
        if self.detail == Detail::Summary {
            return Ok(());
        }
        let (start, end) = (range.start(), range.end());
        writeln!(
            self.out,
            "{kind} hole: offset {start} - {end} ({} bytes)",
            range.len()
        )
    }

    fn summary(self, report: &HoleReport) -> io::Result<()> {
        self.result?;
        let size = report.size_bytes;
        writeln!(self.out, "\nSummary:")?;
        writeln!(
            self.out,
            "file holes: {}",
            share(self.holes, self.hole_bytes, size)
        )?;
        let zeros = share(report.zero_runs, report.zero_bytes, size);
        writeln!(self.out, "data holes: {zeros}")
    }
}

fn share(count: u64, bytes: u64, of_bytes: u64) -> Share {
    Share {
        count,
        bytes,
        of_bytes,
    }
}
