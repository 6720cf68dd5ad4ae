//! Disks that fail, drop writes, or are larger than the machine.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use extant_pool::{CreateVolume, Leftovers, OnStop, Operation, Pool, Verification};
use extant_space::{
    CancelToken, Control, ErrorKind, MappedProgress, Phase, Preallocation, Progress, Silent,
};
use extant_testkit::faulty::{FallocateFault, Faults, Faulty, WriteFault};
use extant_testkit::{require, requires};

use super::{DISK_BYTES, blank, define, full, read_at};
use crate::stand::{MIB, assert_at_rest, name, names, perform, submit};

/// A pool on an image in a file system with faults.
fn on_faulty(bytes: u64) -> (Faulty, Pool) {
    let faulty = Faulty::new(2 * bytes, Faults::default());
    let disk = faulty.path().join("disk.img");
    blank(&disk, bytes);
    let pool = define(&disk, None, false).unwrap();
    (faulty, pool)
}

fn write_fault(write: WriteFault) -> Faults {
    Faults {
        write,
        ..Faults::default()
    }
}

#[test]
fn failing_disk_gives_an_error_and_no_name() {
    require!(requires::device("/dev/fuse"));
    let (faulty, pool) = on_faulty(DISK_BYTES);
    for kind in [ErrorKind::Io, ErrorKind::NoSpace] {
        for after in [0, 4096, 40 * 1024, MIB, 5 * MIB, 8 * MIB + 20 * 1024] {
            faulty.set_faults(write_fault(WriteFault::FailsAfter(after, kind)));
            let failed = perform(&pool, full("a", 8 * MIB));
            faulty.set_faults(Faults::default());
            match failed {
                // The fault came behind the last write of the volume.
                Ok(()) => assert!(after > 8 * MIB, "{after}"),
                Err(error) => assert_eq!(error.kind(), kind, "{after}: {error}"),
            }
            let left = pool.refresh(Leftovers::Remove).unwrap();
            assert!(left.cancelled.len() <= 1, "{left:?}");
            if let Ok(found) = pool.volume(&name("a")) {
                assert_eq!(found.capacity_bytes, 8 * MIB);
                let zeros = read_at(&faulty.path().join("disk.img"), "a");
                assert!(zeros == vec![0; 8 * MIB as usize], "{after}");
                pool.delete(&name("a"), false).unwrap();
            }
            assert_at_rest(&pool);
        }
    }
}

#[test]
fn disk_that_drops_writes_is_caught_before_the_name_is_given() {
    require!(requires::device("/dev/fuse"));
    let (faulty, pool) = on_faulty(DISK_BYTES);
    // Old data, which a dropped zero leaves readable.
    let disk = File::options()
        .write(true)
        .open(faulty.path().join("disk.img"))
        .unwrap();
    disk.write_all_at(&vec![0xee; 40 * MIB as usize], MIB)
        .unwrap();
    for (after, verification) in [
        (40 * 1024, Verification::Sample),
        (4 * MIB, Verification::Sample),
        // Only the last byte's block; the samples include it as well.
        (7 * MIB, Verification::Full),
    ] {
        faulty.set_faults(write_fault(WriteFault::DroppedAfter(after)));
        let mut create = CreateVolume::new(name("a"), 8 * MIB, Preallocation::Full);
        create.verification = verification;
        let failed = perform(&pool, Operation::Create(create)).unwrap_err();
        faulty.set_faults(Faults::default());
        assert!(
            matches!(
                failed.kind(),
                ErrorKind::NotKept | ErrorKind::NotFound | ErrorKind::Corrupt
            ),
            "{after}: {failed}"
        );
        pool.refresh(Leftovers::Remove).unwrap();
        assert!(names(&pool).is_empty(), "{after}");
    }
}

#[test]
fn volume_of_terabytes_reports_progress_and_is_cancelled_at_once() {
    require!(requires::device("/dev/fuse"));
    const BYTES: u64 = 3 << 40;
    let faulty = Faulty::new(
        2 * BYTES,
        Faults {
            fallocate: FallocateFault::Unsupported,
            ..Faults::default()
        },
    );
    let disk = faulty.path().join("disk.img");
    blank(&disk, BYTES + 4 * MIB);
    let pool = define(&disk, None, false).unwrap();
    let job = submit(&pool, full("big", BYTES)).unwrap();
    let cancel = CancelToken::new();
    let reports: Mutex<Vec<(Instant, Progress)>> = Mutex::default();
    let sink = MappedProgress {
        update: |progress: Progress| reports.lock().unwrap().push((Instant::now(), progress)),
        caller: &Silent,
    };
    let stopped = std::thread::scope(|scope| {
        let stop = scope.spawn(|| {
            std::thread::sleep(Duration::from_secs(4));
            cancel.cancel();
            Instant::now()
        });
        let result = job.run(OnStop::Cancel, Control::new(&cancel, &sink));
        (result, stop.join().unwrap().elapsed())
    });
    assert_eq!(stopped.0.unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(stopped.1 < Duration::from_secs(3), "{:?}", stopped.1);
    let reports = reports.into_inner().unwrap();
    let writes: Vec<_> = reports
        .iter()
        .filter(|(_, progress)| progress.phase == Phase::Write)
        .collect();
    let longest = writes.windows(2).map(|pair| pair[1].0 - pair[0].0).max();
    assert!(longest.unwrap() < Duration::from_secs(1), "{longest:?}");
    let last = writes.last().unwrap().1;
    assert!(last.total_bytes == BYTES && last.done_bytes > 0, "{last:?}");
    assert!(names(&pool).is_empty());
    assert_at_rest(&pool);
}
