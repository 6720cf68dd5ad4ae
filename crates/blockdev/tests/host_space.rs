//! Effects of host devices on space: status, zeros, discard, assign; verified by filefrag.

mod host;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use extant_blockdev::{
    Assigned, Device, Features, HostCache, HostEngine, HostOptions, Operation, Persistence,
    RangeStatus, Request, Speed, Zeroing,
};
use extant_space::{ByteRange, ErrorKind, ExtentFlags, ExtentState};
use extant_testkit::oracle::{filefrag, filefrag_count};
use extant_testkit::scratch::{Filesystem, LoopDevice, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};
use host::{FAST_ALLOCATED, MIB, every_way, open, read, sparse, statuses, uring};
use rustix::fs::FallocateFlags;

use RangeStatus::{Data, Hole, Zero};

/// File systems with unwritten extents.
const WITH_UNWRITTEN: [Filesystem; 3] = [Filesystem::Ext4, Filesystem::Xfs, Filesystem::Btrfs];

fn scratch(filesystem: Filesystem) -> Scratch {
    Scratch::new(filesystem, filesystem.size_bytes_min().max(64 * MIB))
}

fn state_at(file: &Path, offset: u64) -> ExtentState {
    let at = ByteRange::new(offset, offset + 1);
    let extents = filefrag(file).with_holes();
    let found = extents.iter().find(|extent| extent.logical.contains(at));
    found.expect("an offset in the file").state
}

#[test]
fn status_distinguishes_holes_zeros_and_data() {
    for filesystem in WITH_UNWRITTEN {
        require!(requires::root(), filesystem.requirement(), uring());
        let scratch = scratch(filesystem);
        for options in every_way() {
            let path = sparse(scratch.path(), "file", 8 * MIB);
            let device = open(&path, &options);
            let features = device.geometry().features;
            assert!(features.contains(Features::STATUS | Features::EXTENTS));
            device.assign(ByteRange::new(MIB, 4 * MIB)).unwrap();
            device
                .write_at(&[1; 8192], 2 * MIB, Persistence::Cached)
                .unwrap();
            device
                .write_at(&[1; 4096], 6 * MIB, Persistence::Cached)
                .unwrap();
            let expected = [
                (0, MIB, Hole),
                (MIB, 2 * MIB, Zero),
                (2 * MIB, 2 * MIB + 8192, Data),
                (2 * MIB + 8192, 4 * MIB, Zero),
                (4 * MIB, 6 * MIB, Hole),
                (6 * MIB, 6 * MIB + 4096, Data),
                (6 * MIB + 4096, 8 * MIB, Hole),
            ];
            let whole = device.geometry().range();
            assert_eq!(
                statuses(&device, whole),
                expected,
                "{filesystem}, {options:?}"
            );
            let inside = ByteRange::new(MIB + 512 * 3, 2 * MIB + 4096);
            let clipped = [
                (MIB + 512 * 3, 2 * MIB, Zero),
                (2 * MIB, 2 * MIB + 4096, Data),
            ];
            assert_eq!(statuses(&device, inside), clipped);
        }
    }
}

#[test]
fn status_without_fiemap_distinguishes_zeros_from_data() {
    require!(requires::root(), Filesystem::Tmpfs.requirement());
    let scratch = scratch(Filesystem::Tmpfs);
    let path = sparse(scratch.path(), "file", 8 * MIB);
    let device = open(&path, &HostOptions::default());
    assert!(!device.geometry().features.contains(Features::EXTENTS));
    device
        .write_at(&[1; 4096], MIB, Persistence::Cached)
        .unwrap();
    assert_eq!(
        statuses(&device, device.geometry().range()),
        [
            (0, MIB, Hole),
            (MIB, MIB + 4096, Data),
            (MIB + 4096, 8 * MIB, Hole)
        ]
    );
}

