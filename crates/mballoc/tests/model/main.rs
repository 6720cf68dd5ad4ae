//! The allocator compared with a naive one, under the same random events.
//!
//! After each event both are compared: every block is free or owned once, counters and index are
//! those of the bits (`Allocator::check`), windows are disjoint and free, results satisfy the
//! request, and there is "no space" only if the naive one has none either.
//!
//! Cases are seeds; `EXTANT_MODEL_SEEDS=A..B` chooses others. A failure prints the line that
//! repeats it, and the smallest list of events that fails.

#![cfg(not(feature = "shuttle"))]

#[path = "../disk/mod.rs"]
mod disk;
mod event;
mod setup;
mod world;

use std::ops::Range;

use extant_mballoc::Options;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use setup::{Setup, parts};

/// Compares both under the events of some seeds, with each of the options.
fn compare(test: &str, options: &[(&str, Options)], seeds: Range<u64>, sizes: event::Sizes) {
    let seeds = extant_testkit::seeds::seeds("EXTANT_MODEL_SEEDS", seeds);
    extant_testkit::seeds::counted(seeds.end - seeds.start, "runs");
    for seed in seeds {
        let (name, options) = &options[seed as usize % options.len()];
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: 4096,
            ..Config::default()
        };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let cases = (Setup::any(), event::list(sizes));
        let outcome = runner.run(&cases, |(setup, events)| {
            world::run(&setup, options, &events);
            Ok(())
        });
        match outcome {
            Ok(()) => {}
            Err(TestError::Fail(reason, (setup, events))) => {
                let events: Vec<_> = events.iter().map(|event| format!("{event:?}")).collect();
                panic!(
                    "{reason}\noptions: {name}\n{setup:?}\n{}\nrepeat: EXTANT_MODEL_SEEDS={seed}..{} \
                     cargo test -p extant-mballoc --test model {test}",
                    events.join("\n"),
                    seed + 1
                )
            }
            Err(TestError::Abort(reason)) => panic!("seed {seed}: {reason}"),
        }
    }
}

#[test]
fn allocator_by_default_agrees_with_the_naive_one() {
    compare(
        "allocator_by_default",
        &[("default", setup::small(Options::default()))],
        0..40,
        event::Sizes::Fixed,
    );
}

#[test]
fn allocator_with_each_part_alone_agrees_with_the_naive_one() {
    compare(
        "allocator_with_each_part_alone",
        &parts(),
        0..120,
        event::Sizes::Fixed,
    );
}

#[test]
fn allocator_that_is_resized_agrees_with_the_naive_one() {
    compare(
        "allocator_that_is_resized",
        &parts(),
        0..80,
        event::Sizes::Changing,
    );
}
