//! The operations that sequences consist of.

use extant_blockdev::{Persistence, ZeroedSpace};
use extant_testkit::exhaustive::Move;

/// Bytes of a cluster: four sectors, so that writes of a part copy the rest.
pub const CLUSTER: u64 = 2048;
/// Bytes of the disk.
pub const DISK: u64 = 16 * CLUSTER;
/// Bytes of the disk after it has grown: its table of clusters has to as well.
pub const GROWN: u64 = 20 * CLUSTER;
/// Bytes of the disk after it has shrunk, with an end inside a cluster.
pub const SHRUNK: u64 = 9 * CLUSTER + 512;

/// One request, or a change of the closed image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write(u64, u64, Persistence),
    Zero(u64, u64, ZeroedSpace),
    Discard(u64, u64),
    Assign(u64, u64),
    /// Closes the image, resizes it, and opens it again.
    Resize(u64),
    Flush,
    /// Flushes, closes the image, and opens it again.
    Reopen,
}

/// Every operation with nothing, a flush, or opening the image again behind it.
pub fn moves() -> Vec<Move<Step>> {
    let with = |step| {
        let syncs = [None, Some(Step::Flush), Some(Step::Reopen)];
        syncs.map(|sync| Move {
            steps: vec![step],
            sync,
        })
    };
    operations().into_iter().flat_map(with).collect()
}

/// Clusters 0, 1, 4 and 5 hold data; 2 is zeros by its flag, 6 by its flag and allocated; 3 and all
/// from 7 on are unallocated. With a snapshot, it shares 0, 1 and 5.
fn operations() -> Vec<Step> {
    use Persistence::{Cached, Fua};
    use Step::{Assign, Discard, Resize, Write, Zero};
    use ZeroedSpace::{Allocated, MayUnmap, Written};
    const C: u64 = CLUSTER;
    vec![
        // In place, or of a shared cluster.
        Write(0, C, Cached),
        Write(512, 512, Cached),
        Write(4 * C + 512, 1024, Cached),
        // Of zeros and of nothing.
        Write(2 * C, C, Cached),
        Write(2 * C + 512, 512, Cached),
        Write(3 * C, C, Cached),
        Write(3 * C + 1024, 512, Cached),
        Write(6 * C + 512, 512, Cached),
        // Of several sorts, and of many clusters.
        Write(C + 1024, 3 * C, Cached),
        Write(7 * C, 5 * C, Cached),
        Write(8 * C, 1024, Cached),
        Write(3 * C, C, Fua),
        Write(C, 512, Fua),
        Zero(0, C, MayUnmap),
        Zero(0, C, Allocated),
        Zero(0, C, Written),
        Zero(C + 512, 2 * C, MayUnmap),
        Zero(3 * C, 2 * C, Written),
        Zero(4 * C, 2 * C, Allocated),
        Discard(0, 2 * C),
        Discard(C + 512, C),
        Discard(0, SHRUNK),
        Assign(2 * C, 2 * C),
        Assign(8 * C, C),
        Resize(GROWN),
        Resize(SHRUNK),
    ]
}
