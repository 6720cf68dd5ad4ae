//! Free clusters of the file.
//!
//! Every allocated cluster reads as zeros, so it can be mapped before the guest's data is in it: a
//! reader sees zeros where there were zeros, also after a power cut. Three sources, in this order:
//!
//! 1. the pool: clusters freed and punched since the image was opened, and those found by
//! 2. the scan: refcount regions that were in the file when it was opened, one at a time; their
//!    clusters are zeroed;
//! 3. the end of the file, which is extended in steps. Closing the image truncates what is free
//!    there.
//!
//! An allocation for a guest cluster takes from the window of its stream first (`windows.rs`), and
//! reserves one from these sources. A request that finds no space reclaims all windows.
//!
//! The end of the file is not the end of the counted clusters: a disk keeps its size, and a crash
//! leaves the last step in the file. If the scan reaches clusters without an entry in the refcount
//! table, the table grows.

use std::collections::BTreeMap;

use extant_blockdev::{Device, Zeroing};
use extant_space::{ByteRange, Error, ErrorKind, Result};

use super::file::MetadataFile;
use super::refcounts::Refcounts;
use super::windows::{Reserve, Windows};
use crate::format::Geometry;

/// Found clusters are zeroed in units of this many bytes.
const ZERO_BYTES_MAX: u64 = 16 << 20;
/// The file becomes longer by so much.
const GROWTH: u64 = 64 << 20;
/// Pieces of the pool that one search visits.
const POOL_SEARCH_MAX: usize = 64;

/// Consecutive clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub clusters: u64,
}

impl Run {
    /// The first `clusters` clusters, or all that there are, and the rest.
    pub(super) fn split_at(self, clusters: u64) -> (Self, Self) {
        let clusters = clusters.min(self.clusters);
        let Self {
            first,
            clusters: all,
        } = self;
        let rest = Self {
            first: first + clusters,
            clusters: all - clusters,
        };
        (Self { first, clusters }, rest)
    }
}

/// Requirement of an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// Any piece.
    Piece,
    /// All clusters from the end of the file rather than some of them from the middle.
    Whole,
    /// A piece for this guest cluster and those after it.
    For(u64),
}

pub(super) struct Space {
    geometry: Geometry,
    /// Runs by their first cluster, all zeros, counted as free.
    pool: BTreeMap<u64, u64>,
    windows: Windows,
    /// All before it was scanned.
    scanned: u64,
    /// Size of the file when it was opened; free clusters before it are unknown until the scan
    /// reaches them.
    opened_end: u64,
    /// The first cluster that was not given out since.
    end: u64,
    /// Present size of the file.
    file_end: u64,
    is_fixed: bool,
    /// Former places of refcount tables that have moved; for the owner to release.
    pub(super) old_tables: Vec<Run>,
}

impl Space {
    /// For a file of `file_bytes`, whose last partial cluster is unused, and a disk of
    /// `disk_clusters`.
    pub(super) fn new(geometry: Geometry, file_bytes: u64, disk_clusters: u64) -> Self {
        let end = file_bytes / geometry.cluster_bytes();
        Self {
            geometry,
            pool: BTreeMap::new(),
            windows: Windows::new(geometry, disk_clusters),
            scanned: 0,
            opened_end: end,
            end,
            file_end: end,
            is_fixed: false,
            old_tables: Vec::new(),
        }
    }

    /// Allocates up to `clusters` contiguous clusters, with a refcount of 1 each.
    pub(super) fn take(
        &mut self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
        clusters: u64,
        wanted: Wanted,
    ) -> Result<Run> {
        assert!(clusters > 0);
        let reserved = match wanted {
            Wanted::For(guest) => self.windows.take(guest, clusters),
            Wanted::Piece | Wanted::Whole => None,
        };
        let run = match reserved {
            Some(run) => run,
            None => self.find(file, refcounts, metadata, clusters, wanted)?,
        };
        self.put_left();
        for cluster in run.first..run.first + run.clusters {
            refcounts.set(file, cluster, 1)?;
        }
        Ok(run)
    }

