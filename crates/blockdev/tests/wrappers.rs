//! Statistics and throttle: their counts and their forwarded requests, alone and stacked.

mod model;
mod page_file;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use extant_blockdev::simulation::{Clock, Done, Fault, FaultRule, FaultyDevice, When};
use extant_blockdev::{
    Device, LoopDevice, LoopOptions, MemoryDevice, Operation, OperationKind, Persistence, Request,
    Statistics, Throttle, ThrottleOptions, Zeroing,
};
use extant_space::{ByteRange, ErrorKind, SpaceFile};
use page_file::PageFile;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn statistics_over_throttle_over_loop_equals_plain_bytes(steps in model::steps()) {
        let file: Arc<dyn SpaceFile> = Arc::new(PageFile::new(model::SIZE));
        let throttle = ThrottleOptions {
            bytes_per_second: NonZeroU64::new(100 << 30),
            operations_per_second: NonZeroU64::new(10_000_000),
            ..ThrottleOptions::default()
        };
        let below: LoopDevice = LoopDevice::new(file, LoopOptions::default()).unwrap();
        let device = Statistics::new(Throttle::new(below, &throttle));
        model::compare(&device, &steps);
        let counted = device.snapshot();
        let writes = steps.iter().filter_map(|step| match step {
            model::Step::Write { blocks: (_, count), .. } => Some(count * 512),
            _ => None,
        });
        prop_assert_eq!(counted.of(OperationKind::Write).count(), writes.clone().count() as u64);
        prop_assert_eq!(counted.of(OperationKind::Write).bytes, writes.sum::<u64>());
    }
}

#[test]
fn statistics_count_requests_bytes_and_errors_by_kind() {
    let device = Statistics::new(MemoryDevice::new(1 << 20));
    device.write_at(&[1; 4096], 0, Persistence::Cached).unwrap();
    device.read_at(&mut [0; 1], 0).unwrap_err();
    let before = device.snapshot();
    device.write_at(&[1; 512], 0, Persistence::Cached).unwrap();
    device
        .write_at(&[1; 512], 100, Persistence::Cached)
        .unwrap_err();
    let (mut a, mut b) = ([0; 512], [0; 8192]);
    let mut batch = [
        Request::read(0, &mut a),
        Request::read(0, &mut b),
        Request::new(Operation::Flush),
    ];
    device.submit(&mut batch);
    device.discard(ByteRange::new(0, 1 << 20)).unwrap();
    let seen = device.snapshot().since(&before);

    let write = seen.of(OperationKind::Write);
    assert_eq!((write.count(), write.errors, write.bytes), (2, 1, 512));
    assert_eq!(
        write
            .size
            .buckets()
            .map(|(_, count)| count)
            .collect::<Vec<_>>(),
        [2]
    );
    let read = seen.of(OperationKind::Read);
    assert_eq!((read.count(), read.errors, read.bytes), (2, 0, 8704));
    assert_eq!(read.size.mean(), Some(4352.0));
    let flush = seen.of(OperationKind::Flush);
    assert_eq!((flush.count(), flush.bytes, flush.size.count()), (1, 0, 0));
    assert!(flush.latency_percentile(50.0).unwrap() > Duration::ZERO);
    assert_eq!(seen.of(OperationKind::Discard).bytes, 1 << 20);
    assert_eq!(seen.of(OperationKind::Assign).count(), 0);

    let json = serde_json::to_value(&seen).unwrap();
    assert_eq!(json["write"]["count"], 2);
    assert_eq!(json["write"]["errors"], 1);
    assert_eq!(json["read"]["size"]["mean"], 4352.0);
    assert!(json["assign"].is_null());
    let table = seen.to_string();
    let kinds: Vec<&str> = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert_eq!(kinds, ["read", "write", "flush", "discard"]);
}

#[test]
fn statistics_of_many_threads_miss_no_request() {
    let device = Statistics::new(MemoryDevice::new(1 << 20));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    device.read_at(&mut [0; 512], 0).unwrap();
                }
            });
        }
    });
    let read = device.snapshot().of(OperationKind::Read).clone();
    assert_eq!(
        (read.count(), read.bytes, read.latency.count()),
        (4000, 4000 * 512, 4000)
    );
}

#[test]
fn throttle_passes_results_and_data_of_all_kinds() {
    let options = ThrottleOptions {
        bytes_per_second: NonZeroU64::new(64 << 20),
        latency: Duration::from_micros(10),
        ..ThrottleOptions::default()
    };
    let fail = FaultRule::new(Fault::Fail {
        kind: ErrorKind::Io,
        done: Done::Nothing,
    });
    let fail = fail.on(&[OperationKind::Flush]).when(When::Nth(2));
    let below = FaultyDevice::with_clock(MemoryDevice::new(1 << 20), 1, vec![fail], Clock::Virtual);
    let device = Throttle::new(below, &options);
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..50u8 {
                    let data = [round; 4096];
                    device
                        .write_at(&data, thread * 4096, Persistence::Fua)
                        .unwrap();
                    let mut seen = [0; 4096];
                    device.read_at(&mut seen, thread * 4096).unwrap();
                    assert_eq!(seen, data);
                }
            });
        }
    });
    device.flush().unwrap();
    assert_eq!(device.flush().unwrap_err().kind(), ErrorKind::Io);
    device
        .write_zeroes(ByteRange::new(0, 16384), Zeroing::ANY)
        .unwrap();
    assert_eq!(device.inner().inner().allocated(), 0);
    assert_eq!(device.geometry(), device.inner().geometry());
}
