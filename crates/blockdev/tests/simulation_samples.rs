//! Crash states where they are too many to make all: the seed decides, and every sort of loss
//! occurs.

use extant_blockdev::simulation::{CrashDevice, CrashOptions, WriteLog};
use extant_blockdev::{Device, MemoryDevice, MemoryOptions, Persistence};

fn options(seed: u64, states_max: u64) -> CrashOptions {
    CrashOptions {
        states_max,
        ..CrashOptions::seeded(seed)
    }
}

/// Many changes at stake, so that states are samples.
fn busy_log() -> WriteLog {
    let device = CrashDevice::new(MemoryDevice::new(1 << 20));
    for number in 1..=100u8 {
        let offset = u64::from(number) * 37 % 200 * 4096;
        device
            .write_at(&[number; 4096], offset, Persistence::Cached)
            .unwrap();
    }
    device.into_log()
}

#[test]
fn samples_hold_both_extremes_and_lost_kept_and_torn_writes() {
    let log = busy_log();
    let states: Vec<_> = log.crash_states(log.len(), options(3, 64)).collect();
    assert_eq!(states.len(), 64);
    assert_eq!(states[0].image.first_difference(log.base()), None);
    assert_eq!(
        states[1].image.first_difference(&log.replay(log.len())),
        None
    );
    let (mut torn, mut reordered, mut nearly_whole, mut nearly_none) = (0, 0, 0, 0);
    for state in &states {
        let kept: Vec<usize> = (1..=100u64)
            .map(|number| {
                let mut seen = [0; 4096];
                state
                    .image
                    .read_at(&mut seen, number * 37 % 200 * 4096)
                    .unwrap();
                seen.iter()
                    .filter(|byte| u64::from(**byte) == number)
                    .count()
            })
            .collect();
        assert!(kept.iter().all(|bytes| bytes.is_multiple_of(512)));
        torn += usize::from(kept.iter().any(|bytes| (1..4096).contains(bytes)));
        reordered += usize::from(kept.windows(2).any(|pair| pair[0] == 0 && pair[1] == 4096));
        let whole = kept.iter().filter(|bytes| **bytes == 4096).count();
        nearly_whole += usize::from(whole == 99);
        nearly_none += usize::from(whole <= 1);
    }
    assert!(
        torn > 20 && reordered > 20,
        "{torn} torn, {reordered} reordered"
    );
    assert!(
        nearly_whole > 5 && nearly_none > 5,
        "{nearly_whole}, {nearly_none}"
    );
}

#[test]
fn digests_of_states_are_equal_where_the_states_are() {
    let log = busy_log();
    let changed = log.changed_ranges();
    assert!(changed.is_sorted_by(|one, next| one.end() < next.start()));
    assert_eq!(
        changed.iter().map(|range| range.len()).sum::<u64>(),
        100 * 4096
    );
    let states = |seed| log.crash_states(log.len(), options(seed, 24));
    for (one, other) in states(3).zip(states(4)) {
        let is_same = one.image.first_difference(&other.image).is_none();
        assert_eq!(
            is_same,
            one.digest(&changed) == other.digest(&changed),
            "{one}, {other}"
        );
    }
}

#[test]
fn same_seed_makes_the_same_states_and_another_seed_others() {
    let log = busy_log();
    let images = |seed| -> Vec<Vec<u8>> {
        let states = log.crash_states(log.len(), options(seed, 16));
        states.map(|state| state.image.to_vec()).collect()
    };
    assert!(images(1) == images(1));
    let (a, b) = (images(1), images(2));
    assert!((2..16).all(|index| a[index] != b[index]));
    // A state is found again without those before it.
    let mut cursor = log.cursor();
    cursor.advance_to(log.len());
    let ninth = cursor.crash_states(options(1, 16)).nth(9).unwrap();
    assert!(ninth.image.to_vec() == a[9]);
}

#[test]
fn disk_with_small_atomic_units_tears_inside_blocks() {
    let options = MemoryOptions {
        logical_block: 4096,
        ..MemoryOptions::new(16 << 10)
    };
    let device = CrashDevice::new(MemoryDevice::with_options(options));
    device.write_at(&[1; 4096], 0, Persistence::Cached).unwrap();
    let log = device.into_log();
    let mixed = |atomic_bytes, states_max| {
        let options = CrashOptions {
            seed: 1,
            states_max,
            atomic_bytes,
        };
        let states = log.crash_states(log.len(), options);
        let mut count = 0;
        let mut mixed = 0;
        for state in states {
            let bytes = state.image.to_vec();
            let kept = bytes.iter().filter(|byte| **byte == 1).count();
            assert!(kept.is_multiple_of(atomic_bytes.unwrap_or(4096) as usize));
            count += 1;
            mixed += usize::from(kept % 4096 != 0);
        }
        (count, mixed)
    };
    assert_eq!(mixed(None, 256), (2, 0));
    assert_eq!(mixed(Some(512), 256), (256, 254));
    let (count, torn) = mixed(Some(64), 256);
    assert!(count == 256 && torn > 50, "{torn} torn");
}