#[test]
fn zeros_stay_allocated_or_become_holes_as_asked_for() {
    for filesystem in WITH_UNWRITTEN {
        require!(requires::root(), filesystem.requirement(), uring());
        let scratch = scratch(filesystem);
        for options in every_way() {
            let path = sparse(scratch.path(), "file", 8 * MIB);
            let device = open(&path, &options);
            let data = vec![7; 4 * MIB as usize];
            device.write_at(&data, 0, Persistence::Cached).unwrap();
            let (stays, goes) = (
                ByteRange::new(MIB, 2 * MIB),
                ByteRange::new(3 * MIB, 4 * MIB),
            );
            let hole = ByteRange::new(5 * MIB, 6 * MIB);
            device.write_zeroes(stays, FAST_ALLOCATED).unwrap();
            device.write_zeroes(hole, FAST_ALLOCATED).unwrap();
            device.write_zeroes(goes, Zeroing::ANY).unwrap();
            device.flush().unwrap();
            for range in [stays, hole] {
                assert!(read(&device, range).iter().all(|&byte| byte == 0));
                let (_, _, status) = statuses(&device, range)[0];
                assert_ne!(status, Hole, "{filesystem}, {options:?}");
                assert_ne!(state_at(&path, range.start()), ExtentState::Hole);
            }
            assert_eq!(statuses(&device, goes), [(3 * MIB, 4 * MIB, Hole)]);
            assert_eq!(read(&device, ByteRange::new(MIB - 512 * 8, MIB)), [7; 4096]);
            assert_eq!(
                read(&device, ByteRange::new(2 * MIB, 2 * MIB + 4096)),
                [7; 4096]
            );
        }
    }
}

