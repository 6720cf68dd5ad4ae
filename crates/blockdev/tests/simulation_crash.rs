//! States after a power cut: at least the promised data, no data that was never written, and every
//! other state.

use std::collections::BTreeSet;
use std::thread;

use extant_blockdev::simulation::{
    CacheMode, Change, CrashDevice, CrashOptions, Event, Survivors, WriteLog,
};
use extant_blockdev::{
    Device, Features, MemoryDevice, MemoryOptions, Operation, Persistence, Request, Speed,
    ZeroedSpace, Zeroing,
};
use extant_space::{ByteRange, ErrorKind, Result};
use proptest::prelude::*;

const BLOCK: u64 = 512;
const BLOCKS: u64 = 8;

/// A request on a device of few blocks; writes are distinguished by their bytes.
#[derive(Clone, Debug)]
enum Step {
    Write {
        first: u64,
        count: u64,
        persistence: Persistence,
    },
    Discard {
        first: u64,
        count: u64,
    },
    WriteZeroes {
        first: u64,
        count: u64,
        persistence: Persistence,
    },
    Assign {
        first: u64,
        count: u64,
    },
    Flush,
}

fn persistence() -> impl Strategy<Value = Persistence> {
    prop_oneof![4 => Just(Persistence::Cached), 1 => Just(Persistence::Fua)]
}

fn extent() -> impl Strategy<Value = (u64, u64)> {
    (0..BLOCKS, 1..4u64).prop_map(|(first, count)| (first, count.min(BLOCKS - first)))
}

/// Batches of requests.
fn batches() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        6 => (extent(), persistence())
            .prop_map(|((first, count), persistence)| Step::Write { first, count, persistence }),
        1 => extent().prop_map(|(first, count)| Step::Discard { first, count }),
        1 => (extent(), persistence())
            .prop_map(|((first, count), persistence)| Step::WriteZeroes { first, count, persistence }),
        1 => extent().prop_map(|(first, count)| Step::Assign { first, count }),
        2 => Just(Step::Flush),
    ];
    prop::collection::vec(prop::collection::vec(step, 1..4), 1..12)
}

fn range(first: u64, count: u64) -> ByteRange {
    ByteRange::new(first * BLOCK, (first + count) * BLOCK)
}

fn run(device: &dyn Device, batches: &[Vec<Step>], mut after: impl FnMut()) -> Result<()> {
    let mut number = 0;
    for batch in batches {
        let data: Vec<Vec<u8>> = batch
            .iter()
            .map(|_| {
                number += 1;
                vec![number; (BLOCKS * BLOCK) as usize]
            })
            .collect();
        let requests = batch.iter().zip(&data).map(|(step, data)| match *step {
            Step::Write {
                first,
                count,
                persistence,
            } => Request::write(
                first * BLOCK,
                &data[..(count * BLOCK) as usize],
                persistence,
            ),
            Step::Discard { first, count } => Request::new(Operation::Discard(range(first, count))),
            Step::WriteZeroes {
                first,
                count,
                persistence,
            } => {
                let zeroing = Zeroing {
                    space: ZeroedSpace::Allocated,
                    speed: Speed::Any,
                    persistence,
                };
                Request::new(Operation::WriteZeroes(range(first, count), zeroing))
            }
            Step::Assign { first, count } => Request::new(Operation::Assign(range(first, count))),
            Step::Flush => Request::new(Operation::Flush),
        });
        let mut requests: Vec<Request<'_>> = requests.collect();
        device.submit(&mut requests);
        requests.into_iter().try_for_each(Request::into_result)?;
        after();
    }
    Ok(())
}

/// First byte of every block, which stands for all of it.
fn blocks(image: &MemoryDevice) -> Vec<u8> {
    let bytes = image.to_vec();
    bytes
        .chunks(BLOCK as usize)
        .map(|block| {
            assert!(
                block.iter().all(|byte| *byte == block[0]),
                "torn inside a block"
            );
            block[0]
        })
        .collect()
}

