//! One pass over the map of a file, which fills the figures and the cells.

use std::io;
use std::ops::ControlFlow;

use extant_space::{ByteRange, Error, Extent, ExtentState, MapSummary, SpaceFile};

use super::cells::{Cells, Joint};
use super::listing::{Mapped, Opened};

/// The figures of a map while it is read.
pub(super) struct Scan {
    summary: MapSummary,
    cells: Cells,
}

impl Scan {
    /// `summary` is empty and knows the file system.
    pub(super) fn new(summary: MapSummary, span_bytes: u64, cells: usize) -> Self {
        Self {
            summary,
            cells: Cells::new(span_bytes, cells),
        }
    }

    pub(super) fn add(&mut self, extent: &Extent) {
        let fragments = self.summary.fragments();
        self.summary.add(extent);
        let joint = if fragments > 0 && self.summary.fragments() > fragments {
            Joint::Breaks
        } else {
            Joint::Continues
        };
        self.cells.add(extent, joint);
    }

    /// The figures so far.
    pub(super) fn summary(&self) -> &MapSummary {
        &self.summary
    }

    pub(super) fn finish(self, opened: Opened) -> Mapped {
        Mapped {
            opened,
            summary: self.summary,
            cells: self.cells,
        }
    }
}

/// Why a scan ended early.
#[derive(Debug)]
pub(super) enum Stopped {
    /// The file could not be mapped.
    Map(Error),
    /// The visitor failed: nothing more can be printed.
    Output(io::Error),
}

/// Reads the map of `file`, space past its end included, and shows every extent
/// to `visit` with the number of fragments so far.
pub(super) fn scan(
    file: &dyn SpaceFile,
    size_bytes: u64,
    summary: MapSummary,
    cells: usize,
    visit: &mut dyn FnMut(&Extent, u64) -> io::Result<()>,
) -> Result<Scan, Stopped> {
    let span = ByteRange::new(0, allocated_end(file, size_bytes));
    let read = &mut |visit: Visit<'_>| file.for_each_extent(span, visit);
    scan_map(read, span, summary, cells, visit)
}

/// Receives the extents of a map.
pub(super) type Visit<'v> = &'v mut dyn FnMut(Extent) -> ControlFlow<()>;

/// Reads the map that `read` visits, which covers `span`.
pub(super) fn scan_map(
    read: &mut dyn FnMut(Visit<'_>) -> extant_space::Result<()>,
    span: ByteRange,
    summary: MapSummary,
    cells: usize,
    visit: &mut dyn FnMut(&Extent, u64) -> io::Result<()>,
) -> Result<Scan, Stopped> {
    let mut scan = Scan::new(summary, span.end(), cells);
    let mut output = Ok(());
    if span.is_empty() {
        return Ok(scan);
    }
    read(&mut |extent| {
        scan.add(&extent);
        output = visit(&extent, scan.summary().fragments());
        match output {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })
    .map_err(Stopped::Map)?;
    output.map_err(Stopped::Output)?;
    Ok(scan)
}

/// The end of the last allocated byte, or of the file: the last block reaches past
/// the end, and `fallocate -n` reserves space behind it.
fn allocated_end(file: &dyn SpaceFile, size_bytes: u64) -> u64 {
    // File offsets are signed in the kernel.
    let behind = ByteRange::new(size_bytes.min(i64::MAX as u64), i64::MAX as u64);
    let mut end = size_bytes;
    let probed = file.for_each_extent(behind, &mut |extent| {
        if extent.state != ExtentState::Hole {
            end = extent.logical.end();
        }
        ControlFlow::Continue(())
    });
    // Not every source of maps can look there; real trouble shows in the pass itself.
    probed.map_or(size_bytes, |()| end)
}

#[cfg(test)]
mod tests {
    use extant_space::{ErrorKind, ExtentFlags, FallocateMode, Result, SyncMode};

    use super::*;

    /// A file that is only its map.
    struct MapOnly {
        extents: Vec<Extent>,
        fails_after: Option<usize>,
    }

    impl SpaceFile for MapOnly {
        fn size(&self) -> Result<u64> {
            unreachable!("the caller gives the size")
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> Result<usize> {
            unreachable!("maps read no data")
        }
        fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
            unreachable!("maps write nothing")
        }
        fn resize(&self, _: u64) -> Result<()> {
            unreachable!("maps write nothing")
        }
        fn fallocate(&self, _: FallocateMode, _: ByteRange) -> Result<()> {
            unreachable!("maps write nothing")
        }
        fn sync(&self, _: SyncMode) -> Result<()> {
            unreachable!("maps write nothing")
        }
        fn for_each_extent(
            &self,
            range: ByteRange,
            visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
        ) -> Result<()> {
            let clipped = self.extents.iter().filter_map(|extent| extent.clip(range));
            for (at, extent) in clipped.enumerate() {
                if self.fails_after == Some(at) && range.start() == 0 {
                    return Err(Error::new(ErrorKind::Io));
                }
                if visit(extent).is_break() {
                    break;
                }
            }
            Ok(())
        }
    }

    fn written(start: u64, end: u64) -> Extent {
        Extent {
            logical: ByteRange::new(start, end),
            physical: Some(start + (1 << 20)),
            state: ExtentState::Written,
            flags: ExtentFlags::empty(),
        }
    }

    fn file() -> MapOnly {
        MapOnly {
            extents: vec![
                written(0, 8192),
                Extent::hole(ByteRange::new(8192, 16_384)),
                written(16_384, 20_480),
            ],
            fails_after: None,
        }
    }

    #[test]
    fn space_past_the_end_belongs_to_the_map() {
        let mut rows = 0;
        let found = scan(&file(), 5000, MapSummary::default(), 5, &mut |_, _| {
            rows += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(rows, 3);
        assert_eq!(found.summary().bytes(ExtentState::Written), 12_288);
        assert_eq!(found.cells.span_bytes(), 20_480);
    }

    #[test]
    fn output_that_fails_ends_the_scan() {
        let mut rows = 0;
        let stopped = scan(&file(), 5000, MapSummary::default(), 5, &mut |_, _| {
            rows += 1;
            Err(io::Error::from(io::ErrorKind::BrokenPipe))
        });
        assert!(matches!(stopped, Err(Stopped::Output(_))));
        assert_eq!(rows, 1);
    }

    #[test]
    fn map_that_fails_half_way_is_an_error() {
        let mut broken = file();
        broken.fails_after = Some(2);
        let stopped = scan(&broken, 5000, MapSummary::default(), 5, &mut |_, _| Ok(()));
        assert!(matches!(stopped, Err(Stopped::Map(_))));
    }
}