    /// Finds clusters outside all windows, and reserves the window of a stream.
    fn find(
        &mut self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
        clusters: u64,
        wanted: Wanted,
    ) -> Result<Run> {
        let mut reserve = match wanted {
            Wanted::For(guest) => self.windows.wanted(guest, clusters),
            Wanted::Piece | Wanted::Whole => Reserve::default(),
        };
        let whole = matches!(wanted, Wanted::Whole);
        let most = reserve.gap + clusters + reserve.window;
        let mut found = self.find_run(file, refcounts, metadata, most, whole);
        if found.is_err() && (most > clusters || !self.windows.are_empty()) {
            self.reclaim_windows();
            reserve = Reserve::default();
            found = self.find_run(file, refcounts, metadata, clusters, whole);
        }
        let run = found?;
        if run.clusters <= reserve.gap {
            reserve.gap = 0;
        }
        let (gap, rest) = run.split_at(reserve.gap);
        let (taken, window) = rest.split_at(clusters);
        if let Wanted::For(guest) = wanted {
            self.windows.add(guest, taken.clusters, gap, window);
        }
        Ok(taken)
    }

    fn find_run(
        &mut self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
        clusters: u64,
        whole: bool,
    ) -> Result<Run> {
        let from_pool = loop {
            let fits = |(_, length): &(&u64, &u64)| **length >= clusters;
            // Old pieces are many only where the image is fragmented; the search is bounded.
            let mut pieces = self.pool.iter().take(POOL_SEARCH_MAX);
            let best = match pieces.find(fits) {
                None if !whole => {
                    let pieces = self.pool.iter().take(POOL_SEARCH_MAX);
                    pieces.max_by_key(|(_, length)| **length)
                }
                found => found,
            };
            if let Some((first, _)) = best {
                break Some(*first);
            }
            if !self.scan(file, refcounts, metadata)? {
                break None;
            }
        };
        match from_pool {
            Some(first) => Ok(self.take_from_pool(first, clusters)),
            None => match self.take_at_end(file, refcounts, metadata, clusters) {
                // A disk has no more than the pieces.
                Err(error) if error.kind() == ErrorKind::NoSpace => match self.pool.keys().next() {
                    Some(&first) => Ok(self.take_from_pool(first, clusters)),
                    None => Err(error),
                },
                found => found,
            },
        }
    }

    fn reclaim_windows(&mut self) {
        self.windows.clear();
        self.put_left();
    }

    /// Frees the windows of streams that are forgotten.
    fn put_left(&mut self) {
        while let Some(run) = self.windows.left.pop() {
            self.put(run);
        }
    }

    fn take_from_pool(&mut self, first: u64, clusters: u64) -> Run {
        let length = self.pool.remove(&first).expect("a piece of the pool");
        let taken = length.min(clusters);
        if taken < length {
            self.pool.insert(first + taken, length - taken);
        }
        Run {
            first,
            clusters: taken,
        }
    }

    /// Returns clusters that read as zeros and are counted as free, except for those that the scan
    /// will find.
    pub(super) fn put(&mut self, run: Run) {
        let end = run.first + run.clusters;
        self.insert(run.first, end.min(self.scanned));
        self.insert(run.first.max(self.opened_end).max(self.scanned), end);
    }

    fn insert(&mut self, mut first: u64, mut end: u64) {
        if first >= end {
            return;
        }
        if let Some(length) = self.pool.remove(&end) {
            end += length;
        }
        if let Some((&before, &length)) = self.pool.range(..first).next_back()
            && before + length == first
        {
            first = before;
        }
        self.pool.insert(first, end - first);
    }

    /// Gives up the windows, and the free clusters at the end of the file. All refcounts are
    /// durable.
    pub(super) fn trim(&mut self) {
        self.reclaim_windows();
        if let Some((&first, &length)) = self.pool.last_key_value()
            && first + length == self.end
        {
            self.pool.remove(&first);
            self.end = first.max(self.opened_end);
            self.insert(first, self.end);
        }
    }

    /// Where the file can end: nothing behind is used.
    pub(super) fn used_end_bytes(&self) -> u64 {
        self.end << self.geometry.cluster_bits()
    }

    /// Whether the file was made longer than it has to be.
    pub(super) fn has_spare(&self) -> bool {
        self.file_end > self.end
    }

