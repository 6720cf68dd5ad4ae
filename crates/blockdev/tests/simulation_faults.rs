//! Injected faults: their frequency and their effect.

use std::time::Duration;

use extant_blockdev::simulation::{
    Change, Clock, CrashDevice, Done, Event, Fault, FaultRule, FaultyDevice, When,
};
use extant_blockdev::{
    Device, MemoryDevice, MemoryOptions, Operation, OperationKind, Persistence, Request, Zeroing,
};
use extant_space::{ByteRange, ErrorKind};

const SIZE: u64 = 8 << 20;
const ROUNDS: u64 = 1000;

const TEAR: Fault = Fault::Tear { atomic_bytes: None };
const FAIL: Fault = Fault::Fail {
    kind: ErrorKind::Io,
    done: Done::Nothing,
};

fn device(rules: Vec<FaultRule>) -> FaultyDevice<MemoryDevice> {
    FaultyDevice::with_clock(MemoryDevice::new(SIZE), 11, rules, Clock::Virtual)
}

fn sometimes(fault: Fault) -> FaultRule {
    FaultRule::new(fault).when(When::Probability(0.25))
}

/// Writes blocks of 4 KiB, none twice, and counts those that are not there afterwards, and those
/// that are in part.
fn write_all(device: &FaultyDevice<MemoryDevice>) -> (u64, u64) {
    let (mut missing, mut torn) = (0, 0);
    for round in 0..ROUNDS {
        device
            .write_at(&[round as u8 | 1; 4096], round * 4096, Persistence::Cached)
            .unwrap();
    }
    for round in 0..ROUNDS {
        let mut seen = [0; 4096];
        device.inner().read_at(&mut seen, round * 4096).unwrap();
        let kept = seen.iter().filter(|byte| **byte == round as u8 | 1).count();
        missing += u64::from(kept == 0);
        torn += u64::from(0 < kept && kept < 4096);
    }
    (missing, torn)
}

/// A quarter of the rounds, within five standard deviations.
fn is_a_quarter(count: u64) -> bool {
    (182..=318).contains(&count)
}

#[test]
fn lost_writes_are_as_many_as_stated_and_are_not_stored() {
    let device = device(vec![sometimes(Fault::Lose)]);
    let (missing, torn) = write_all(&device);
    assert!(is_a_quarter(missing) && torn == 0, "{missing} lost");
    assert_eq!(device.strikes(), [missing]);
}

#[test]
fn torn_writes_are_as_many_as_stated_and_stored_in_part() {
    let device = device(vec![sometimes(TEAR)]);
    let (missing, torn) = write_all(&device);
    assert!(is_a_quarter(torn) && missing == 0, "{torn} torn");
    assert_eq!(device.strikes(), [torn]);
}

#[test]
fn misdirected_writes_are_as_many_as_stated_and_land_elsewhere() {
    let device = device(vec![sometimes(Fault::Misdirect)]);
    for round in 0..ROUNDS {
        device
            .write_at(&[1; 512], round * 4096, Persistence::Cached)
            .unwrap();
    }
    let strikes = device.strikes()[0];
    assert!(is_a_quarter(strikes), "{strikes} misdirected");
    let bytes = device.inner().to_vec();
    let blocks = bytes
        .chunks(512)
        .enumerate()
        .filter(|(_, block)| **block == [1; 512]);
    let (mut right, mut wrong) = (0, 0);
    for (number, _) in blocks {
        if number % 8 == 0 && number as u64 / 8 < ROUNDS {
            right += 1
        } else {
            wrong += 1
        }
    }
    // Some overwrite the target of another, or each other.
    assert!(
        right >= ROUNDS - strikes && wrong > strikes * 3 / 4,
        "{right} right, {wrong} wrong"
    );
    assert!(right < ROUNDS - strikes / 2);
}

#[test]
fn misdirected_write_never_lands_where_it_should_if_there_is_another_place() {
    for place in [0, 512, 1024] {
        let rules = vec![FaultRule::new(Fault::Misdirect)];
        let device = FaultyDevice::new(MemoryDevice::new(1536), 1, rules);
        for _ in 0..20 {
            device
                .write_at(&[1; 512], place, Persistence::Cached)
                .unwrap();
        }
        let wrong: Vec<bool> = device
            .inner()
            .to_vec()
            .chunks(512)
            .map(|block| block[0] == 1)
            .collect();
        let expected: Vec<bool> = [0, 512, 1024].map(|other| other != place).to_vec();
        assert_eq!(wrong, expected);
    }
}

#[test]
fn misdirected_read_returns_data_of_another_place() {
    let device = device(vec![
        FaultRule::new(Fault::Misdirect).on(&[OperationKind::Read]),
    ]);
    device
        .inner()
        .write_at(&[1; 512], 4096, Persistence::Cached)
        .unwrap();
    let mut seen = [9; 512];
    device.read_at(&mut seen, 4096).unwrap();
    assert_eq!(seen, [0; 512]);
}

