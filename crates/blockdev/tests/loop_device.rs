//! The loop device: against plain bytes, on files that refuse requests, and the requests to the
//! file.

mod model;
mod page_file;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use extant_blockdev::{
    Assigned, Device, Features, LoopAccess, LoopDevice, LoopOptions, Operation, Persistence,
    RangeStatus, Request, Speed, Zeroing,
};
use extant_space::{ByteRange, ErrorKind, Extent, FallocateMode, Result, SpaceFile, SyncMode};
use page_file::PageFile;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn device(file: &Arc<PageFile>, options: LoopOptions) -> LoopDevice<PageFile> {
    LoopDevice::new(file.clone(), options).unwrap()
}

fn whole(size: u64) -> (Arc<PageFile>, LoopDevice<PageFile>) {
    let file = Arc::new(PageFile::new(size));
    let device = device(&file, LoopOptions::default());
    (file, device)
}

fn statuses(device: &dyn Device, range: ByteRange) -> Vec<(u64, u64, RangeStatus)> {
    let mut seen = Vec::new();
    let visit = &mut |part: ByteRange, status| {
        seen.push((part.start(), part.end(), status));
        ControlFlow::Continue(())
    };
    device.status(range, visit).unwrap();
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn loop_under_random_operations_equals_plain_bytes(
        steps in model::steps(),
        refused in prop::sample::subsequence(vec![
            FallocateMode::WriteZeroes,
            FallocateMode::ZeroRangeKeepSize,
            FallocateMode::AllocateKeepSize,
        ], 0..=3),
        offset in 0u64..3,
    ) {
        let offset = offset * 1000;
        let file = Arc::new(PageFile::new(model::SIZE + offset + 700));
        file.refuse(&refused);
        let options = LoopOptions { offset, size: Some(model::SIZE), ..LoopOptions::default() };
        let device = device(&file, options);
        // Blocks of the file and of the device are not aligned with an offset, and the naive file
        // punches whole blocks of its own; its states are only compared with the device's without
        // one.
        match offset {
            0 => model::compare(&device, &steps),
            _ => drop(model::compare_contents(&device, &steps)),
        }
        let bytes = file.bytes();
        prop_assert_eq!(bytes.len() as u64, model::SIZE + offset + 700);
        prop_assert!(bytes[..offset as usize].iter().all(|&byte| byte == 0));
        prop_assert!(bytes[(offset + model::SIZE) as usize..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn assign_allocates_in_order_in_pieces_at_the_limit_and_again_without_harm() {
    let file = Arc::new(PageFile::new(8 * MIB));
    let options = LoopOptions {
        offset: MIB,
        assign_max: 2 * MIB + 100,
        ..LoopOptions::default()
    };
    let device = device(&file, options);
    device
        .write_at(&[5; 512], 3 * MIB, Persistence::Cached)
        .unwrap();
    for _ in 0..2 {
        assert_eq!(
            device.assign(ByteRange::new(0, 7 * MIB)).unwrap(),
            Assigned::Done
        );
        let calls = file.take_calls();
        assert!(
            calls
                .iter()
                .all(|(mode, _)| *mode == FallocateMode::AllocateKeepSize)
        );
        let mut end = MIB;
        for (_, range) in &calls {
            assert_eq!(range.start(), end);
            assert!(range.len() <= 2 * MIB + 100);
            end = range.end();
        }
        assert_eq!((calls.len(), end), (4, 8 * MIB));
        assert_eq!(
            statuses(&device, device.geometry().range()),
            [
                (0, 3 * MIB, RangeStatus::Zero),
                (3 * MIB, 3 * MIB + 512, RangeStatus::Data),
                (3 * MIB + 512, 7 * MIB, RangeStatus::Zero),
            ]
        );
    }
}

#[test]
fn refused_modes_are_asked_for_once() {
    let (file, device) = whole(MIB);
    file.refuse(&FallocateMode::ALL);
    let range = ByteRange::new(0, 4096);
    let fast = Zeroing {
        speed: Speed::OnlyIfFast,
        ..Zeroing::ALLOCATED
    };
    for round in 0..3 {
        device.write_at(&[1; 8192], 0, Persistence::Cached).unwrap();
        let error = device.write_zeroes(range, fast).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(
            file.bytes()[..8192],
            [1; 8192],
            "a refused request changes nothing"
        );
        device.write_zeroes(range, Zeroing::ALLOCATED).unwrap();
        device.write_zeroes(range, Zeroing::ANY).unwrap();
        device.write_zeroes(range, Zeroing::WRITTEN).unwrap();
        device.discard(ByteRange::new(4096, 8192)).unwrap();
        assert_eq!(device.assign(range).unwrap(), Assigned::Refused);
        assert_eq!(file.bytes()[..4096], [0; 4096]);
        assert_eq!(file.bytes()[4096..8192], [1; 4096]);
        let calls: Vec<_> = file
            .take_calls()
            .into_iter()
            .map(|(mode, _)| mode)
            .collect();
        let expected: &[FallocateMode] = match round {
            0 => &[
                FallocateMode::ZeroRangeKeepSize,
                FallocateMode::PunchHole,
                FallocateMode::WriteZeroes,
                FallocateMode::AllocateKeepSize,
            ],
            _ => &[],
        };
        assert_eq!(calls, expected, "round {round}");
    }
}

#[test]
fn zeros_are_written_allocated_or_punched_as_asked_for() {
    let (file, device) = whole(MIB);
    let range = ByteRange::new(4096, 8192);
    for (refused, zeroing, status) in [
        (&[][..], Zeroing::ALLOCATED, RangeStatus::Zero),
        (&[], Zeroing::WRITTEN, RangeStatus::Data),
        (
            &[FallocateMode::WriteZeroes][..],
            Zeroing::WRITTEN,
            RangeStatus::Data,
        ),
        (&[], Zeroing::ANY, RangeStatus::Hole),
    ] {
        file.refuse(refused);
        device
            .write_at(&[1; 4096], 4096, Persistence::Cached)
            .unwrap();
        device.write_zeroes(range, zeroing).unwrap();
        assert_eq!(statuses(&device, range), [(4096, 8192, status)]);
    }
}

#[test]
fn assign_without_space_fails_with_the_cause_and_is_no_refusal() {
    let (file, device) = whole(MIB);
    file.fill_up();
    let error = device.assign(ByteRange::new(0, 4096)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let error = device
        .write_zeroes(ByteRange::new(0, 4096), Zeroing::ALLOCATED)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

#[test]
fn error_of_the_file_is_one_of_the_bytes_of_the_device() {
    let file = Arc::new(PageFile::new(MIB));
    let offset = 64 * 1024;
    let device = device(
        &file,
        LoopOptions {
            offset,
            ..LoopOptions::default()
        },
    );
    file.fill_up();
    let range = ByteRange::new(8192, 12288);
    let errors = [
        device.write_at(&[1; 4096], range.start(), Persistence::Cached),
        device.write_zeroes(range, Zeroing::ALLOCATED),
        device.run(Operation::Assign(range)),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.range(), Some(range), "{error}");
        let below = "bytes 8192 to 12288: backing: bytes 73728 to 77824: no space left on device";
        assert!(error.to_string().ends_with(below), "{error}");
    }
}

#[test]
fn one_sync_serves_the_flushes_and_fua_writes_of_a_batch() {
    let (file, device) = whole(MIB);
    let data = [1; 512];
    let batch = || {
        [
            Request::write(0, &data, Persistence::Fua),
            Request::write(512, &data, Persistence::Cached),
            Request::new(Operation::Flush),
            Request::write(1024, &data, Persistence::Fua),
        ]
    };
    let mut requests = batch();
    device.submit(&mut requests);
    assert_eq!(file.syncs.load(Ordering::Relaxed), 1);
    assert!(
        requests
            .into_iter()
            .all(|request| request.into_result().is_ok())
    );
    device.write_at(&data, 0, Persistence::Cached).unwrap();
    assert_eq!(file.syncs.load(Ordering::Relaxed), 1);
    device.write_at(&data, 0, Persistence::Fua).unwrap();
    device.flush().unwrap();
    assert_eq!(file.syncs.load(Ordering::Relaxed), 3);

    file.fail_syncs();
    let mut requests = batch();
    device.submit(&mut requests);
    let results = requests.map(|request| request.into_result().map_err(|error| error.to_string()));
    assert_eq!(
        results[0],
        Err("write: backing: sync: input/output error".to_owned())
    );
    assert_eq!(results[1], Ok(()));
    assert_eq!(
        results[2],
        Err("flush: backing: sync: input/output error".to_owned())
    );
    assert!(results[3].is_err());
}

#[test]
fn file_that_was_cut_fails_reads_with_the_missing_range() {
    let (file, device) = whole(MIB);
    file.resize(MIB / 2 + 100).unwrap();
    let mut into = [1; 1024];
    let error = device.read_at(&mut into, MIB / 2).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read bytes 524388 to 525312: the file below ends before the device does"
    );
    assert_eq!(error.kind(), ErrorKind::Io);
    let tail = ByteRange::new(MIB / 2, MIB);
    assert_eq!(statuses(&device, tail), [(MIB / 2, MIB, RangeStatus::Hole)]);
    assert_eq!(device.geometry().size, MIB);
    assert_eq!(device.refresh().unwrap(), MIB / 2);
    let error = device.read_at(&mut into, MIB / 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn file_that_grew_is_seen_after_refresh_unless_the_size_is_fixed() {
    let (file, device) = whole(MIB);
    let fixed = LoopOptions {
        size: Some(MIB / 2),
        offset: MIB / 2,
        ..LoopOptions::default()
    };
    let fixed = self::device(&file, fixed);
    file.resize(2 * MIB + 511).unwrap();
    assert_eq!(device.geometry().size, MIB);
    assert_eq!(device.refresh().unwrap(), 2 * MIB);
    device
        .write_at(&[1; 512], 2 * MIB - 512, Persistence::Cached)
        .unwrap();
    assert_eq!(fixed.refresh().unwrap(), MIB / 2);
    file.resize(MIB - 1).unwrap();
    assert_eq!(
        fixed.refresh().unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(fixed.geometry().size, MIB / 2);
}

#[test]
fn file_that_is_too_short_is_refused() {
    let file = Arc::new(PageFile::new(MIB));
    for (offset, size) in [
        (0, Some(MIB + 512)),
        (MIB + 1, None),
        (512, Some(MIB)),
        (0, Some(100)),
    ] {
        let options = LoopOptions {
            offset,
            size,
            ..LoopOptions::default()
        };
        let error = LoopDevice::new(file.clone(), options).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn read_only_device_refuses_changes() {
    let file = Arc::new(PageFile::new(MIB));
    let options = LoopOptions {
        access: LoopAccess::ReadOnly,
        ..LoopOptions::default()
    };
    let device = device(&file, options);
    assert!(device.geometry().features.contains(Features::READ_ONLY));
    let error = device
        .write_at(&[1; 512], 0, Persistence::Cached)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    assert_eq!(
        device.assign(ByteRange::new(0, 512)).unwrap_err().kind(),
        ErrorKind::ReadOnly
    );
    device.read_at(&mut [0; 512], 0).unwrap();
    device.flush().unwrap();
}

/// Says how many calls are in the file at a time at most; a call waits for others to arrive.
struct Crowd {
    file: PageFile,
    inside: AtomicU64,
    most: AtomicU64,
    assigning: AtomicU64,
}

impl Crowd {
    fn enter<T>(&self, call: impl FnOnce() -> T) -> T {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        for _ in 0..200 {
            if self.most.load(Ordering::SeqCst) >= 4 {
                break;
            }
            thread::sleep(std::time::Duration::from_millis(1));
        }
        let result = call();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        result
    }
}

impl SpaceFile for Crowd {
    fn size(&self) -> Result<u64> {
        self.file.size()
    }
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.enter(|| self.file.read_at(buffer, offset))
    }
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.enter(|| self.file.write_at(buffer, offset))
    }
    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.file.resize(size_bytes)
    }
    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        assert_eq!(
            self.assigning.fetch_add(1, Ordering::SeqCst),
            0,
            "two assigns at a time"
        );
        let result = self.enter(|| self.file.fallocate(mode, range));
        self.assigning.fetch_sub(1, Ordering::SeqCst);
        result
    }
    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.file.for_each_extent(range, visit)
    }
    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.file.sync(mode)
    }
}

#[test]
fn batch_runs_on_several_threads_with_its_assigns_in_order() {
    let file = Arc::new(Crowd {
        file: PageFile::new(MIB),
        inside: AtomicU64::new(0),
        most: AtomicU64::new(0),
        assigning: AtomicU64::new(0),
    });
    let below: Arc<dyn SpaceFile> = file.clone();
    let options = LoopOptions {
        assign_max: 4096,
        ..LoopOptions::default()
    };
    let device: LoopDevice = LoopDevice::new(below, options).unwrap();
    let data = model::data(64 << 10, 3);
    let mut requests: Vec<Request<'_>> = data
        .chunks(4096)
        .enumerate()
        .map(|(at, data)| Request::write(at as u64 * 4096, data, Persistence::Cached))
        .collect();
    requests.push(Request::new(Operation::Assign(ByteRange::new(
        MIB / 2,
        MIB / 2 + 16384,
    ))));
    device.submit(&mut requests);
    assert!(
        requests
            .into_iter()
            .all(|request| request.into_result().is_ok())
    );
    assert_eq!(file.file.bytes()[..64 << 10], data);
    assert_eq!(file.most.load(Ordering::SeqCst), 4);
    let starts: Vec<u64> = file
        .file
        .take_calls()
        .iter()
        .map(|(_, range)| range.start())
        .collect();
    assert_eq!(starts, [0, 4096, 8192, 12288].map(|at| MIB / 2 + at));
}