    /// Puts some free clusters into the pool; false when there are none left.
    fn scan(
        &mut self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
    ) -> Result<bool> {
        let bits = self.geometry.cluster_bits();
        while self.scanned < self.opened_end {
            let region = self.scanned / refcounts.region();
            if region >= refcounts.regions() {
                self.grow_table(file, refcounts, metadata)?;
                continue;
            }
            let most = self.scanned + (ZERO_BYTES_MAX >> bits).max(1);
            let (first, stop) = refcounts.free_run(file, self.scanned, self.opened_end)?;
            if first == stop {
                self.scanned = stop;
                continue;
            }
            if !refcounts.has_block(region) {
                self.make_block(file, refcounts, metadata, region)?;
                continue;
            }
            let stop = stop.min(first + (most - self.scanned));
            let run = Run {
                first,
                clusters: stop - first,
            };
            check_unused(metadata(refcounts), run, bits)?;
            let range = ByteRange::new(first << bits, stop << bits);
            file.0.write_zeroes(range, Zeroing::ANY)?;
            self.scanned = stop;
            self.put(run);
            return Ok(true);
        }
        Ok(false)
    }

    /// Counts the clusters of a region that has no block.
    fn make_block(
        &self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
        region: u64,
    ) -> Result<()> {
        let place = Run {
            first: region * refcounts.region(),
            clusters: 1,
        };
        check_unused(metadata(refcounts), place, self.geometry.cluster_bits())?;
        refcounts.make_block(file, region)
    }

    fn take_at_end(
        &mut self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
        clusters: u64,
    ) -> Result<Run> {
        loop {
            let region = self.end / refcounts.region();
            if region >= refcounts.regions() {
                self.grow_table(file, refcounts, metadata)?;
            } else if !refcounts.has_block(region) {
                self.reserve(file, self.end + 1)?;
                self.make_block(file, refcounts, metadata, region)?;
                // The first cluster of the region may be in the middle of the file.
                self.end = self.end.max(region * refcounts.region() + 1);
            } else {
                let most = self.end.saturating_add(clusters);
                let (first, stop) = refcounts.free_run(file, self.end, most)?;
                self.end = first;
                if first == stop {
                    continue;
                }
                self.reserve(file, stop)?;
                self.end = stop;
                return Ok(Run {
                    first,
                    clusters: stop - first,
                });
            }
        }
    }

    /// Puts a larger refcount table into the first region that has no entry, wherever the file
    /// ends.
    fn grow_table(
        &mut self,
        file: &MetadataFile,
        refcounts: &mut Refcounts,
        metadata: &dyn Fn(&Refcounts) -> Vec<(u64, u64)>,
    ) -> Result<()> {
        let growth = refcounts.growth()?;
        let Run { first, clusters } = growth.run();
        let bits = self.geometry.cluster_bits();
        check_unused(metadata(refcounts), growth.run(), bits)?;
        self.reserve(file, first + clusters)?;
        self.old_tables.push(refcounts.grow(file, &growth)?);
        self.scanned = self.scanned.max(first + clusters);
        self.end = self.end.max(first + clusters);
        Ok(())
    }

    /// Makes the file reach up to cluster `end`.
    fn reserve(&mut self, file: &MetadataFile, end: u64) -> Result<()> {
        if end <= self.file_end {
            return Ok(());
        }
        let full = || {
            Error::new(ErrorKind::NoSpace)
                .detail("all clusters of the image are in use, and its file or disk cannot grow")
        };
        if self.is_fixed {
            return Err(full());
        }
        let bits = self.geometry.cluster_bits();
        let step = (GROWTH >> bits).max(1);
        let bytes = |clusters: u64| {
            let bytes = clusters.checked_mul(1 << bits);
            bytes.ok_or_else(|| Error::new(ErrorKind::TooLarge))
        };
        // A limit of the process or the file system may leave room for less than a step.
        let mut wanted = end.next_multiple_of(step);
        let mut resized = file.0.resize(bytes(wanted)?);
        if resized.is_err() && wanted != end {
            wanted = end;
            resized = file.0.resize(bytes(wanted)?);
        }
        match resized {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.is_fixed = true;
                Err(full())
            }
            Err(error) => Err(error),
            Ok(()) => {
                self.file_end = wanted;
                Ok(())
            }
        }
    }
}

/// Metadata that counts as free would be overwritten.
fn check_unused(mut places: Vec<(u64, u64)>, run: Run, cluster_bits: u32) -> Result<()> {
    let (start, end) = (
        run.first << cluster_bits,
        (run.first + run.clusters) << cluster_bits,
    );
    places.retain(|(offset, bytes)| *offset < end && offset.saturating_add(*bytes) > start);
    match places.first() {
        None => Ok(()),
        Some((offset, _)) => Err(Error::new(ErrorKind::Corrupt)
            .detail(format!("qcow2 metadata at {offset:#x} has a refcount of 0"))
            .advice("check the image and repair it")),
    }
}