/// Possible contents of each block after a power cut at `position`, by the definition.
fn allowed(log: &WriteLog, position: usize) -> Vec<BTreeSet<u8>> {
    let events = &log.events()[..position];
    let batch_of = |event: &Event| match event {
        Event::Change { batch, .. } | Event::Flush { batch } | Event::Completed { batch } => {
            Some(*batch)
        }
        Event::Mark(_) => None,
    };
    let completed = |number: u64| {
        let is_it = |event: &Event| matches!(event, Event::Completed { batch } if *batch == number);
        events.iter().position(is_it)
    };
    let submitted = |number| {
        events
            .iter()
            .position(|event| batch_of(event) == Some(number))
            .unwrap()
    };
    let is_durable = |of: u64, persistence: Persistence| {
        let Some(done) = completed(of) else {
            return false;
        };
        persistence == Persistence::Fua
            || events.iter().any(|event| match event {
                Event::Flush { batch } => completed(*batch).is_some() && done < submitted(*batch),
                _ => false,
            })
    };
    (0..BLOCKS)
        .map(|block| {
            let mut versions = BTreeSet::from([0]);
            for event in events {
                let Event::Change {
                    batch,
                    change,
                    persistence,
                } = event
                else {
                    continue;
                };
                let byte = match change {
                    Change::Write { data, .. } => data[0],
                    Change::WriteZeroes(..) | Change::Discard(_) => 0,
                    Change::Assign(_) => continue,
                };
                if !change.range().contains(range(block, 1)) {
                    continue;
                }
                if is_durable(*batch, *persistence) {
                    versions.clear();
                }
                versions.insert(byte);
            }
            versions
        })
        .collect()
}

fn options(seed: u64, states_max: u64) -> CrashOptions {
    CrashOptions {
        states_max,
        ..CrashOptions::seeded(seed)
    }
}

fn small_device() -> CrashDevice {
    CrashDevice::new(MemoryDevice::new(BLOCKS * BLOCK))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn prefix_of_the_log_replayed_equals_the_data_read_then(batches in batches()) {
        let device = small_device();
        let mut seen = vec![(0, device.snapshot())];
        run(&device, &batches, || seen.push((device.log().len(), device.snapshot()))).unwrap();
        let log = device.into_log();
        let mut cursor = log.cursor();
        for (position, contents) in seen {
            cursor.advance_to(position);
            prop_assert_eq!(cursor.image().first_difference(&contents), None);
            prop_assert_eq!(log.replay(position).first_difference(&contents), None);
        }
    }

    #[test]
    fn crash_states_are_exactly_the_combinations_that_the_rules_allow(batches in batches()) {
        let device = small_device();
        run(&device, &batches, || {}).unwrap();
        let log = device.into_log();
        let mut cursor = log.cursor();
        loop {
            let allowed = allowed(&log, cursor.position());
            let combinations: usize = allowed.iter().map(BTreeSet::len).product();
            if combinations <= 512 {
                // A block that was zeroed twice has one content for two versions.
                let states = cursor.crash_states(options(1, 1 << 20));
                let seen: BTreeSet<Vec<u8>> = states.map(|state| blocks(&state.image)).collect();
                prop_assert_eq!(seen.len(), combinations, "at {}", cursor.position());
                for state in seen {
                    prop_assert!(state.iter().zip(&allowed).all(|(byte, allowed)| allowed.contains(byte)));
                }
            }
            for state in cursor.crash_states(options(1, 20)) {
                let seen = blocks(&state.image);
                prop_assert!(
                    seen.iter().zip(&allowed).all(|(byte, allowed)| allowed.contains(byte)),
                    "{state}: {seen:?}, allowed {allowed:?}"
                );
            }
            if cursor.advance().is_none() {
                break;
            }
        }
    }

    #[test]
    fn power_cut_in_the_run_leaves_a_state_permitted_by_the_log(
        batches in batches(),
        seed: u64,
        after in 0u64..12,
    ) {
        let device = small_device();
        device.power_cut_after(after);
        let cut = run(&device, &batches, || {});
        prop_assert_eq!(cut.is_err(), !device.is_powered());
        let log = device.log();
        let allowed = allowed(&log, log.len());
        device.restart(Survivors::Seeded(seed));
        let seen = blocks(&device.snapshot());
        prop_assert!(seen.iter().zip(&allowed).all(|(byte, allowed)| allowed.contains(byte)));
        prop_assert!(device.is_powered() && device.log().is_empty());
    }
}