#[test]
fn flipped_bits_are_in_read_data_but_not_stored() {
    let rule = FaultRule::new(Fault::FlipBits(1)).when(When::Nth(2));
    let device = device(vec![rule]);
    device
        .write_at(&[0x55; 8192], 0, Persistence::Cached)
        .unwrap();
    let wrong_bits: Vec<u32> = (0..3)
        .map(|_| {
            let (mut a, mut b) = ([0; 5000], [0; 3192]);
            let read = Operation::Read {
                offset: 0,
                into: [&mut a[..], &mut b[..]].into_iter().collect(),
            };
            device.run(read).unwrap();
            a.iter()
                .chain(&b)
                .map(|byte| (byte ^ 0x55).count_ones())
                .sum()
        })
        .collect();
    assert_eq!(wrong_bits, [0, 1, 0]);
}

#[test]
fn failed_write_was_done_as_far_as_the_rule_says() {
    for (done, expected) in [
        (Done::Nothing, 0..=0),
        (Done::Part, 512..=7680),
        (Done::All, 8192..=8192),
    ] {
        let fault = Fault::Fail {
            kind: ErrorKind::NoSpace,
            done,
        };
        let device = device(vec![FaultRule::new(fault)]);
        let error = device
            .write_at(&[1; 8192], 4096, Persistence::Cached)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(
            error.to_string(),
            "write bytes 4096 to 12288: injected fault"
        );
        let stored = device
            .inner()
            .to_vec()
            .iter()
            .filter(|byte| **byte == 1)
            .count();
        assert!(expected.contains(&stored), "{done:?}: {stored} bytes");
    }
}

#[test]
fn rules_strike_the_kinds_ranges_and_numbers_they_name() {
    let rules = vec![
        FaultRule::new(FAIL)
            .on(&[OperationKind::Write])
            .when(When::Nth(3)),
        FaultRule::new(FAIL)
            .on(&[OperationKind::Read])
            .touching(ByteRange::new(4096, 8192)),
        FaultRule::new(FAIL)
            .on(&[OperationKind::Flush])
            .when(When::From(2)),
        FaultRule::new(Fault::Lose).on(&[OperationKind::Discard]),
    ];
    let device = device(rules);
    let writes = [(); 5].map(|()| {
        device
            .write_at(&[1; 512], 8192, Persistence::Cached)
            .is_ok()
    });
    assert_eq!(writes, [true, true, false, true, true]);
    let reads = [0, 3584, 4096, 7680, 8192].map(|at| device.read_at(&mut [0; 512], at).is_ok());
    assert_eq!(reads, [true, true, false, false, true]);
    assert!(device.read_at(&mut [0; 1024], 3584).is_err());
    let flushes = [(); 3].map(|()| device.flush().is_ok());
    assert_eq!(flushes, [true, false, false]);
    device.discard(ByteRange::new(0, SIZE)).unwrap();
    assert_eq!(device.inner().allocated(), 4096);
    assert_eq!(device.strikes(), [1, 3, 2, 1]);
    device.set_rules(Vec::new());
    device.discard(ByteRange::new(0, SIZE)).unwrap();
    assert_eq!(device.inner().allocated(), 0);
}

#[test]
fn batch_with_one_fault_does_the_rest() {
    let rules = vec![FaultRule::new(FAIL).touching(ByteRange::new(512, 1024))];
    let device = device(rules);
    let data = [1; 512];
    let mut into = [0; 512];
    let mut batch = [
        Request::write(0, &data, Persistence::Cached),
        Request::write(512, &data, Persistence::Cached),
        Request::write(1024, &data, Persistence::Cached),
        Request::write(100, &data, Persistence::Cached),
        Request::read(2048, &mut into),
        Request::new(Operation::Flush),
    ];
    device.submit(&mut batch);
    let results = batch.map(|request| request.into_result().map_err(|error| error.kind()));
    let (io, invalid) = (Err(ErrorKind::Io), Err(ErrorKind::InvalidArgument));
    assert_eq!(results, [Ok(()), io, Ok(()), invalid, Ok(()), Ok(())]);
    let mut seen = [0; 1536];
    device.inner().read_at(&mut seen, 0).unwrap();
    assert_eq!((seen[0], seen[512], seen[1024]), (1, 0, 1));
    // A refused request and one of nothing are not counted.
    device.write_at(&[], 512, Persistence::Cached).unwrap();
    assert_eq!(device.strikes(), [1]);
}

#[test]
fn torn_zeroes_and_discards_reach_some_of_their_blocks() {
    for kind in [OperationKind::WriteZeroes, OperationKind::Discard] {
        let device = device(vec![FaultRule::new(TEAR).on(&[kind])]);
        device
            .write_at(&[1; 65536], 0, Persistence::Cached)
            .unwrap();
        let range = ByteRange::new(0, 65536);
        match kind {
            OperationKind::Discard => device.discard(range).unwrap(),
            _ => device.write_zeroes(range, Zeroing::ANY).unwrap(),
        }
        let bytes = device.inner().to_vec();
        let left = bytes.iter().filter(|byte| **byte == 1).count();
        assert!(
            left.is_multiple_of(512) && 0 < left && left < 65536,
            "{kind}: {left}"
        );
    }
}

