//! Counters of the engine, and the policies of the allocator, on file systems of mke2fs.

use extant_ext4::{AllocatorPolicy, Counters, File, Filesystem, GroupScan, Options, Reservation};
use extant_space::{ByteRange, FallocateMode, SpaceFile};
use extant_testkit::{require, requires};

use crate::image::{Image, create};

const BLOCK: u64 = 4096;

fn fallocate(file: &File, block: u64, blocks: u64) {
    let range = ByteRange::at(block * BLOCK, blocks * BLOCK).unwrap();
    file.fallocate(FallocateMode::Allocate, range).unwrap();
}

/// Increases by `work` of the requests, the groups scanned and the groups passed over.
fn search_counts(fs: &Filesystem, work: impl FnOnce()) -> [u64; 3] {
    let of = |counters: &Counters| {
        let all = &counters.allocator;
        [
            all.requests,
            all.groups_scanned.total(),
            all.groups_passed.total(),
        ]
    };
    let before = of(&fs.counters());
    work();
    let after = of(&fs.counters());
    std::array::from_fn(|at| after[at] - before[at])
}

#[test]
fn allocations_of_one_block_are_as_many_requests() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 64);
    let fs = image.open();
    let file = create(&fs.root().unwrap(), "file").file().unwrap();
    const BLOCKS: u64 = 24;
    let [requests, ..] = search_counts(&fs, || {
        for block in 0..BLOCKS {
            fallocate(&file, block, 1);
        }
    });
    assert_eq!(requests, BLOCKS);
    let counters = fs.counters();
    let all = &counters.allocator;
    assert_eq!(all.failures, 0);
    assert!(all.window_hits > 0, "{all:?}");
    assert!(all.window_blocks_added > 0, "{all:?}");
    drop(file);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn linear_scan_passes_over_groups_and_the_index_does_not() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    // 16 groups of 8 MiB, of which the first half is full.
    let image = Image::new("-t ext4 -b 1024 -J size=4", 128);
    let fs = image.open_with(Options {
        allocator: AllocatorPolicy {
            scan: GroupScan::Linear,
            ..AllocatorPolicy::default()
        },
        ..Options::default()
    });
    assert_eq!(fs.allocator_policy().scan, GroupScan::Linear);
    let large = create(&fs.root().unwrap(), "large").file().unwrap();
    let range = ByteRange::new(0, 64 << 20);
    large.fallocate(FallocateMode::Allocate, range).unwrap();
    // A search from the first group, under each policy.
    let search = |scan: GroupScan, name: &str| {
        fs.set_allocator_policy(AllocatorPolicy {
            scan,
            ..fs.allocator_policy()
        });
        // Files of consecutive numbers begin at every stream goal.
        search_counts(&fs, || {
            for index in 0..8 {
                let name = format!("{name}{index}");
                let file = create(&fs.root().unwrap(), &name).file().unwrap();
                fallocate(&file, 0, 64);
            }
        })
    };
    let linear = search(GroupScan::Linear, "linear");
    let indexed = search(GroupScan::Optimised, "indexed");
    assert!(linear[2] > 0, "{linear:?}");
    assert!(indexed[1] > 0, "{indexed:?}");
    assert_eq!(indexed[2], 0, "{indexed:?}");
    drop(large);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn file_that_grows_has_no_window_after_reservation_is_switched_off() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 64);
    let fs = image.open();
    let file = create(&fs.root().unwrap(), "file").file().unwrap();
    file.write_at(&[1; BLOCK as usize], 0).unwrap();
    assert!(fs.statistics().kept_blocks > 0);
    fs.set_allocator_policy(AllocatorPolicy {
        reservation: Reservation::None,
        ..fs.allocator_policy()
    });
    assert_eq!(fs.statistics().kept_blocks, 0);
    file.write_at(&[1; BLOCK as usize], BLOCK).unwrap();
    assert_eq!(fs.statistics().kept_blocks, 0);
    assert_eq!(fs.counters().policy.reservation, Reservation::None);
    drop(file);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn journal_and_cache_count_commits_and_reads_of_blocks() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 64);
    let fs = image.open();
    let before = fs.counters().journal.unwrap();
    for name in ["a", "b", "c"] {
        create(&fs.root().unwrap(), name);
        fs.sync().unwrap();
    }
    let after = fs.counters().journal.unwrap();
    assert_eq!(after.transactions - before.transactions, 3);
    assert_eq!(after.requested - before.requested, 3);
    assert!(after.handles >= before.handles + 3);
    assert!(after.blocks_logged > after.blocks);
    assert!(after.log_used > 0 && after.log_used <= after.log_blocks);
    let cache = fs.counters().cache;
    assert!(cache.hits > 0 && cache.misses > 0, "{cache:?}");
    assert!(cache.blocks > 0, "{cache:?}");
    fs.close().unwrap();

    // A cache that forgets everything still knows what it counted.
    let fs = image.open_with(Options {
        cached_blocks: 1,
        ..Options::default()
    });
    let opened = fs.counters().cache;
    for _ in 0..50 {
        fs.resolve(b"/a", extant_ext4::FollowLast::No).unwrap();
    }
    let read = fs.counters().cache;
    assert!(read.hits + read.misses >= opened.hits + opened.misses + 50);
    fs.close().unwrap();

    let read_only = image.open_with(Options {
        access: extant_ext4::Access::ReadOnly,
        ..Options::default()
    });
    assert!(read_only.counters().journal.is_none());
    image.assert_clean();
}
