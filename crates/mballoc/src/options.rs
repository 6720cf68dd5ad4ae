//! How the allocator behaves: each part of seeds/1's series, and what goes further, can be set
//! alone.
//!
//! [`Options::default`] is what to use. [`Options::before_the_series`] is what the kernel did up to
//! Linux 6.16, to be measured against.

use extant_space::{Error, ErrorKind, Result};
use serde::Serialize;

/// The parts of the allocator's behaviour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    /// Which groups are searched, and in which order. Can be switched later.
    pub policy: Policy,
    /// What happens when another thread holds a group.
    pub busy_groups: BusyGroups,
    /// Where owners begin to search.
    pub stream_goals: StreamGoals,
    /// How threads share the stream goal and the count of pending blocks.
    pub shared_state: SharedState,
    /// What becomes of blocks freed until the next commit.
    pub freed_extents: FreedExtents,
    /// What becomes of groups without a free block.
    pub full_groups: FullGroups,
    /// How groups are found by order.
    pub index: IndexKind,
    /// Space kept for files that grow.
    pub reservation: Reservation,
    /// Blocks that were allocated and freed inside one transaction.
    pub reuse: Reuse,
    /// Processors to spread over; see [`StreamGoals`].
    pub cpus: usize,
    /// Blocks that only requests with
    /// [`RequestFlags::USE_RESERVE`](crate::RequestFlags::USE_RESERVE) may take.
    pub reserved_blocks: u64,
}

/// Which groups are searched, and in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every group from the goal on, one after the other (`mb_optimize_scan=0`). For measuring.
    Linear,
    /// Groups that the index says will do, in the order of the disk (`mb_optimize_scan=1`).
    Optimised,
    /// As `Optimised`, but a new file begins where the last allocation of any ended, so that the
    /// whole disk is used evenly.
    Rotating,
}

/// What happens when another thread holds a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BusyGroups {
    /// Skip to the next, in all but the last criterion.
    Skip,
    /// Wait for it.
    Wait,
}

/// Where owners begin to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum StreamGoals {
    /// As many as `PerCpu`, spread evenly over the groups, and they stay where they are: each part
    /// of the disk is filled from its begin. A goal that moves on leaves holes behind and breaks
    /// long runs ahead instead.
    Homes,
    /// The lesser of the processors and a quarter of the groups, at least one; an owner always has
    /// the same. Each moves to where its last allocation was.
    PerCpu,
    /// One for all, which moves.
    One,
}

/// How threads share the stream goal and the count of pending blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharedState {
    /// Atomics without an order among them.
    Atomics,
    /// One lock for the whole file system (`s_md_lock`).
    GlobalLock,
}

/// What becomes of blocks freed until the next commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FreedExtents {
    /// Merged with their neighbours in the group; the list of the transaction learns of a group
    /// once.
    MergeFirst,
    /// Each entered into the list of the transaction under its lock, then merged.
    InsertFirst,
}

/// What becomes of groups without a free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FullGroups {
    /// They leave the index.
    LeaveIndex,
    /// They stay in the index of average free runs ("zombie groups").
    StayInIndex,
}

/// How groups are found by order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IndexKind {
    /// Ordered sets without locks; the next group from the goal on.
    Ordered,
    /// A list and a lock for each order; the group that has waited longest.
    Lists,
}

/// Space kept for files that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reservation {
    /// A window behind what a file has, of `growth` times its size, between `smallest` and
    /// `largest` blocks.
    Windows {
        /// Blocks of the first window.
        smallest: u32,
        /// Blocks of the largest window.
        largest: u32,
        /// Blocks reserved for each that the file has.
        growth: u32,
    },
    /// None: every request goes to the groups.
    None,
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
            busy_groups: BusyGroups::Skip,
            stream_goals: StreamGoals::Homes,
            shared_state: SharedState::Atomics,
            freed_extents: FreedExtents::MergeFirst,
            full_groups: FullGroups::LeaveIndex,
            index: IndexKind::Ordered,
            reservation: Reservation::DEFAULT,
            reuse: Reuse::InsideTransaction,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            reserved_blocks: 0,
        }
    }
}

impl Options {
    /// Refuses windows that no length fits.
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

    /// The kernel before the mballoc scalability patches (docs/background.md), with the optimised
    /// scan.
    pub fn before_the_series() -> Self {
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

    /// The kernel with the mballoc scalability patches, without the extensions made here.
    pub fn after_the_series() -> Self {
        Self {
            stream_goals: StreamGoals::PerCpu,
            reservation: Reservation::None,
            reuse: Reuse::AfterCommit,
            ..Self::default()
        }
    }
}

impl Reservation {
    /// Windows as by default.
    pub const DEFAULT: Self = Self::Windows {
        smallest: 16,
        largest: 32_768,
        growth: 4,
    };
}