#[test]
fn no_state_after_a_flush_has_lost_flushed_data() {
    let device = CrashDevice::new(MemoryDevice::new(4 << 20));
    for round in 1..=40u8 {
        for block in 0..20u64 {
            device
                .write_at(&[round; 512], block * 4096, Persistence::Cached)
                .unwrap();
        }
        device.flush().unwrap();
        device.mark(round.to_string());
    }
    let mut states = 0;
    for crash in device.into_log().crashes(CrashOptions::seeded(5)) {
        let promised = crash.mark().map_or(0, |mark| mark.parse::<u8>().unwrap());
        for block in 0..20 {
            let mut seen = [0; 512];
            crash.image.read_at(&mut seen, block * 4096).unwrap();
            let range = promised..=promised + 1;
            assert!(
                range.contains(&seen[0]),
                "{crash}: block {block} holds {}",
                seen[0]
            );
        }
        states += 1;
    }
    assert!(states > 40 * 20 * 8, "{states} states");
}

#[test]
fn threads_read_their_flushed_data_again() {
    let device = CrashDevice::new(MemoryDevice::new(1 << 20));
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 1..=25u8 {
                    let persistence = match round % 2 {
                        0 => Persistence::Cached,
                        _ => Persistence::Fua,
                    };
                    device
                        .write_at(&[round; 512], thread * 4096, persistence)
                        .unwrap();
                    if persistence == Persistence::Cached {
                        device.flush().unwrap();
                    }
                    device.mark(format!("{thread} {round}"));
                }
            });
        }
    });
    let log = device.into_log();
    for crash in log.crashes(CrashOptions::seeded(6)) {
        let mut promised = [0; 4];
        for event in &log.events()[..crash.position()] {
            if let Event::Mark(name) = event {
                let (thread, round) = name.split_once(' ').unwrap();
                promised[thread.parse::<usize>().unwrap()] = round.parse::<u8>().unwrap();
            }
        }
        for (thread, promised) in promised.into_iter().enumerate() {
            let mut seen = [0; 512];
            crash
                .image
                .read_at(&mut seen, thread as u64 * 4096)
                .unwrap();
            assert!(
                seen[0] >= promised,
                "{crash}: {} of thread {thread}, not {promised}",
                seen[0]
            );
        }
    }
}

#[test]
fn write_and_flush_of_one_batch_are_in_no_order() {
    let device = small_device();
    let data = [1; 512];
    let mut batch = [
        Request::write(0, &data, Persistence::Cached),
        Request::new(Operation::Flush),
    ];
    device.submit(&mut batch);
    device.restart(Survivors::None);
    assert_eq!(blocks(&device.snapshot())[0], 0);
}

#[test]
fn write_through_disk_loses_nothing_that_completed() {
    let device = CrashDevice::with_cache(MemoryDevice::new(1 << 16), CacheMode::WriteThrough);
    assert!(
        !device
            .geometry()
            .features
            .contains(Features::VOLATILE_CACHE)
    );
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    device.power_cut_after(0);
    device
        .write_at(&[2; 512], 512, Persistence::Cached)
        .unwrap_err();
    device.restart(Survivors::None);
    assert_eq!(blocks(&device.snapshot())[..2], [1, 0]);
}

