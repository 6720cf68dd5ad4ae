//! The lives that are cut.

use std::ops::Range;

use extant_space::FallocateMode;
use extant_testkit::{require, requires, seeds};

use crate::image::{BIG_BLOCKS, FAST, Format, MANY_GROUPS, MAPS, OLD_FEATURES, PLAIN};
use crate::life::Life;
use crate::step::Step;
use crate::survive::Thoroughness;
use crate::{random, scripts};

/// States of each position that are verified.
fn thoroughness(usual: u64) -> Thoroughness {
    Thoroughness {
        seed: 1,
        states_max: seeds::number("EXTANT_POWER_CUTS", usual),
    }
}

/// A script in several formats; at least `cuts_min` cuts.
#[track_caller]
fn survives(
    name: &str,
    formats: &[(&str, Format)],
    script: fn() -> Vec<Step>,
    states: u64,
    cuts_min: usize,
) {
    let cuts: usize = formats
        .iter()
        .map(|(format, of)| {
            let life = Life::alone(format!("{name} {format}"), *of, script());
            let failed = &life.actors[0].failed;
            assert!(failed.is_empty(), "{failed:?}");
            life.survive(thoroughness(states))
        })
        .sum();
    assert!(cuts >= cuts_min, "{cuts} cuts");
}

const NEW_AND_OLD: [(&str, Format); 2] = [("plain", PLAIN), ("old", OLD_FEATURES)];

#[test]
fn names_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("names", &NEW_AND_OLD, scripts::names, 24, 1000);
}

#[test]
fn data_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let formats = [("plain", PLAIN), ("big blocks", BIG_BLOCKS)];
    survives("data", &formats, scripts::data, 24, 1000);
}

#[test]
fn allocations_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("allocations", &NEW_AND_OLD, scripts::allocations, 24, 1000);
}

#[test]
fn files_in_pieces_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("pieces", &[("plain", PLAIN)], scripts::pieces, 24, 1000);
}

#[test]
fn long_cuts_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let formats = [("plain", PLAIN), ("many groups", MANY_GROUPS)];
    survives("long cuts", &formats, scripts::long_cuts, 4, 1000);
}

#[test]
fn orphans_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("orphans", &NEW_AND_OLD, scripts::orphans, 24, 1000);
}

#[test]
fn big_directory_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives(
        "big directory",
        &NEW_AND_OLD,
        scripts::big_directory,
        24,
        1000,
    );
}

#[test]
fn attributes_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("attributes", &NEW_AND_OLD, scripts::attributes, 24, 500);
}

#[test]
fn log_that_wraps_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let formats = [("plain", PLAIN), ("many groups", MANY_GROUPS)];
    survives("round", &formats, scripts::round_and_round, 24, 1000);
}

#[test]
fn files_synced_together_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for (name, format) in NEW_AND_OLD {
        let scripts = (0..3).map(scripts::together).collect();
        let life = Life::together(format!("together {name}"), format, scripts);
        assert!(life.survive(thoroughness(24)) >= 1000);
    }
}

const WITH_MAPS: [(&str, Format); 1] = [("maps", MAPS)];

#[test]
fn names_in_block_maps_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("names", &WITH_MAPS, scripts::names, 8, 300);
    survives("orphans", &WITH_MAPS, scripts::orphans, 8, 200);
}

#[test]
fn data_in_block_maps_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("data", &WITH_MAPS, || in_maps(scripts::data()), 8, 300);
    survives("pieces", &WITH_MAPS, || in_maps(scripts::pieces()), 4, 200);
    survives("long cuts", &WITH_MAPS, scripts::long_cuts, 2, 200);
}

/// The steps that a block map takes: of `fallocate`, holes alone.
fn in_maps(steps: Vec<Step>) -> Vec<Step> {
    let is_taken = |step: &Step| match step {
        Step::Fallocate(_, mode, ..) => *mode == FallocateMode::PunchHole,
        _ => true,
    };
    steps.into_iter().filter(is_taken).collect()
}

const WITH_FAST_COMMITS: [(&str, Format); 1] = [("fast", FAST)];

#[test]
fn names_of_fast_commits_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("names", &WITH_FAST_COMMITS, scripts::names, 24, 500);
    survives("orphans", &WITH_FAST_COMMITS, scripts::orphans, 24, 500);
    survives(
        "attributes",
        &WITH_FAST_COMMITS,
        scripts::attributes,
        24,
        300,
    );
}

#[test]
fn data_of_fast_commits_survives_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives("data", &WITH_FAST_COMMITS, scripts::data, 24, 1000);
    survives(
        "allocations",
        &WITH_FAST_COMMITS,
        scripts::allocations,
        24,
        1000,
    );
    survives("pieces", &WITH_FAST_COMMITS, scripts::pieces, 24, 1000);
}

#[test]
fn fast_commits_between_full_ones_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    survives(
        "round",
        &WITH_FAST_COMMITS,
        scripts::round_and_round,
        24,
        1000,
    );
    let scripts = (0..3).map(scripts::together).collect();
    let life = Life::together("together fast", FAST, scripts);
    assert!(life.survive(thoroughness(24)) >= 1000);
}

/// Seeds that have found something, besides the first few.
const FOUND: [u64; 2] = [10229, 20005];

/// Lives in block maps: `random::life` knows them by their number.
const MAPPED: Range<u64> = random::MAPPED..random::MAPPED + 2;

fn random_lives(seeds: impl Iterator<Item = u64>) {
    let mut cuts = 0;
    for seed in seeds {
        let (format, steps) = random::life(seed);
        let life = Life::alone(format!("random {seed}"), format, steps);
        cuts += life.survive(Thoroughness {
            seed,
            ..thoroughness(24)
        });
    }
    seeds::counted(cuts, "cuts");
}

#[test]
fn random_lives_survive_every_power_cut() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    match seeds::given("EXTANT_POWER_SEEDS") {
        Some(seeds) => random_lives(seeds),
        None => random_lives((0..8).chain(FOUND).chain(MAPPED)),
    }
}
