//! Trimming: free blocks are discarded, blocks in use never.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use extant_blockdev::simulation::{CrashDevice, Survivors};
use extant_blockdev::{Device, Features, Geometry, MemoryDevice, RangeStatus, Request};
use extant_ext4::{Access, Filesystem, FollowLast, Options, Reserve};
use extant_space::{ByteRange, CancelToken, ErrorKind, FallocateMode, Result, SpaceFile};
use extant_testkit::{require, requires};

use crate::image::{FORMATS, Image, create};

const MIB: u64 = 1 << 20;

fn all() -> ByteRange {
    ByteRange::new(0, u64::MAX)
}

fn trim(filesystem: &Filesystem, range: ByteRange, run_bytes_min: u64) -> Result<u64> {
    filesystem.trim(range, run_bytes_min, &CancelToken::new())
}

/// No commit starts by itself.
fn patient() -> Options {
    Options {
        commit_interval: Duration::from_secs(3600),
        reserve: Reserve::Take,
        ..Options::default()
    }
}

/// Fills the free blocks with ones, so that later discards are visible.
fn dirty(filesystem: &Filesystem) {
    let node = create(&filesystem.root().unwrap(), "ones");
    let file = node.file().unwrap();
    let mut at = 0;
    while file.write_at(&[1; 64 << 10], at).is_ok() {
        at += 64 << 10;
    }
    drop((file, node));
    filesystem.root().unwrap().unlink(b"ones").unwrap();
    filesystem.sync().unwrap();
}

fn free_runs(filesystem: &Filesystem) -> Vec<ByteRange> {
    let bytes = u64::from(filesystem.block_bytes());
    let mut runs = Vec::new();
    let visited = filesystem.for_each_free_run(&mut |run| {
        runs.push(ByteRange::new(run.start * bytes, run.end * bytes));
        ControlFlow::Continue(())
    });
    visited.unwrap();
    runs
}

/// Bytes of `range` that are a hole of the device.
fn holes(device: &MemoryDevice, range: ByteRange) -> u64 {
    let mut bytes = 0;
    let visited = device.status(range, &mut |part, status| {
        if status == RangeStatus::Hole {
            bytes += part.len();
        }
        ControlFlow::Continue(())
    });
    visited.unwrap();
    bytes
}

#[test]
fn trim_discards_only_free_blocks() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    // Without a journal the allocator keeps a few blocks that are free in the bitmap.
    let journaled = |options: &&str| !options.contains("^has_journal");
    for options in FORMATS.into_iter().filter(journaled) {
        let image = Image::new(options, 32);
        let filesystem = image.open_with(patient());
        let root = filesystem.root().unwrap();
        let kept = create(&root, "kept").file().unwrap();
        kept.write_at(&[7; 300_000], 12_345).unwrap();
        dirty(&filesystem);
        let before = image.bytes();
        let free = free_runs(&filesystem);
        let trimmed = trim(&filesystem, all(), 0).unwrap();
        assert_eq!(
            trimmed,
            free.iter().map(|run| run.len()).sum::<u64>(),
            "{options}"
        );
        let mut expected = before;
        for run in &free {
            // The device's own pages of 4 KiB inside it.
            let whole = run.start().next_multiple_of(4096)..run.end() / 4096 * 4096;
            if !whole.is_empty() {
                let whole = ByteRange::new(whole.start, whole.end);
                assert_eq!(holes(&image.device, whole), whole.len(), "{options}");
            }
            expected[run.start() as usize..run.end() as usize].fill(0);
        }
        assert!(image.bytes() == expected, "{options}");
        drop((kept, root));
        filesystem.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn blocks_that_a_transaction_has_freed_are_kept_until_it_commits() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for survivors in [Survivors::None, Survivors::All, Survivors::Seeded(3)] {
        let image = Image::new("-t ext4", 16);
        let device = Arc::new(CrashDevice::new(image.device.snapshot()));
        let filesystem = Filesystem::open(device.clone(), patient()).unwrap();
        let root = filesystem.root().unwrap();
        let file = create(&root, "file").file().unwrap();
        file.write_at(&[9; 1 << 20], 0).unwrap();
        drop(file);
        filesystem.sync().unwrap();
        let free = trim(&filesystem, all(), 0).unwrap();
        root.unlink(b"file").unwrap();
        assert_eq!(trim(&filesystem, all(), 0).unwrap(), free);
        device.power_cut();
        drop((root, filesystem));
        device.restart(survivors);
        let filesystem = Filesystem::open(device.clone(), patient()).unwrap();
        let root = filesystem.root().unwrap();
        let found = filesystem
            .resolve(b"file", FollowLast::No)
            .unwrap()
            .file()
            .unwrap();
        let mut bytes = vec![0; 1 << 20];
        assert_eq!(found.read_at(&mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes == [9; 1 << 20], "{survivors:?}");
        drop(found);
        root.unlink(b"file").unwrap();
        filesystem.sync().unwrap();
        assert_eq!(trim(&filesystem, all(), 0).unwrap(), free + MIB);
    }
}

#[test]
fn range_and_shortest_run_bound_the_discards() {
    require!(requires::tool("mke2fs"));
    let image = Image::new("-t ext4 -b 4096", 32);
    let filesystem = image.open_with(patient());
    // Every other block of 8 MiB, then 1 MiB at a stretch.
    let file = create(&filesystem.root().unwrap(), "file").file().unwrap();
    file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 8 * MIB))
        .unwrap();
    for at in (0..8 * MIB).step_by(8192).skip(1) {
        file.fallocate(FallocateMode::PunchHole, ByteRange::at(at, 4096).unwrap())
            .unwrap();
    }
    file.node().release_windows();
    let runs = free_runs(&filesystem);
    let long = |least| {
        runs.iter()
            .map(|run| run.len())
            .filter(|&len| len >= least)
            .sum::<u64>()
    };
    assert!(0 < long(MIB) && long(MIB) < long(4097) + 1 && long(4097) < long(0));
    for least in [0, 1, 4096, 4097, MIB] {
        assert_eq!(
            trim(&filesystem, all(), least).unwrap(),
            long(least),
            "{least}"
        );
    }
    // Whole blocks inside count, also of runs that extend outside.
    let longest = *runs.iter().max_by_key(|run| run.len()).unwrap();
    let inside = ByteRange::new(longest.start() + 1, longest.start() + 5 * 4096 - 1);
    assert_eq!(trim(&filesystem, inside, 0).unwrap(), 3 * 4096);
    assert_eq!(trim(&filesystem, inside, 4 * 4096).unwrap(), 0);
}

