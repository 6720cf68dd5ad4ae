//! Cluster map: which guest clusters are allocated in a new image, and where: contiguously, in
//! guest order.

use std::ops::Range;

use extant_space::ByteRange;

use crate::format::Geometry;

/// Runs of the guest's clusters, in order, apart from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClusterMap {
    runs: Vec<Run>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    guest: u64,
    place: u64,
    count: u64,
}

impl ClusterMap {
    /// Every cluster, from the start of a file.
    pub(crate) fn all(clusters: u64) -> Self {
        let run = Run {
            guest: 0,
            place: 0,
            count: clusters,
        };
        Self {
            runs: (clusters > 0).then_some(run).into_iter().collect(),
        }
    }

    /// The clusters that `data` touches, which is in order.
    pub(crate) fn of(data: &[ByteRange], geometry: Geometry) -> Self {
        let bits = geometry.cluster_bits();
        let mut runs: Vec<Run> = Vec::new();
        let mut place = 0;
        for range in data.iter().filter(|range| !range.is_empty()) {
            let known = runs.last().map_or(0, |run| run.guest + run.count);
            let start = (range.start() >> bits).max(known);
            let end = geometry.clusters(range.end());
            if start >= end {
                continue;
            }
            let count = end - start;
            match runs.last_mut().filter(|_| start == known) {
                Some(run) => run.count += count,
                None => runs.push(Run {
                    guest: start,
                    place,
                    count,
                }),
            }
            place += count;
        }
        Self { runs }
    }

    /// The same, with the first at `start`.
    pub(crate) fn from(mut self, start: u64) -> Self {
        for run in &mut self.runs {
            run.place += start;
        }
        self
    }

    pub(crate) fn clusters(&self) -> u64 {
        self.runs.iter().map(|run| run.count).sum()
    }

    /// The L2 tables that map them, by number, in order.
    pub(crate) fn tables(&self, geometry: Geometry) -> Vec<u64> {
        let entries = geometry.l2_entries();
        let mut tables = Vec::new();
        let mut next = 0;
        for run in &self.runs {
            let first = (run.guest / entries).max(next);
            next = (run.guest + run.count).div_ceil(entries).max(first);
            tables.extend(first..next);
        }
        tables
    }

    /// File offset of an allocated cluster, and the number of contiguous clusters from there.
    pub(crate) fn place(&self, cluster: u64) -> (u64, u64) {
        let after = self.runs.partition_point(|run| run.guest <= cluster);
        let run = self.runs[after.checked_sub(1).expect("a cluster with a place")];
        let within = cluster - run.guest;
        assert!(within < run.count, "cluster {cluster} has no place");
        (run.place + within, run.count - within)
    }

    /// Visits the places of a range of clusters; `None` for those without.
    pub(crate) fn for_each(&self, range: Range<u64>, visit: &mut dyn FnMut(Option<u64>)) {
        let first = self
            .runs
            .partition_point(|run| run.guest + run.count <= range.start);
        let mut at = range.start;
        for run in &self.runs[first..] {
            if run.guest >= range.end {
                break;
            }
            (at..run.guest).for_each(|_| visit(None));
            at = at.max(run.guest);
            let end = (run.guest + run.count).min(range.end);
            (at..end).for_each(|cluster| visit(Some(run.place + (cluster - run.guest))));
            at = end;
        }
        (at..range.end).for_each(|_| visit(None));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn touched_clusters_and_no_others_have_places_in_order(
            mut cuts in prop::collection::vec(0u64..600_000, 0..20),
        ) {
            let geometry = Geometry::new(12, 4).unwrap();
            cuts.sort_unstable();
            let data: Vec<ByteRange> = cuts
                .chunks_exact(2)
                .map(|cut| ByteRange::new(cut[0], cut[1]))
                .collect();
            let placed = ClusterMap::of(&data, geometry).from(7);
            let mut expected = 7;
            let mut found = Vec::new();
            placed.for_each(0..160, &mut |place| found.push(place));
            for (cluster, place) in (0u64..).zip(found) {
                let bytes = ByteRange::new(cluster * 4096, (cluster + 1) * 4096);
                let is_touched = data.iter().any(|range| range.intersection(bytes).is_some());
                prop_assert_eq!(place.is_some(), is_touched);
                if let Some(place) = place {
                    prop_assert_eq!(place, expected);
                    prop_assert_eq!(placed.place(cluster).0, place);
                    expected += 1;
                }
            }
            prop_assert_eq!(placed.clusters(), expected - 7);
            for table in placed.tables(geometry) {
                prop_assert!(table < 2);
            }
        }
    }
}
