//! The memory device: against plain bytes, thin, copied, and under many threads.

mod model;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_blockdev::{
    Assigned, Device, MemoryDevice, MemoryOptions, Persistence, RangeStatus, Zeroing,
};
use extant_space::{ByteRange, ErrorKind};
use proptest::prelude::*;

const TIB: u64 = 1 << 40;

/// Sets the flag when dropped, also by a failed assertion: otherwise a waiter would wait without
/// end.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn statuses(device: &MemoryDevice, range: ByteRange) -> Vec<(u64, u64, RangeStatus)> {
    let mut seen = Vec::new();
    let visit = &mut |part: ByteRange, status| {
        seen.push((part.start(), part.end(), status));
        ControlFlow::Continue(())
    };
    device.status(range, visit).unwrap();
    seen
}

fn thin(size: u64, capacity: u64) -> MemoryDevice {
    MemoryDevice::with_options(MemoryOptions {
        capacity: Some(capacity),
        ..MemoryOptions::new(size)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn memory_under_random_operations_equals_plain_bytes(steps in model::steps()) {
        model::compare(&MemoryDevice::new(model::SIZE), &steps);
    }

    #[test]
    fn snapshot_and_original_go_their_own_ways(before in model::steps(), after in model::steps()) {
        let device = MemoryDevice::new(model::SIZE);
        model::compare(&device, &before);
        let contents = device.to_vec();
        let (copy, back) = (device.snapshot(), device.snapshot());
        device.write_zeroes(device.geometry().range(), Zeroing::ANY).unwrap();
        model::compare(&device, &after);
        prop_assert!(copy.to_vec() == contents);
        let difference = copy.first_difference(&device);
        let now = device.to_vec();
        let expected = (0..contents.len()).find(|&at| contents[at] != now[at]);
        prop_assert_eq!(difference, expected.map(|at| at as u64));
        device.restore(&back);
        prop_assert!(device.to_vec() == contents);
        prop_assert_eq!(device.allocated(), copy.allocated());
    }
}

#[test]
fn device_of_16_tib_uses_memory_for_written_data_only() {
    let device = MemoryDevice::new(16 * TIB);
    device
        .write_at(&[1; 512], 16 * TIB - 512, Persistence::Cached)
        .unwrap();
    device
        .write_at(&[2; 8192], 5 * TIB, Persistence::Cached)
        .unwrap();
    assert_eq!(device.allocated(), 3 * 4096);
    assert_eq!(
        statuses(&device, device.geometry().range()),
        [
            (0, 5 * TIB, RangeStatus::Hole),
            (5 * TIB, 5 * TIB + 8192, RangeStatus::Data),
            (5 * TIB + 8192, 16 * TIB - 4096, RangeStatus::Hole),
            (16 * TIB - 4096, 16 * TIB, RangeStatus::Data),
        ]
    );
    let mut byte = [0; 512];
    device.read_at(&mut byte, 16 * TIB - 512).unwrap();
    assert_eq!(byte, [1; 512]);
    device.discard(device.geometry().range()).unwrap();
    assert_eq!(device.allocated(), 0);
}

#[test]
fn assign_makes_zeros_of_holes_and_leaves_data_alone() {
    let device = MemoryDevice::new(1 << 20);
    device
        .write_at(&[9; 4096], 8192, Persistence::Cached)
        .unwrap();
    let range = ByteRange::new(4096, 65536);
    assert_eq!(device.assign(range).unwrap(), Assigned::Done);
    let expected = [
        (0, 4096, RangeStatus::Hole),
        (4096, 8192, RangeStatus::Zero),
        (8192, 12288, RangeStatus::Data),
        (12288, 65536, RangeStatus::Zero),
        (65536, 1 << 20, RangeStatus::Hole),
    ];
    assert_eq!(statuses(&device, device.geometry().range()), expected);
    assert_eq!(device.assign(range).unwrap(), Assigned::Done);
    assert_eq!(statuses(&device, device.geometry().range()), expected);
    device
        .write_zeroes(ByteRange::new(8192, 12288), Zeroing::ALLOCATED)
        .unwrap();
    assert_eq!(statuses(&device, range), [(4096, 65536, RangeStatus::Zero)]);
    device.write_zeroes(range, Zeroing::ANY).unwrap();
    assert_eq!(statuses(&device, range), [(4096, 65536, RangeStatus::Hole)]);
}

#[test]
fn status_stops_where_the_visitor_breaks() {
    let device = MemoryDevice::new(1 << 20);
    device
        .write_at(&[9; 4096], 8192, Persistence::Cached)
        .unwrap();
    let mut visits = 0;
    let visit = &mut |_, _| {
        visits += 1;
        ControlFlow::Break(())
    };
    device.status(device.geometry().range(), visit).unwrap();
    assert_eq!(visits, 1);
    let past_end = device.status(ByteRange::new(0, (1 << 20) + 1), &mut |_, _| unreachable!());
    assert_eq!(past_end.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn thin_device_is_full_at_its_capacity_and_not_before() {
    let device = thin(TIB, 64 << 10);
    let pages = (0..16).map(|page| page << 30);
    for offset in pages.clone() {
        device
            .write_at(&[1; 512], offset, Persistence::Cached)
            .unwrap();
    }
    let error = device
        .write_at(&[1; 512], 1 << 39, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(
        error.range(),
        Some(ByteRange::new(1 << 39, (1 << 39) + 512))
    );
    let error = device
        .assign(ByteRange::new(1 << 39, (1 << 39) + 512))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    // Allocated pages can be written again, and freed ones can be used elsewhere.
    for offset in pages {
        device
            .write_at(&[2; 4096], offset, Persistence::Cached)
            .unwrap();
    }
    device.discard(ByteRange::new(0, 4096)).unwrap();
    device
        .write_at(&[1; 512], 1 << 39, Persistence::Cached)
        .unwrap();
    assert_eq!(device.allocated(), 64 << 10);
    assert_eq!(
        device
            .snapshot()
            .write_at(&[1; 512], 0, Persistence::Cached)
            .unwrap_err()
            .kind(),
        ErrorKind::NoSpace
    );
    device
        .snapshot_unlimited()
        .write_at(&[1; 512], 0, Persistence::Cached)
        .unwrap();
}

#[test]
fn capacity_is_counted_right_by_threads_that_fill_and_free() {
    let device = thin(1 << 30, 1 << 20);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..400 {
                    let offset = (thread << 28) + (round % 97) * 4096;
                    match device.write_at(&[1; 4096], offset, Persistence::Cached) {
                        Ok(()) => {}
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NoSpace);
                            let range =
                                ByteRange::new(thread << 28, (thread << 28) + (round % 90) * 4096);
                            device.discard(range).unwrap();
                        }
                    }
                    assert!(device.snapshot().allocated() <= 1 << 20);
                }
            });
        }
    });
    // As much as is free by the count fits, and no more.
    let free = (1 << 20) - device.allocated();
    device
        .assign(ByteRange::new(1 << 29, (1 << 29) + free))
        .unwrap_or_else(|error| {
            panic!("{free} bytes are free: {error}");
        });
}

