//! The options of the allocator.
//!
//! The feature `ablation` adds a switch for each of the mballoc scalability patches
//! (docs/background.md) and for each improvement beyond them, so that the older behaviour can be
//! measured and tested. Without the feature, only the default behaviour and the linear scan are
//! compiled.

use extant_space::{Error, ErrorKind, Result};
use serde::Serialize;

/// The options of the allocator. [`Options::default`] suits every file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    /// Which groups are scanned, and in which order. Can be changed at run time
    /// ([`Allocator::set_policy`](crate::Allocator::set_policy)).
    pub policy: Policy,
    /// How a search treats a group that another thread holds.
    #[cfg(feature = "ablation")]
    pub busy_groups: BusyGroups,
    /// The groups where streams begin to search.
    #[cfg(feature = "ablation")]
    pub stream_goals: StreamGoals,
    /// How threads share the stream goal and the count of pending blocks.
    #[cfg(feature = "ablation")]
    pub shared_state: SharedState,
    /// How freed extents are recorded until the next commit.
    #[cfg(feature = "ablation")]
    pub freed_extents: FreedExtents,
    /// How the index treats groups without a free block.
    #[cfg(feature = "ablation")]
    pub full_groups: FullGroups,
    /// The data structure that finds groups by order.
    #[cfg(feature = "ablation")]
    pub index: IndexKind,
    /// Space reserved for files that grow.
    pub reservation: Reservation,
    /// Blocks that were allocated and freed inside one transaction.
    pub reuse: Reuse,
    /// Number of processors: an upper bound for the number of stream goals.
    pub cpus: usize,
    /// Blocks that only requests with
    /// [`RequestFlags::USE_RESERVE`](crate::RequestFlags::USE_RESERVE) may take.
    pub reserved_blocks: u64,
}

/// Which groups are scanned, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every group in order from the goal on (`mb_optimize_scan=0`).
    Linear,
    /// Groups that the index selects, in disk order (`mb_optimize_scan=1`).
    Optimised,
    /// As `Optimised`, but a new file begins at the last allocation of any file, so that the disk
    /// is used evenly.
    #[cfg(feature = "ablation")]
    Rotating,
}

/// How a search treats a group that another thread holds.
#[cfg(feature = "ablation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusyGroups {
    /// It is skipped, except in the last criterion.
    Skip,
    /// The search waits for it.
    Wait,
}

/// The groups where streams begin to search.
#[cfg(feature = "ablation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamGoals {
    /// As many as `PerCpu`, spread evenly over the groups. They never move: each part of the disk
    /// is filled from its start. A moving goal would leave holes behind and split long runs ahead.
    Sticky,
    /// The lesser of the processors and a quarter of the groups, at least one. An owner always has
    /// the same goal, which moves to its last allocation.
    PerCpu,
    /// One for all owners, which moves to the last allocation.
    One,
}

/// How threads share the stream goal and the count of pending blocks.
#[cfg(feature = "ablation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedState {
    /// Relaxed atomics.
    Atomics,
    /// One lock for the whole file system (`s_md_lock`).
    GlobalLock,
}

/// How freed extents are recorded until the next commit.
#[cfg(feature = "ablation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreedExtents {
    /// Merged with adjacent extents in the group; the list of the transaction names a group once.
    MergeFirst,
    /// Each extent enters the list of the transaction under its lock, then they are merged.
    InsertFirst,
}

/// How the index treats groups without a free block.
#[cfg(feature = "ablation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullGroups {
    /// They leave the index.
    LeaveIndex,
    /// They stay in the index of average free runs ("zombie groups").
    StayInIndex,
}

/// The data structure that finds groups by order.
#[cfg(feature = "ablation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexKind {
    /// Lock-free ordered sets; finds the next group from the goal on.
    Ordered,
    /// A list and a lock for each order; finds the group inserted first.
    Lists,
}

/// Space reserved for files that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reservation {
    /// A window behind the blocks of a file, of `growth` times its size, between `smallest` and
    /// `largest` blocks.
    Windows {
        /// Blocks of the first window.
        smallest: u32,
        /// Blocks of the largest window.
        largest: u32,
        /// Blocks reserved for each that the file has.
        growth: u32,
    },
    /// None: groups serve every request.
    None,
}

/// Whether growing files get new windows. Can be changed at run time
/// ([`Allocator::set_windows`](crate::Allocator::set_windows)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Windows {
    /// They do, as [`Options::reservation`] says.
    Open,
    /// They do not.
    Closed,
}

/// Blocks that were allocated and freed inside one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reuse {
    /// Free at once, as no committed state refers to them.
    InsideTransaction,
    /// Free after the commit, as all others.
    AfterCommit,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            policy: Policy::Optimised,
            #[cfg(feature = "ablation")]
            busy_groups: BusyGroups::Skip,
            #[cfg(feature = "ablation")]
            stream_goals: StreamGoals::Sticky,
            #[cfg(feature = "ablation")]
            shared_state: SharedState::Atomics,
            #[cfg(feature = "ablation")]
            freed_extents: FreedExtents::MergeFirst,
            #[cfg(feature = "ablation")]
            full_groups: FullGroups::LeaveIndex,
            #[cfg(feature = "ablation")]
            index: IndexKind::Ordered,
            reservation: Reservation::DEFAULT,
            reuse: Reuse::InsideTransaction,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            reserved_blocks: 0,
        }
    }
}

impl Options {
    /// Checks the limits of the windows.
    pub(crate) fn validate(&self) -> Result<()> {
        match self.reservation {
            Reservation::Windows {
                smallest, largest, ..
            } if smallest > largest => {
                let detail = format!("windows of at least {smallest} and at most {largest} blocks");
                Err(Error::new(ErrorKind::InvalidArgument).detail(detail))
            }
            _ => Ok(()),
        }
    }

    /// The kernel up to Linux 6.16, before the mballoc scalability patches, with the optimised
    /// scan.
    #[cfg(feature = "ablation")]
    pub fn before_scalability_patches() -> Self {
        Self {
            busy_groups: BusyGroups::Wait,
            stream_goals: StreamGoals::One,
            shared_state: SharedState::GlobalLock,
            freed_extents: FreedExtents::InsertFirst,
            full_groups: FullGroups::StayInIndex,
            index: IndexKind::Lists,
            reservation: Reservation::None,
            reuse: Reuse::AfterCommit,
            ..Self::default()
        }
    }

    /// The kernel with the scalability patches, without the improvements beyond them.
    #[cfg(feature = "ablation")]
    pub fn after_scalability_patches() -> Self {
        Self {
            stream_goals: StreamGoals::PerCpu,
            reservation: Reservation::None,
            reuse: Reuse::AfterCommit,
            ..Self::default()
        }
    }
}

impl Reservation {
    /// The default windows.
    pub const DEFAULT: Self = Self::Windows {
        smallest: 16,
        largest: 32_768,
        growth: 4,
    };
}
