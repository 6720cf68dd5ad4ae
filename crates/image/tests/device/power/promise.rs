//! Promises of a flush: contents, and space that is written below.

use std::collections::{HashMap, HashSet};
use std::ops::{ControlFlow, Range};

use extant_blockdev::Device;
use extant_image::device::ImageDevice;
use extant_space::{Extent, ExtentState};

use super::SECTOR;

/// Possible contents of each sector after a power cut: those of the last flush, and every write
/// since.
#[derive(Default)]
pub struct Promise {
    pub versions: HashMap<u64, Vec<Vec<u8>>>,
    /// Discarded since.
    pub unknown: HashSet<u64>,
    /// Written below when it was flushed.
    written: HashSet<u64>,
    /// Zeroed since so that they are written below.
    pub zeroed: HashSet<u64>,
    /// Discarded, or zeroed otherwise, since.
    unmapped: HashSet<u64>,
}

impl Promise {
    /// Whether a cut may leave these contents of a sector.
    pub fn allows(&self, number: u64, sector: &[u8]) -> bool {
        let mut versions = self.versions.get(&number).into_iter().flatten();
        self.unknown.contains(&number) || versions.any(|version| version == sector)
    }

    pub fn unmap(&mut self, sectors: Range<u64>) {
        for sector in sectors {
            self.zeroed.remove(&sector);
            self.unmapped.insert(sector);
        }
    }
}

/// All that the disk holds is durable.
pub fn flushed(disk: &[u8], promises: &mut Vec<Promise>) {
    let last = promises.last().expect("one at the start");
    let kept = &last.written - &last.unmapped;
    let written = &kept | &last.zeroed;
    promises.push(promise(disk, written));
}

pub fn promise(disk: &[u8], written: HashSet<u64>) -> Promise {
    let sectors = disk
        .chunks(SECTOR as usize)
        .map(|sector| vec![sector.to_vec()]);
    Promise {
        versions: (0..).zip(sectors).collect(),
        unknown: HashSet::new(),
        written,
        zeroed: HashSet::new(),
        unmapped: HashSet::new(),
    }
}

/// Verifies that sectors written below at the last flush, and not unmapped since, still are.
/// Returns their number.
pub fn assert_written(image: &ImageDevice, promises: &[Promise], what: &str) -> usize {
    let is_kept = |sector: &&u64| {
        !promises
            .iter()
            .any(|promise| promise.unmapped.contains(*sector))
    };
    let kept: HashSet<u64> = promises[0]
        .written
        .iter()
        .filter(is_kept)
        .copied()
        .collect();
    let visit = &mut |extent: Extent| {
        if extent.state != ExtentState::Written {
            let range = extent.logical;
            let mut sectors = range.start() / SECTOR..range.end() / SECTOR;
            let lost = sectors.find(|sector| kept.contains(sector));
            assert_eq!(lost, None, "{range} is {}: {what}", extent.state);
        }
        ControlFlow::Continue(())
    };
    image.extents(image.geometry().range(), visit).unwrap();
    kept.len()
}