#[test]
fn contradictory_options_are_refused() {
    require!(requires::tool("mke2fs"));
    let image = Image::new("-t ext4 -b 4096", 16);
    let kind = |result: Result<u64>| result.unwrap_err().kind();
    let filesystem = image.open();
    for (range, least) in [
        (ByteRange::new(16 * MIB, 32 * MIB), 0),
        (ByteRange::new(0, 4095), 0),
        (all(), (32_768 << 12) + 1),
    ] {
        let refused = kind(trim(&filesystem, range, least));
        assert_eq!(refused, ErrorKind::InvalidArgument, "{range}, {least}");
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    assert_eq!(
        kind(filesystem.trim(all(), 0, &cancel)),
        ErrorKind::Cancelled
    );
    filesystem.close().unwrap();
    let options = Options {
        access: Access::ReadOnly,
        ..Options::default()
    };
    let filesystem = image.open_with(options);
    assert_eq!(kind(trim(&filesystem, all(), 0)), ErrorKind::ReadOnly);
    drop(filesystem);
    let device = Arc::new(Keeper(image.device.snapshot()));
    let filesystem = Filesystem::open(device, Options::default()).unwrap();
    assert_eq!(kind(trim(&filesystem, all(), 0)), ErrorKind::Unsupported);
}

/// A device that does not discard.
struct Keeper(MemoryDevice);

impl Device for Keeper {
    fn geometry(&self) -> Geometry {
        let mut geometry = self.0.geometry();
        geometry.features.remove(Features::DISCARD);
        geometry
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.0.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.0.status(range, visit)
    }
}

/// Stops the other thread, also on a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn files_that_fill_the_disk_while_it_is_trimmed_get_all_of_it_and_keep_their_data() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 4096", 16);
    let filesystem = image.open_with(patient());
    // A count may miss blocks in flight to the device or back.
    let free = filesystem.statistics().free_blocks;
    let done = AtomicBool::new(false);
    let trimmed = thread::scope(|scope| {
        let ended = Ended(&done);
        let trims = scope.spawn(|| {
            let mut rounds = 0u64;
            while !done.load(Ordering::Relaxed) || rounds == 0 {
                trim(&filesystem, all(), 0).unwrap();
                rounds += 1;
            }
            rounds
        });
        for round in 0..6u8 {
            let root = filesystem.root().unwrap();
            let file = create(&root, "file").file().unwrap();
            // If its goal is withheld, allocation continues elsewhere: at worst each block is an
            // extent, and 340 need a node.
            for block in 0..free - 16 {
                file.write_at(&[round + 1; 4096], block * 4096).unwrap();
            }
            let mut bytes = vec![0; 4096];
            for block in 0..free - 16 {
                file.read_at(&mut bytes, block * 4096).unwrap();
                assert!(bytes == [round + 1; 4096], "block {block} in round {round}");
            }
            drop(file);
            root.unlink(b"file").unwrap();
            filesystem.sync().unwrap();
        }
        drop(ended);
        trims.join().unwrap()
    });
    assert!(trimmed > 0);
    filesystem.close().unwrap();
    image.assert_clean();
}
