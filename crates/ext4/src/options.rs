//! How a file system is opened.

use crate::time::ClockSource;
use std::time::Duration;

use extant_ondisk::ext4::{Access, Features, Incompat, RoCompat};
use extant_space::Result;

/// How a file system is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whether anything is written.
    pub access: Access,
    /// Whether the journal is replayed.
    pub replay: Replay,
    /// Reaction to corrupt metadata; by default that of the superblock.
    pub on_error: Option<OnError>,
    /// Longest wait of a change for its commit.
    pub commit_interval: Duration,
    /// Whether the device is informed of blocks that a commit has freed.
    pub discard: Discard,
    /// Whether new blocks are given their place on the device.
    pub assign: Assign,
    /// How the device zeroes blocks when written zeros are requested.
    pub zeroes: DeviceZeroes,
    /// Whether blocks kept for root may be taken.
    pub reserve: Reserve,
    /// The source of the times of changes.
    pub clock: ClockSource,
    /// How blocks are searched for, at first.
    pub allocator: AllocatorPolicy,
    /// Blocks of metadata kept in memory.
    pub cached_blocks: usize,
    /// Inodes kept in memory.
    pub cached_inodes: usize,
}

/// Whether a journal that needs recovery is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// It is; with read-only access the file system is seen as if it were.
    On,
    /// The journal is ignored (`noload` of mount(8)), and may be damaged. Requires read-only
    /// access. Committed blocks that were not checkpointed are not seen.
    Off,
}

/// Reaction to corrupt metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// Record it in the superblock and continue.
    Continue,
    /// Note it, and change nothing more.
    ReadOnly,
}

/// Whether freed blocks are discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Not.
    Off,
    /// When the transaction that freed them has committed.
    OnCommit,
}

/// Whether blocks are given their place on the device before they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assign {
    /// Not.
    Off,
    /// The blocks of `fallocate`, if the device supports it; a refusal is no error.
    Try,
    /// The blocks of `fallocate` and all metadata: a refusal or `NoSpace` of the device is an error
    /// of opening, or of the operation that needs the blocks, and no accepted operation fails later
    /// because a layer below is full.
    Require,
}

/// Whether the blocks may be taken that the file system keeps for root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Not, as for all users but root.
    Keep,
    /// They may.
    Take,
}

/// How blocks are searched for. Can be changed while the file system is open
/// ([`Filesystem::set_allocator_policy`](crate::Filesystem::set_allocator_policy)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatorPolicy {
    /// Which groups are scanned.
    pub scan: GroupScan,
    /// Whether space is reserved behind files that grow.
    pub reservation: Reservation,
}

/// Which groups a search scans (`mb_optimize_scan` of ext4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupScan {
    /// All in order from the goal on (0).
    Linear,
    /// Those that an index of free runs selects (1).
    Optimised,
}

/// Whether files that grow get windows (`reservation` and `noreservation` of ext2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reservation {
    /// Blocks behind those of a file are reserved for it until it is closed, or others need them.
    Windows,
    /// None: the blocks of files that grow concurrently interleave.
    None,
}

impl Default for AllocatorPolicy {
    fn default() -> Self {
        Self {
            scan: GroupScan::Optimised,
            reservation: Reservation::Windows,
        }
    }
}

/// How the device zeroes blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceZeroes {
    /// With their place on the device: no later write fails because a layer below is full.
    Allocated,
    /// It may free the space, so that an image stays sparse.
    MayUnmap,
    /// With their place, and written in every layer below it: a later overwrite of the file changes
    /// no metadata in any of them.
    Written,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            access: Access::ReadWrite,
            replay: Replay::On,
            on_error: None,
            commit_interval: Duration::from_secs(5),
            discard: Discard::Off,
            assign: Assign::Try,
            zeroes: DeviceZeroes::Written,
            reserve: Reserve::Keep,
            clock: ClockSource::Tick,
            allocator: AllocatorPolicy::default(),
            cached_blocks: 16 * 1024,
            cached_inodes: 64 * 1024,
        }
    }
}

/// Refuses features that the engine does not carry out.
///
/// # Errors
/// `Unsupported`, with their names.
pub(crate) fn check_features(features: &Features, access: Access) -> Result<()> {
    features.check(&supported(access), access).map_err(|error| {
        let reading = Access::ReadOnly;
        match access {
            Access::ReadWrite if features.check(&supported(reading), reading).is_ok() => {
                error.advice("open it read-only")
            }
            _ => error,
        }
    })
}

/// The features that the engine carries out. Some only concern the files that use them, which are
/// refused one by one.
fn supported(access: Access) -> Features {
    let mut features = Features::UNDERSTOOD;
    features.incompat |= Incompat::CASEFOLD | Incompat::ENCRYPT;
    features.ro_compat |= RoCompat::VERITY;
    match access {
        Access::ReadOnly => features.incompat |= Incompat::INLINE_DATA | Incompat::MMP,
        // Values in inodes of their own are read; the engine does not count their users.
        Access::ReadWrite => features.incompat.remove(Incompat::EA_INODE),
    }
    features
}
