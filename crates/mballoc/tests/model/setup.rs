//! Start of a comparison: options, geometry, and blocks in use.

use extant_mballoc::{
    Block, BusyGroups, FreedExtents, FullGroups, Geometry, IndexKind, Options, Policy, Reservation,
    Reuse, SharedState, StreamGoals,
};
use proptest::prelude::*;

/// The disk.
#[derive(Clone, Debug)]
pub struct Setup {
    pub geometry: Geometry,
    pub pattern: Pattern,
}

/// The blocks in use at first: runs of `run` blocks, in use or not depending on `seed`, on average
/// `used` of eight runs.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    pub seed: u64,
    pub used: u64,
    pub run: u64,
}

impl Pattern {
    pub fn is_used(self, block: Block) -> bool {
        let mixed = (block.0 / self.run + 1).wrapping_mul(self.seed | 1);
        (mixed ^ mixed >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61 < self.used
    }
}

impl Setup {
    /// Small disks: groups of words and of parts of words, a first block that is not 0, a short
    /// last group.
    pub fn any() -> impl Strategy<Value = Self> {
        let blocks_per_group = prop::sample::select(vec![8u32, 64, 100, 256, 1000, 4096]);
        let first = prop::sample::select(vec![0u64, 1, 77]);
        let pattern = (
            any::<u64>(),
            0..=8u64,
            prop::sample::select(vec![1u64, 3, 20, 64]),
        );
        (blocks_per_group, first, 1..10u64, 0.0..1.0f64, pattern).prop_map(
            |(blocks_per_group, first, groups, last, (seed, used, run))| {
                let per_group = u64::from(blocks_per_group);
                let short = (per_group as f64 * last) as u64;
                Self {
                    geometry: Geometry {
                        first: Block(first),
                        end: Block(first + groups * per_group - short),
                        blocks_per_group,
                    },
                    pattern: Pattern { seed, used, run },
                }
            },
        )
    }
}

/// Windows that fit small disks, and several goals on any machine.
pub fn small(options: Options) -> Options {
    let reservation = match options.reservation {
        Reservation::None => Reservation::None,
        Reservation::Windows { .. } => Reservation::Windows {
            smallest: 4,
            largest: 200,
            growth: 2,
        },
    };
    Options {
        reservation,
        cpus: 3,
        ..options
    }
}

/// The default, the behaviours of the kernel, and each part that differs on its own.
pub fn parts() -> Vec<(&'static str, Options)> {
    let default = || small(Options::default());
    let large = Reservation::DEFAULT;
    vec![
        ("default", default()),
        (
            "before the scalability patches",
            small(Options::before_scalability_patches()),
        ),
        (
            "after the scalability patches",
            small(Options::after_scalability_patches()),
        ),
        (
            "linear",
            Options {
                policy: Policy::Linear,
                ..default()
            },
        ),
        (
            "rotating",
            Options {
                policy: Policy::Rotating,
                ..default()
            },
        ),
        (
            "wait for busy groups",
            Options {
                busy_groups: BusyGroups::Wait,
                ..default()
            },
        ),
        (
            "goals that move",
            Options {
                stream_goals: StreamGoals::PerCpu,
                ..default()
            },
        ),
        (
            "one goal",
            Options {
                stream_goals: StreamGoals::One,
                ..default()
            },
        ),
        (
            "global lock",
            Options {
                shared_state: SharedState::GlobalLock,
                ..default()
            },
        ),
        (
            "insert first",
            Options {
                freed_extents: FreedExtents::InsertFirst,
                ..default()
            },
        ),
        (
            "full groups stay",
            Options {
                full_groups: FullGroups::StayInIndex,
                ..default()
            },
        ),
        (
            "lists",
            Options {
                index: IndexKind::Lists,
                ..default()
            },
        ),
        (
            "no windows",
            Options {
                reservation: Reservation::None,
                ..default()
            },
        ),
        (
            "large windows",
            Options {
                reservation: large,
                ..default()
            },
        ),
        (
            "no reuse",
            Options {
                reuse: Reuse::AfterCommit,
                ..default()
            },
        ),
        (
            "reserve",
            Options {
                reserved_blocks: 50,
                ..default()
            },
        ),
    ]
}