#[test]
fn writers_in_different_places_do_not_disturb_each_other() {
    let device = MemoryDevice::new(64 << 20);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                // Neighbouring blocks of 512 bytes belong to different threads.
                for round in 0..2000 {
                    let offset = ((round * 7919 % 4096) * 4 + thread) * 512;
                    let mark = [thread as u8 * 50 + (round % 50) as u8; 512];
                    device.write_at(&mark, offset, Persistence::Cached).unwrap();
                    let mut seen = [0; 512];
                    device.read_at(&mut seen, offset).unwrap();
                    assert_eq!(seen, mark);
                }
            });
        }
    });
}

#[test]
fn block_that_several_threads_write_is_always_that_of_one_of_them() {
    let device = MemoryDevice::new(1 << 20);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 1..=3u8 {
            let (device, stop) = (&device, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    device
                        .write_at(&[thread; 8192], 252 << 10, Persistence::Cached)
                        .unwrap();
                    device
                        .discard(ByteRange::new(256 << 10, 260 << 10))
                        .unwrap();
                }
            });
        }
        let _stopper = Stopper(&stop);
        for _ in 0..2000 {
            let mut seen = [0; 8192];
            device.read_at(&mut seen, 252 << 10).unwrap();
            for block in seen.chunks(512) {
                assert!(block.iter().all(|byte| *byte == block[0] && *byte <= 3));
            }
        }
    });
}

#[test]
fn snapshot_among_writers_never_has_the_later_write_without_the_earlier() {
    let device = MemoryDevice::new(64 << 20);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in (1..=u8::MAX).cycle() {
                // Two shards: the number is written to the first place, then to the second.
                device
                    .write_at(&[number; 512], 0, Persistence::Cached)
                    .unwrap();
                device
                    .write_at(&[number; 512], 33 << 20, Persistence::Cached)
                    .unwrap();
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let _stopper = Stopper(&stop);
        for _ in 0..2000 {
            let copy = device.snapshot();
            let (mut first, mut second) = ([0; 512], [0; 512]);
            copy.read_at(&mut first, 0).unwrap();
            copy.read_at(&mut second, 33 << 20).unwrap();
            let ahead = first[0].wrapping_sub(second[0]);
            // After 255 the numbers continue at 1.
            assert!(
                ahead <= 1 || (first[0], second[0]) == (1, 255),
                "{} after {}",
                second[0],
                first[0]
            );
        }
    });
}

#[test]
fn saved_and_loaded_device_has_the_same_bytes_and_the_file_is_sparse() {
    use std::os::unix::fs::MetadataExt;

    let device = MemoryDevice::new(1 << 30);
    for (offset, length) in [
        (0, 512),
        (4096, 8192),
        ((256 << 10) - 512, 1024),
        ((1 << 30) - 512, 512),
    ] {
        let data = model::data(length, 1);
        device.write_at(&data, offset, Persistence::Cached).unwrap();
    }
    device
        .write_at(&[0; 1 << 20], 10 << 20, Persistence::Cached)
        .unwrap();
    let file = tempfile::tempfile().unwrap();
    device.save(&file).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), 1 << 30);
    assert!(
        metadata.blocks() * 512 < 1 << 20,
        "{} sectors",
        metadata.blocks()
    );
    let loaded = MemoryDevice::from_file(&file, MemoryOptions::new(0)).unwrap();
    assert_eq!(loaded.geometry().size, 1 << 30);
    assert_eq!(loaded.first_difference(&device), None);
    assert!(loaded.allocated() < 1 << 20);
}

#[test]
fn file_that_ends_inside_a_block_is_loaded_with_zeros_after_it() {
    use std::io::Write;

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&[7; 5000]).unwrap();
    let device = MemoryDevice::from_file(&file, MemoryOptions::new(0)).unwrap();
    let mut expected = vec![7; 5000];
    expected.resize(5120, 0);
    assert_eq!(device.to_vec(), expected);
    assert_eq!(
        MemoryDevice::from_bytes(&expected).first_difference(&device),
        None
    );
    device.save(&file).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 5120);
}
