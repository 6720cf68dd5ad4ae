//! Changes that are durable when their call returns.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use extant_blockdev::MemoryDevice;
use extant_ext4::{Filesystem, FollowLast, Options};
use extant_fuse::operations::DSYNC;
use extant_testkit::require;
use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::mounts::{Ours, needs};

const MEBIBYTES: u64 = 16;
const BLOCK: usize = 4096;

/// Size of the file `f` after a power cut now; 0 without the file.
fn size_after_a_cut(ours: &Ours) -> u64 {
    let device = Arc::new(MemoryDevice::from_bytes(&ours.content()));
    let filesystem = Filesystem::open(device, Options::default()).unwrap();
    let found = filesystem.resolve(b"f", FollowLast::No);
    found.map_or(0, |node| node.attributes().size_bytes)
}

fn open(ours: &Ours, flags: OFlags) -> File {
    OpenOptions::new()
        .write(true)
        .create(true)
        .custom_flags(flags.bits() as i32)
        .open(ours.path().join("f"))
        .unwrap()
}

#[track_caller]
fn append_block(file: &File, flags: ReadWriteFlags) {
    let offset = file.metadata().unwrap().len();
    let block = [5; BLOCK];
    let written = pwritev2(file, &[IoSlice::new(&block)], offset, flags);
    assert_eq!(written, Ok(BLOCK));
}

#[test]
fn direct_write_is_durable_when_the_call_asks_for_it() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    for options in ["writeback", "no_writeback"] {
        let ours = Ours::new(MEBIBYTES, options);
        let file = open(&ours, OFlags::DIRECT);
        file.sync_all().unwrap();
        append_block(&file, ReadWriteFlags::empty());
        assert_eq!(size_after_a_cut(&ours), 0, "{options}");
        for (blocks, flags) in [(2, ReadWriteFlags::DSYNC), (3, ReadWriteFlags::SYNC)] {
            append_block(&file, flags);
            assert_eq!(size_after_a_cut(&ours), blocks * 4096, "{options}");
        }
        drop(file);
        ours.end();
    }
}

#[test]
fn direct_write_is_durable_with_the_mount_option() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    let ours = Ours::new(MEBIBYTES, "sync");
    let file = open(&ours, OFlags::DIRECT);
    append_block(&file, ReadWriteFlags::empty());
    assert_eq!(size_after_a_cut(&ours), 4096);
    drop(file);
    ours.end();
}

#[test]
fn time_of_a_direct_write_survives_the_times_that_the_kernel_stores() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    let ours = Ours::new(MEBIBYTES, "writeback");
    let old = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = open(&ours, OFlags::empty());
    file.set_modified(old).unwrap();
    drop(file);
    let file = open(&ours, OFlags::DIRECT);
    append_block(&file, ReadWriteFlags::empty());
    drop(file);
    // It changes the change time, which the kernel stores together with the modification time.
    std::fs::rename(ours.path().join("f"), ours.path().join("g")).unwrap();
    File::open(ours.path().join("g"))
        .unwrap()
        .sync_all()
        .unwrap();
    let filesystem = Filesystem::open(ours.end(), Options::default()).unwrap();
    let found = filesystem.resolve(b"g", FollowLast::No).unwrap();
    assert!(found.attributes().modified.seconds > 1_000_000_000);
}

#[test]
fn copy_and_fallocate_of_a_synchronous_descriptor_are_durable() {
    let [a, b, c, d, e, f] = needs();
    require!(a, b, c, d, e, f);
    let ours = Ours::new(MEBIBYTES, "writeback");
    let from = ours.path().join("from");
    std::fs::write(&from, [7; BLOCK]).unwrap();
    let from = File::open(&from).unwrap();
    for flags in [DSYNC, OFlags::SYNC] {
        let file = open(&ours, flags);
        file.set_len(0).unwrap();
        file.sync_all().unwrap();
        let copied = copy_file_range(&from, Some(&mut 0), &file, Some(&mut 0), BLOCK);
        assert_eq!(copied, Ok(BLOCK));
        assert_eq!(size_after_a_cut(&ours), 4096, "{flags:?}");
        fallocate(&file, FallocateFlags::empty(), 0, 8192).unwrap();
        assert_eq!(size_after_a_cut(&ours), 8192, "{flags:?}");
    }
    drop(from);
    ours.end();
}