#[test]
fn zeros_written_below_leave_no_hole_and_no_unwritten_extent() {
    for filesystem in WITH_UNWRITTEN {
        require!(requires::root(), filesystem.requirement(), uring());
        let scratch = scratch(filesystem);
        for options in every_way() {
            let path = sparse(scratch.path(), "file", 32 * MIB);
            let device = open(&path, &options);
            device.assign(ByteRange::new(MIB, 8 * MIB)).unwrap();
            let data = vec![7; 4 * MIB as usize];
            device
                .write_at(&data, 6 * MIB, Persistence::Cached)
                .unwrap();
            let range = ByteRange::new(0, 20 * MIB + 4096);
            let fast = Zeroing {
                speed: Speed::OnlyIfFast,
                ..Zeroing::WRITTEN
            };
            // The file system of a loop device cannot write zeroes without sending data.
            let error = device.write_zeroes(range, fast).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            let kept = ByteRange::new(6 * MIB, 10 * MIB);
            assert!(read(&device, kept) == data, "a refusal changes nothing");
            device.write_zeroes(range, Zeroing::WRITTEN).unwrap();
            device.flush().unwrap();
            let map = filefrag(&path);
            assert_eq!(map.bytes(ExtentState::Unwritten), 0, "{filesystem}");
            assert_eq!(map.bytes(ExtentState::Written), range.len());
            assert_eq!(state_at(&path, range.end()), ExtentState::Hole);
            assert!(read(&device, range).iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn zeros_without_a_fast_way_are_refused_or_written_as_data() {
    require!(requires::root(), Filesystem::Tmpfs.requirement(), uring());
    let scratch = scratch(Filesystem::Tmpfs);
    for options in every_way() {
        let path = sparse(scratch.path(), "file", 16 * MIB);
        let device = open(&path, &options);
        let data = vec![7; 12 * MIB as usize];
        // The first request finds out, the others know.
        for _ in 0..3 {
            device.write_at(&data, 0, Persistence::Cached).unwrap();
            let range = ByteRange::new(MIB, 11 * MIB + 4096);
            let error = device.write_zeroes(range, FAST_ALLOCATED).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(
                read(&device, ByteRange::new(0, 12 * MIB)) == data,
                "nothing changes"
            );
            device.write_zeroes(range, Zeroing::ALLOCATED).unwrap();
            assert!(read(&device, range).iter().all(|&byte| byte == 0));
            assert_eq!(
                statuses(&device, range),
                [(range.start(), range.end(), Data)]
            );
            let after = ByteRange::new(range.end(), 12 * MIB);
            assert!(read(&device, after).iter().all(|&byte| byte == 7));
            assert_eq!(
                read(&device, ByteRange::new(MIB - 1024 * 4, MIB)),
                [7; 4096]
            );
        }
    }
}

#[test]
fn discard_gives_the_space_of_a_file_back() {
    for filesystem in WITH_UNWRITTEN {
        require!(requires::root(), filesystem.requirement(), uring());
        let scratch = scratch(filesystem);
        for options in every_way() {
            let path = sparse(scratch.path(), "file", 8 * MIB);
            let device = open(&path, &options);
            device
                .write_at(&vec![7; 8 << 20], 0, Persistence::Cached)
                .unwrap();
            device.flush().unwrap();
            device.discard(ByteRange::new(2 * MIB, 6 * MIB)).unwrap();
            let expected = [
                (0, 2 * MIB, Data),
                (2 * MIB, 6 * MIB, Hole),
                (6 * MIB, 8 * MIB, Data),
            ];
            let whole = device.geometry().range();
            assert_eq!(
                statuses(&device, whole),
                expected,
                "{filesystem}, {options:?}"
            );
        }
    }
}

#[test]
fn disk_zeroes_discards_and_refuses_to_assign() {
    require!(
        requires::root(),
        Filesystem::Ext4.requirement(),
        requires::tool("losetup"),
        uring()
    );
    let scratch = scratch(Filesystem::Ext4);
    for options in every_way() {
        let backing = sparse(scratch.path(), "backing", 8 * MIB);
        let disk = LoopDevice::attach(&backing);
        let device = open(disk.path(), &options);
        let geometry = device.geometry();
        assert!(
            geometry
                .features
                .contains(Features::DISCARD | Features::WRITE_ZEROES)
        );
        assert!(
            !geometry
                .features
                .intersects(Features::ASSIGN | Features::STATUS)
        );
        device
            .write_at(&vec![7; 8 << 20], 0, Persistence::Cached)
            .unwrap();
        device.flush().unwrap();
        let part = |at: u64| ByteRange::new(at * MIB, (at + 1) * MIB);
        let mut requests = [
            Request::new(Operation::WriteZeroes(part(1), FAST_ALLOCATED)),
            Request::new(Operation::WriteZeroes(part(3), Zeroing::ANY)),
            Request::new(Operation::Discard(part(5))),
        ];
        device.submit(&mut requests);
        requests
            .into_iter()
            .for_each(|request| request.into_result().unwrap());
        device.flush().unwrap();
        let expected = [
            (0, ExtentState::Written),
            (1, ExtentState::Unwritten),
            (2, ExtentState::Written),
            (3, ExtentState::Hole),
            (4, ExtentState::Written),
            (5, ExtentState::Hole),
            (6, ExtentState::Written),
        ];
        for (at, state) in expected {
            assert_eq!(state_at(&backing, at * MIB), state, "MiB {at}, {options:?}");
        }
        assert!(read(&device, part(1)).iter().all(|&byte| byte == 0));
        assert!(read(&device, part(3)).iter().all(|&byte| byte == 0));
        for at in [1, 3, 5] {
            device.write_zeroes(part(at), Zeroing::WRITTEN).unwrap();
        }
        device.flush().unwrap();
        assert_eq!(filefrag(&backing).bytes(ExtentState::Written), 8 * MIB);
        assert_eq!(device.assign(part(1)).unwrap(), Assigned::Refused);
        assert_eq!(statuses(&device, geometry.range()), [(0, 8 * MIB, Data)]);
    }
}

#[test]
fn disk_that_refuses_to_zero_is_sent_zeros() {
    require!(
        requires::root(),
        Filesystem::Tmpfs.requirement(),
        requires::tool("losetup"),
        uring()
    );
    let scratch = scratch(Filesystem::Tmpfs);
    for options in every_way() {
        // A loop device offers to zero, and its file on tmpfs can only punch.
        let backing = sparse(scratch.path(), "backing", 40 * MIB);
        let disk = LoopDevice::attach(&backing);
        let device = open(disk.path(), &options);
        device
            .write_at(&vec![7; 40 << 20], 0, Persistence::Cached)
            .unwrap();
        device.flush().unwrap();
        let range = ByteRange::new(MIB, 39 * MIB);
        device.write_zeroes(range, Zeroing::ALLOCATED).unwrap();
        device.flush().unwrap();
        let blocks = fs::metadata(&backing).unwrap().blocks();
        assert_eq!(blocks * 512, 40 * MIB, "the space stays: {options:?}");
        assert!(read(&device, range).iter().all(|&byte| byte == 0));
        // The kernel has learnt that the disk cannot.
        let error = device.write_zeroes(range, FAST_ALLOCATED).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

#[test]
fn assign_gives_few_extents_keeps_data_and_does_nothing_again() {
    const SIZE: u64 = 256 * MIB;
    for filesystem in WITH_UNWRITTEN {
        require!(requires::root(), filesystem.requirement(), uring());
        let scratch = Scratch::new(filesystem, 512 * MIB);
        for options in every_way() {
            let path = sparse(scratch.path(), "file", SIZE);
            let options = HostOptions {
                assign_max: 16 * MIB + 5,
                ..options
            };
            let device = open(&path, &options);
            assert_eq!(device.geometry().limits.assign.bytes, 16 * MIB);
            device
                .write_at(&[7; 4096], 40 * MIB, Persistence::Cached)
                .unwrap();
            device.flush().unwrap();
            let whole = device.geometry().range();
            assert_eq!(device.assign(whole).unwrap(), Assigned::Done);
            device.flush().unwrap();
            let first = filefrag(&path);
            assert_eq!(first.bytes(ExtentState::Hole), 0);
            assert_eq!(first.bytes(ExtentState::Written), 4096);
            // The written block and the extents before and after it.
            let extents = filefrag_count(&path);
            assert!(
                extents <= 16,
                "{extents} extents on {filesystem}, {options:?}"
            );
            assert_eq!(
                read(&device, ByteRange::new(40 * MIB, 40 * MIB + 4096)),
                [7; 4096]
            );
            assert_eq!(device.assign(whole).unwrap(), Assigned::Done);
            device.flush().unwrap();
            assert_eq!(filefrag(&path), first);
            assert_eq!(fs::metadata(&path).unwrap().len(), SIZE);
        }
    }
}

#[test]
fn assign_of_shared_extents_leaves_them_shared() {
    for filesystem in [Filesystem::Xfs, Filesystem::Btrfs] {
        require!(requires::root(), filesystem.requirement());
        let scratch = scratch(filesystem);
        let original = scratch.path().join("original");
        fs::write(&original, vec![7; 4 << 20]).unwrap();
        File::open(&original).unwrap().sync_all().unwrap();
        let path = sparse(scratch.path(), "copy", 0);
        let copy = OpenOptions::new().write(true).open(&path).unwrap();
        rustix::fs::ioctl_ficlone(&copy, File::open(&original).unwrap()).unwrap();
        copy.set_len(8 * MIB).unwrap();
        drop(copy);
        let device = open(&path, &HostOptions::default());
        let whole = device.geometry().range();
        assert_eq!(device.assign(whole).unwrap(), Assigned::Done);
        device.flush().unwrap();
        let map = filefrag(&path).with_holes();
        for extent in &map {
            let is_shared = extent.flags.contains(ExtentFlags::SHARED);
            assert_eq!(
                is_shared,
                extent.logical.end() <= 4 * MIB,
                "{filesystem}: {extent:?}"
            );
            assert_ne!(extent.state, ExtentState::Hole);
        }
        let bytes = read(&device, whole);
        assert!(bytes[..4 << 20].iter().all(|&byte| byte == 7));
        assert!(bytes[4 << 20..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn assign_without_space_fails_with_the_cause_and_the_range() {
    require!(requires::root(), Filesystem::Ext4.requirement(), uring());
    let scratch = scratch(Filesystem::Ext4);
    for options in every_way() {
        let path = sparse(scratch.path(), "file", 1 << 30);
        let device = open(&path, &options);
        let range = ByteRange::new(MIB, 512 * MIB);
        let error = device.assign(range).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        // The call that failed, which was the first.
        let failed = error.range().unwrap();
        assert_eq!(failed.start(), range.start());
        assert!(failed.end() <= range.end());
        assert!(
            error.to_string().starts_with(path.to_str().unwrap()),
            "{error}"
        );
        fs::remove_file(&path).unwrap();
    }
}

/// Sends a signal when dropped, also by a failed assertion.
struct Stopper<'a>(&'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn other_requests_end_while_a_huge_assign_runs() {
    const GIB: u64 = 1 << 30;
    const DATA: u64 = 64 * GIB;
    require!(requires::root(), Filesystem::Xfs.requirement(), uring());
    let scratch = Scratch::new(Filesystem::Xfs, 80 * GIB);
    for engine in [HostEngine::Uring, HostEngine::Threads] {
        let path = sparse(scratch.path(), "file", DATA + MIB);
        let options = HostOptions {
            cache: HostCache::Direct,
            engine,
            // Many pieces, so that the assign lasts.
            assign_max: 16 * MIB,
            ..HostOptions::default()
        };
        let device = open(&path, &options);
        let assigning = AtomicU64::new(0);
        let (inside, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let _stopper = Stopper(&stop);
            scope.spawn(|| {
                let data = [7; 4096];
                while !stop.load(Ordering::SeqCst) {
                    // Odd while an assign runs; the same number after as before: the same assign.
                    let before = assigning.load(Ordering::SeqCst);
                    device.write_at(&data, DATA, Persistence::Cached).unwrap();
                    assert_eq!(read(&device, ByteRange::new(DATA, DATA + 4096)), data);
                    if before % 2 == 1 && assigning.load(Ordering::SeqCst) == before {
                        inside.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            // On a busy machine the other thread may sleep through an assign.
            for _ in 0..20 {
                assigning.fetch_add(1, Ordering::SeqCst);
                let assigned = device.assign(ByteRange::new(0, DATA)).unwrap();
                assigning.fetch_add(1, Ordering::SeqCst);
                assert_eq!(assigned, Assigned::Done);
                if inside.load(Ordering::SeqCst) > 0 {
                    break;
                }
                device.discard(ByteRange::new(0, DATA)).unwrap();
            }
        });
        assert!(
            inside.load(Ordering::SeqCst) > 0,
            "{engine:?}: every request waited"
        );
        device.flush().unwrap();
        assert_eq!(filefrag(&path).bytes(ExtentState::Unwritten), DATA);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn requests_of_one_batch_end_beside_its_assign() {
    require!(requires::root(), Filesystem::Ext4.requirement(), uring());
    let scratch = scratch(Filesystem::Ext4);
    for options in every_way() {
        let path = sparse(scratch.path(), "file", 32 * MIB);
        let options = HostOptions {
            assign_max: MIB,
            depth: 4,
            ..options
        };
        let device = open(&path, &options);
        let data = vec![7; 64 << 10];
        let mut requests = vec![Request::new(Operation::Assign(ByteRange::new(0, 16 * MIB)))];
        requests.extend(
            (0..64).map(|at| {
                Request::write(16 * MIB + at * data.len() as u64, &data, Persistence::Fua)
            }),
        );
        requests.push(Request::new(Operation::WriteZeroes(
            ByteRange::new(24 * MIB, 25 * MIB),
            Zeroing {
                persistence: Persistence::Fua,
                ..Zeroing::ALLOCATED
            },
        )));
        device.submit(&mut requests);
        requests
            .into_iter()
            .for_each(|request| request.into_result().unwrap());
        assert_eq!(
            statuses(&device, ByteRange::new(0, 16 * MIB)),
            [(0, 16 * MIB, Zero)]
        );
        let written = ByteRange::new(16 * MIB, 20 * MIB);
        assert!(read(&device, written).iter().all(|&byte| byte == 7));
        assert_eq!(statuses(&device, written), [(16 * MIB, 20 * MIB, Data)]);
    }
}

#[test]
fn space_past_the_end_of_the_device_is_not_touched() {
    require!(requires::root(), Filesystem::Ext4.requirement());
    let scratch = scratch(Filesystem::Ext4);
    let path = sparse(scratch.path(), "file", 4 * MIB);
    // Allocated past the end, as by `fallocate --keep-size`.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 4 * MIB, MIB).unwrap();
    drop(file);
    let device = open(&path, &HostOptions::default());
    let whole = device.geometry().range();
    device.discard(whole).unwrap();
    device.write_zeroes(whole, Zeroing::ANY).unwrap();
    device.write_zeroes(whole, Zeroing::ALLOCATED).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 * MIB);
    let extents = filefrag(&path).extents;
    let end = extents.last().unwrap().logical.end();
    assert_eq!(end, 5 * MIB);
}

#[test]
fn work_directory_of_the_host_takes_a_device() {
    let work = Workdir::new();
    let path = sparse(work.path(), "file", MIB);
    let device = open(&path, &HostOptions::default());
    device.write_at(&[1; 512], 512, Persistence::Fua).unwrap();
    assert_eq!(read(&device, ByteRange::new(512, 1024)), [1; 512]);
}
