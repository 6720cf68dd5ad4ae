//! Device requests of a sync.

use std::sync::Arc;
use std::time::Duration;

use extant_blockdev::simulation::CrashDevice;
use extant_blockdev::{OperationKind, Statistics};
use extant_ext4::{Filesystem, NewKind, Options};
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::made::{mke2fs, node};

const SYNCS: u64 = 200;

/// Bytes that reach the device, and flushes, of a write of 4 KiB into an unwritten file and its
/// sync.
fn cost(mkfs: &str) -> (u64, u64) {
    // A device with a cache.
    let disk = CrashDevice::new(mke2fs(mkfs, 32));
    let device = Arc::new(Statistics::new(disk));
    let options = Options {
        commit_interval: Duration::from_secs(10_000),
        ..Options::default()
    };
    let fs = Filesystem::open(device.clone(), options).unwrap();
    let file = fs
        .root()
        .unwrap()
        .create(b"file", &node(NewKind::Regular))
        .unwrap();
    let file = file.file().unwrap();
    let whole = ByteRange::new(0, 8 << 20);
    file.fallocate(FallocateMode::Allocate, whole).unwrap();
    fs.sync().unwrap();
    let before = device.snapshot();
    for number in 0..SYNCS {
        file.write_at(&[1; 4096], number * 37 % 2048 * 4096)
            .unwrap();
        file.sync(SyncMode::Data).unwrap();
    }
    let all = device.snapshot().since(&before);
    let written = all.of(OperationKind::Write).bytes;
    (
        written / SYNCS,
        all.of(OperationKind::Flush).count() / SYNCS,
    )
}

#[test]
fn sync_by_fast_commit_writes_a_fraction_of_a_full_one() {
    require!(requires::tool("mke2fs"));
    let full = cost("-t ext4 -b 4096");
    let fast = cost("-t ext4 -b 4096 -O fast_commit");
    eprintln!("bytes and flushes of a sync: full {full:?}, fast {fast:?}");
    assert_eq!(fast.1, 1, "flushes of a fast commit");
    assert!(
        fast.0 * 2 < full.0,
        "{} bytes, where a full commit has {}",
        fast.0,
        full.0
    );
}
