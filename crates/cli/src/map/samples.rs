//! Maps that the tests of this command share.

use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState, MapSummary};

use super::listing::{Listing, Mapped, Opened};
use super::scan::Scan;

const MIB: u64 = 1 << 20;

/// 16 MiB each: written, shared, unwritten, hole; every piece at a different place.
pub(super) fn four_states() -> Vec<Extent> {
    let piece = |at: u64, state, flags| Extent {
        logical: ByteRange::new(at * 16 * MIB, (at + 1) * 16 * MIB),
        physical: Some((10 - at * 3) << 30),
        state,
        flags,
    };
    vec![
        piece(0, ExtentState::Written, ExtentFlags::empty()),
        piece(1, ExtentState::Written, ExtentFlags::SHARED),
        piece(2, ExtentState::Unwritten, ExtentFlags::empty()),
        Extent::hole(ByteRange::new(48 * MIB, 64 * MIB)),
    ]
}

/// `count` written extents of 4 KiB that alternate between two regions and drift.
pub(super) fn scattered(count: u64) -> Vec<Extent> {
    (0..count)
        .map(|i| Extent {
            logical: ByteRange::new(i * 4096, (i + 1) * 4096),
            physical: Some(((i % 2) << 33) + (i / 64) * (1 << 22) + (i * 7919 % 512) * 4096),
            state: if i * 7 % 31 < 6 {
                ExtentState::Unwritten
            } else {
                ExtentState::Written
            },
            flags: ExtentFlags::empty(),
        })
        .collect()
}

/// Passes a file made of `extents` to `listing`, as a scan does.
pub(super) fn list(
    listing: &mut dyn Listing,
    opened: Opened,
    extents: &[Extent],
    cells: usize,
) -> Mapped {
    listing.begin(&opened).unwrap();
    let mapped = mapped(opened, extents, cells, |extent, fragment| {
        listing.extent(extent, fragment).unwrap();
    });
    listing.end(&mapped).unwrap();
    mapped
}

/// The map of a file made of `extents`.
pub(super) fn mapped(
    opened: Opened,
    extents: &[Extent],
    cells: usize,
    mut visit: impl FnMut(&Extent, u64),
) -> Mapped {
    let span = extents.last().map_or(0, |last| last.logical.end());
    let mut scan = Scan::new(MapSummary::default(), span, cells);
    for extent in extents {
        scan.add(extent);
        visit(extent, scan.summary().fragments());
    }
    scan.finish(opened)
}