#[test]
fn without_power_everything_fails_and_nothing_changes() {
    let device = small_device();
    device.write_at(&[1; 512], 0, Persistence::Fua).unwrap();
    device
        .write_at(&[2; 512], 512, Persistence::Cached)
        .unwrap();
    device.power_cut();
    let length = device.log().len();
    let errors = [
        device.write_at(&[3; 512], 0, Persistence::Fua),
        device.read_at(&mut [0; 512], 0),
        device.flush(),
        device.discard(range(0, 1)),
        device.status(range(0, 1), &mut |_, _| unreachable!()),
    ];
    for error in errors {
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Io);
    }
    assert_eq!(device.log().len(), length);
    let state = device.restart(Survivors::None);
    assert_eq!(state.position(), length);
    assert_eq!(blocks(&device.snapshot())[..2], [1, 0]);
    // Surviving data is durable, and nothing of the old cache reappears.
    device.restart(Survivors::All);
    assert_eq!(blocks(&device.snapshot())[..2], [1, 0]);
}

#[test]
fn change_caught_by_the_power_cut_may_survive_or_not() {
    let survives = |survivors| {
        let device = small_device();
        device.power_cut_after(1);
        device.write_at(&[1; 512], 0, Persistence::Fua).unwrap();
        device
            .write_at(&[2; 512], 512, Persistence::Fua)
            .unwrap_err();
        device
            .write_at(&[3; 512], 1024, Persistence::Fua)
            .unwrap_err();
        device.restart(survivors);
        blocks(&device.snapshot())[..3].to_vec()
    };
    assert_eq!(survives(Survivors::All), [1, 2, 0]);
    assert_eq!(survives(Survivors::None), [1, 0, 0]);
    let seeded: BTreeSet<Vec<u8>> = (0..20)
        .map(|seed| survives(Survivors::Seeded(seed)))
        .collect();
    assert_eq!(seeded, BTreeSet::from([vec![1, 2, 0], vec![1, 0, 0]]));
}

#[test]
fn settled_device_loses_nothing_from_before() {
    let device = small_device();
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    device.settle();
    assert!(device.log().is_empty());
    device
        .write_at(&[2; 512], 512, Persistence::Cached)
        .unwrap();
    let log = device.log();
    let seen: BTreeSet<Vec<u8>> = log
        .crashes(CrashOptions::seeded(1))
        .map(|crash| blocks(&crash.image)[..2].to_vec())
        .collect();
    assert_eq!(seen, BTreeSet::from([vec![1, 0], vec![1, 2]]));
    device.restart(Survivors::None);
    assert_eq!(blocks(&device.snapshot())[..2], [1, 0]);
}

#[test]
fn change_without_space_is_undone_and_not_recorded() {
    let options = MemoryOptions {
        capacity: Some(8192),
        ..MemoryOptions::new(1 << 20)
    };
    let device = CrashDevice::new(MemoryDevice::with_options(options));
    device.write_at(&[1; 4096], 0, Persistence::Cached).unwrap();
    let length = device.log().len();
    // The first two of these pages would fit.
    let error = device
        .write_at(&[2; 3 * 4096], 0, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(device.log().len(), length);
    assert_eq!(
        device
            .snapshot()
            .first_difference(&device.log().replay(length)),
        None
    );
    device
        .write_at(&[3; 4096], 65536, Persistence::Cached)
        .unwrap();
    device.restart(Survivors::All);
    assert_eq!(device.snapshot().allocated(), 8192);
}

#[test]
fn promise_at_the_very_end_is_held_against_the_states() {
    let device = small_device();
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    device.mark("promised");
    let log = device.into_log();
    let broken = log.crashes(CrashOptions::seeded(1));
    let broken = broken.filter(|crash| crash.mark().is_some() && blocks(&crash.image)[0] != 1);
    assert_eq!(broken.count(), 1);
}

#[test]
fn positions_of_marks_are_found_by_name() {
    let device = small_device();
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    device.mark("written");
    device.write_at(&[2; 512], 0, Persistence::Cached).unwrap();
    let log = device.into_log();
    let position = log.position_of("written").unwrap();
    assert_eq!(blocks(&log.replay(position))[0], 1);
    assert_eq!(log.position_of("never"), None);
    let crash = log
        .crash_states(position, CrashOptions::seeded(7))
        .next()
        .unwrap();
    assert_eq!(
        crash.to_string(),
        "power cut at position 3 after \"written\", seed 7, state 0: 0 changes kept, 0 torn, 1 lost"
    );
}
