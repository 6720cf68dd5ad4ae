//! Windows: free clusters reserved behind the last one of a sequential stream of guest writes, so
//! that guest-contiguous data is contiguous in the file although several streams allocate in turn.
//!
//! Model: a stream continues at the guest cluster after its last one, or a little later, because
//! requests of a stream overtake each other. An allocation that continues a stream reserves the
//! clusters that it skipped, the *gap*, and a window behind it. An allocation inside a window takes
//! the cluster of the file at the same distance and splits the window, so that data is laid out in
//! guest order.
//!
//! Invariants:
//! - windows exist in memory only: their clusters are counted as free and read as zeros, so that a
//!   crash leaves nothing of them;
//! - the window and the gaps of a stream together have no more clusters than it has allocated, and
//!   a window has at most `WINDOW_BYTES_MAX`; an allocation that continues no stream reserves
//!   nothing.

use super::space::Run;
use crate::format::Geometry;

/// The stream that was used the longest ago is forgotten when one more begins.
const STREAMS_MAX: usize = 32;
const WINDOW_BYTES_MAX: u64 = 64 << 20;

struct Stream {
    /// The number of the stream; a gap has that of its stream.
    number: u64,
    /// The guest cluster that the window begins with.
    guest: u64,
    /// May be empty.
    window: Run,
    /// Clusters that it has allocated, without those that its gaps hold.
    credit: u64,
    /// Clusters that requests have skipped: no stream continues there.
    is_gap: bool,
}

/// Clusters that an allocation reserves before and behind itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reserve {
    pub gap: u64,
    pub window: u64,
}

impl Stream {
    fn gap(number: u64, guest: u64, window: Run) -> Self {
        Self {
            number,
            guest,
            window,
            credit: 0,
            is_gap: true,
        }
    }

    fn covers(&self, guest: u64) -> bool {
        guest
            .checked_sub(self.guest)
            .is_some_and(|skipped| skipped < self.window.clusters)
    }
}

pub(super) struct Windows {
    /// In the order of their last use.
    streams: Vec<Stream>,
    next_number: u64,
    window_clusters_max: u64,
    /// Clusters of the guest's disk.
    disk_clusters: u64,
    /// Windows of streams that were forgotten; for the owner to free.
    pub(super) left: Vec<Run>,
}

impl Windows {
    pub(super) fn new(geometry: Geometry, disk_clusters: u64) -> Self {
        Self {
            streams: Vec::new(),
            next_number: 0,
            window_clusters_max: WINDOW_BYTES_MAX >> geometry.cluster_bits(),
            disk_clusters,
            left: Vec::new(),
        }
    }

    /// Up to `clusters` clusters of the window that covers guest cluster `guest`.
    pub(super) fn take(&mut self, guest: u64, clusters: u64) -> Option<Run> {
        let at = self.streams.iter().rposition(|one| one.covers(guest))?;
        let mut stream = self.streams.remove(at);
        let skipped = guest - stream.guest;
        let (gap, rest) = stream.window.split_at(skipped);
        let (taken, rest) = rest.split_at(clusters);
        if skipped > 0 {
            self.push(Stream::gap(stream.number, stream.guest, gap));
        }
        stream.guest = guest + taken.clusters;
        stream.window = rest;
        if !stream.is_gap {
            stream.credit = (stream.credit + taken.clusters).saturating_sub(skipped);
        } else if let Some(owner) = self.owner_of(stream.number) {
            // They are allocated, and the gap does not hold them any more.
            owner.credit += 2 * taken.clusters;
        }
        if !(stream.is_gap && rest.clusters == 0) {
            self.push(stream);
        }
        Some(taken)
    }

    fn owner_of(&mut self, number: u64) -> Option<&mut Stream> {
        let mut streams = self.streams.iter_mut();
        streams.find(|one| one.number == number && !one.is_gap)
    }

    /// Reserve for an allocation of `clusters` for guest cluster `guest`.
    pub(super) fn wanted(&self, guest: u64, clusters: u64) -> Reserve {
        let Some((_, gap, most)) = self.continued(guest) else {
            return Reserve::default();
        };
        let left = self.disk_clusters.saturating_sub(guest + clusters);
        Reserve {
            gap,
            window: (most - gap).min(left),
        }
    }

    /// Takes note of an allocation of `clusters` for guest cluster `guest`, and of its reserve.
    pub(super) fn add(&mut self, guest: u64, clusters: u64, gap: Run, window: Run) {
        let (number, mut credit) = match self.continued(guest) {
            Some((at, ..)) => {
                let old = self.streams.remove(at);
                if old.window.clusters > 0 {
                    self.push(Stream::gap(old.number, old.guest, old.window));
                }
                (old.number, old.credit - old.window.clusters)
            }
            None => {
                self.next_number += 1;
                (self.next_number, 0)
            }
        };
        credit = credit.saturating_sub(gap.clusters) + clusters;
        if gap.clusters > 0 {
            self.push(Stream::gap(number, guest - gap.clusters, gap));
        }
        self.push(Stream {
            number,
            guest: guest + clusters,
            window,
            credit,
            is_gap: false,
        });
    }

    /// The stream that guest cluster `guest` continues, how many clusters it skips, and how many it
    /// may reserve.
    fn continued(&self, guest: u64) -> Option<(usize, u64, u64)> {
        let streams = self.streams.iter().enumerate().rev();
        let mut streams = streams.filter(|(_, one)| !one.is_gap);
        streams.find_map(|(at, one)| {
            let gap = guest.checked_sub(one.guest + one.window.clusters)?;
            let most = one.credit.checked_sub(one.window.clusters)?;
            let most = most.min(self.window_clusters_max);
            (gap <= most).then_some((at, gap, most))
        })
    }