#[test]
fn write_torn_inside_blocks_keeps_old_data() {
    let options = MemoryOptions {
        logical_block: 4096,
        ..MemoryOptions::new(1 << 20)
    };
    let rule = FaultRule::new(Fault::Tear {
        atomic_bytes: Some(64),
    })
    .when(When::Nth(2));
    let device = FaultyDevice::new(MemoryDevice::with_options(options), 1, vec![rule]);
    device
        .write_at(&[1; 12288], 4096, Persistence::Cached)
        .unwrap();
    device
        .write_at(&[2; 4096], 8192, Persistence::Cached)
        .unwrap();
    let bytes = device.inner().to_vec();
    let units: Vec<&[u8]> = bytes[8192..12288].chunks(64).collect();
    let new = units.iter().filter(|unit| **unit == [2; 64]).count();
    let old = units.iter().filter(|unit| **unit == [1; 64]).count();
    assert!(
        new > 0 && old > 0 && new + old == 64,
        "{new} new, {old} old"
    );
    assert!(bytes[4096..8192] == [1; 4096] && bytes[12288..16384] == [1; 4096]);
}

#[test]
fn delays_lie_between_the_bounds_and_a_batch_is_late_once() {
    let (least, most) = (Duration::from_millis(10), Duration::from_secs(3600));
    let rules = vec![
        FaultRule::new(Fault::Delay { least, most: least }).on(&[OperationKind::Read]),
        FaultRule::new(Fault::Delay { least, most }).on(&[OperationKind::Flush]),
        FaultRule::new(FAIL).on(&[OperationKind::Flush]),
    ];
    let device = device(rules);
    let (mut a, mut b) = ([0; 512], [0; 512]);
    device.submit(&mut [Request::read(0, &mut a), Request::read(0, &mut b)]);
    assert_eq!(device.delayed(), least);
    let mut before = device.delayed();
    let mut seen = Vec::new();
    for _ in 0..20 {
        // Late, and failed as well.
        device.flush().unwrap_err();
        seen.push(device.delayed() - before);
        before = device.delayed();
    }
    assert!(seen.iter().all(|delay| (least..=most).contains(delay)));
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 20);
}

#[test]
fn real_clock_sleeps() {
    let least = Duration::from_millis(20);
    let rule = FaultRule::new(Fault::Delay { least, most: least });
    let device = FaultyDevice::new(MemoryDevice::new(SIZE), 1, vec![rule]);
    let started = std::time::Instant::now();
    device.flush().unwrap();
    assert!(started.elapsed() >= least);
}

#[test]
fn same_seed_makes_the_same_faults_and_another_seed_others() {
    let outcome = |seed| {
        let fail = Fault::Fail {
            kind: ErrorKind::Io,
            done: Done::Part,
        };
        let rules = [fail, TEAR, Fault::Lose, Fault::Misdirect]
            .map(sometimes)
            .to_vec();
        let device = FaultyDevice::new(MemoryDevice::new(SIZE), seed, rules);
        let results: Vec<bool> = (0..300u64)
            .map(|round| {
                let data = [round as u8; 4096];
                device
                    .write_at(&data, round * 31 % 500 * 4096, Persistence::Cached)
                    .is_ok()
            })
            .collect();
        (results, device.strikes(), device.inner().to_vec())
    };
    assert!(outcome(1) == outcome(1));
    assert!(outcome(1).2 != outcome(2).2);
}

#[test]
fn log_below_faults_has_the_changes_that_reached_the_disk() {
    let rules = vec![
        FaultRule::new(Fault::Lose)
            .on(&[OperationKind::Write])
            .when(When::Nth(1)),
        FaultRule::new(Fault::Misdirect)
            .on(&[OperationKind::Write])
            .when(When::Nth(2)),
        FaultRule::new(Fault::Lose).on(&[OperationKind::Flush]),
    ];
    let device = FaultyDevice::new(CrashDevice::new(MemoryDevice::new(SIZE)), 1, rules);
    for at in 1..=3u8 {
        device
            .write_at(&[at; 512], u64::from(at) * 4096, Persistence::Cached)
            .unwrap();
    }
    device.flush().unwrap();
    let log = device.inner().log();
    let writes: Vec<(u8, u64)> = log
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Change {
                change: Change::Write { offset, data },
                ..
            } => Some((data[0], *offset)),
            _ => None,
        })
        .collect();
    assert_eq!(writes.len(), 2);
    assert!(writes[0].0 == 2 && writes[0].1 != 8192);
    assert_eq!(writes[1], (3, 12288));
    assert!(
        !log.events()
            .iter()
            .any(|event| matches!(event, Event::Flush { .. }))
    );
}