    pub(super) fn are_empty(&self) -> bool {
        self.streams.iter().all(|one| one.window.clusters == 0)
    }

    /// Gives up all windows; the streams remain.
    pub(super) fn clear(&mut self) {
        for stream in &mut self.streams {
            let (none, window) = stream.window.split_at(0);
            stream.window = none;
            self.left.push(window);
        }
        self.streams.retain(|one| !one.is_gap);
    }

    fn push(&mut self, stream: Stream) {
        if self.streams.len() == STREAMS_MAX {
            self.left.push(self.streams.remove(0).window);
        }
        self.streams.push(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, clusters: u64) -> Run {
        Run { first, clusters }
    }

    fn windows(disk_clusters: u64) -> Windows {
        Windows::new(Geometry::new(16, 4).unwrap(), disk_clusters)
    }

    const NONE: Run = Run {
        first: 0,
        clusters: 0,
    };

    fn reserve(gap: u64, window: u64) -> Reserve {
        Reserve { gap, window }
    }

    #[test]
    fn window_grows_with_its_stream_and_ends_with_the_disk() {
        let mut windows = windows(100);
        assert_eq!(windows.wanted(10, 4), reserve(0, 0));
        windows.add(10, 4, NONE, NONE);
        assert_eq!(windows.wanted(14, 4), reserve(0, 4));
        windows.add(14, 4, NONE, run(84, 4));
        assert_eq!(windows.take(18, 8), Some(run(84, 4)));
        assert_eq!(windows.take(22, 8), None);
        assert_eq!(windows.wanted(22, 2), reserve(0, 12));
        assert_eq!(windows.wanted(22, 70), reserve(0, 8));
    }

    #[test]
    fn requests_inside_a_window_are_laid_out_in_guest_order() {
        let mut windows = windows(1 << 20);
        windows.add(0, 8, NONE, run(8, 8));
        assert_eq!(windows.take(10, 2), Some(run(10, 2)));
        assert_eq!(windows.take(8, 1), Some(run(8, 1)));
        assert_eq!(windows.take(12, 4), Some(run(12, 4)));
        assert_eq!(windows.take(9, 9), Some(run(9, 1)));
        assert_eq!(windows.take(9, 1), None);
        assert!(windows.are_empty());
        // The stream continues, and the gaps do not.
        assert_eq!(windows.wanted(16, 1), reserve(0, 16));
        assert_eq!(windows.wanted(10, 1), reserve(0, 0));
    }

    #[test]
    fn requests_that_skip_a_little_leave_a_gap_for_those_that_they_overtook() {
        let mut windows = windows(1 << 20);
        windows.add(0, 4, NONE, run(4, 2));
        // Clusters 4 and 5 are in the window, 6 is skipped.
        assert_eq!(windows.wanted(7, 1), reserve(1, 1));
        windows.add(7, 1, run(20, 1), run(22, 1));
        assert_eq!(windows.take(6, 1), Some(run(20, 1)));
        assert_eq!(windows.take(5, 1), Some(run(5, 1)));
        assert_eq!(windows.take(8, 9), Some(run(22, 1)));
        assert_eq!(windows.take(4, 1), Some(run(4, 1)));
        // All that was skipped is allocated. The next request may skip as many.
        assert_eq!(windows.wanted(9 + 10, 1), reserve(0, 0));
        assert_eq!(windows.wanted(9 + 9, 1), reserve(9, 0));
    }

    #[test]
    fn reserve_is_never_larger_than_what_is_allocated() {
        let mut windows = windows(1 << 30);
        let mut random = fastrand::Rng::with_seed(1);
        let (mut next, mut allocated) = (0, 0);
        for _ in 0..5000 {
            // A writer that skips whatever it may, and goes back at times.
            let guest = match random.u64(..4) {
                0 => random.u64(..allocated + 10),
                _ => allocated + random.u64(..allocated / 2 + 3),
            };
            let clusters = random.u64(1..5);
            allocated += match windows.take(guest, clusters) {
                Some(run) => run.clusters,
                None => {
                    let Reserve { gap, window } = windows.wanted(guest, clusters);
                    let run = |clusters: u64| {
                        next += clusters;
                        Run {
                            first: next - clusters,
                            clusters,
                        }
                    };
                    let [gap, _, window] = [gap, clusters, window].map(run);
                    windows.add(guest, clusters, gap, window);
                    clusters
                }
            };
            let held: u64 = windows.streams.iter().map(|one| one.window.clusters).sum();
            assert!(held <= allocated, "{held} of {allocated}");
        }
    }

    #[test]
    fn forgotten_streams_leave_their_windows_to_the_owner() {
        let mut windows = windows(u64::MAX);
        for number in 0..STREAMS_MAX as u64 + 2 {
            windows.add(number << 20, 1, NONE, run(number << 10, 5));
        }
        assert_eq!(windows.left, [run(0, 5), run(1 << 10, 5)]);
        assert_eq!(windows.take(1, 1), None);
        windows.left.clear();
        windows.clear();
        let left: u64 = windows.left.iter().map(|run| run.clusters).sum();
        assert_eq!(left, STREAMS_MAX as u64 * 5);
        assert!(windows.are_empty());
        assert_eq!(windows.wanted((5 << 20) + 1, 1), reserve(0, 1));
    }
}
