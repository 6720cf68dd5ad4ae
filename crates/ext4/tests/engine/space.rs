//! Space: free blocks, reservations, and calls to the device.

use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, OperationKind, RangeStatus, Statistics};
use extant_ext4::{Assign, DeviceZeroes, Discard, Filesystem, Options, Reserve, XattrMode};
use extant_space::{
    ByteRange, CancelToken, ErrorKind, ExtentState, FallocateMode, SpaceFile, SyncMode,
};
use extant_testkit::command::{text, tool};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{Image, create, mkdir};

const MIB: u64 = 1 << 20;

/// Bytes of the device in each status: hole, zero, data.
fn bytes_by_status(device: &MemoryDevice) -> [u64; 3] {
    let mut sums = [0; 3];
    device
        .status(device.geometry().range(), &mut |range, status| {
            let at = match status {
                RangeStatus::Hole => 0,
                RangeStatus::Zero => 1,
                RangeStatus::Data => 2,
            };
            sums[at] += range.len();
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    sums
}

#[test]
fn statistics_are_those_of_dumpe2fs() {
    require!(requires::tool("mke2fs"), requires::tool("dumpe2fs"));
    let image = Image::new("-t ext4 -L label", 64);
    let fs = image.open();
    let file = create(&fs.root().unwrap(), "file").file().unwrap();
    file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 10 * MIB))
        .unwrap();
    let statistics = fs.statistics();
    fs.sync().unwrap();
    assert_eq!(&statistics.label[..5], b"label");
    drop(file);
    fs.close().unwrap();
    let work = Workdir::new();
    let path = work.path().join("image");
    std::fs::write(&path, image.bytes()).unwrap();
    let dump = text(tool("dumpe2fs").arg("-h").arg(&path)).unwrap();
    let value = |label: &str| -> u64 {
        let line = dump.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap().trim().parse().unwrap()
    };
    assert_eq!(statistics.free_blocks, value("Free blocks:"));
    assert_eq!(
        statistics.free_blocks - statistics.available_blocks,
        value("Reserved block count:")
    );
    assert_eq!(u64::from(statistics.inodes), value("Inode count:"));
    assert_eq!(
        value("Block count:") - statistics.blocks,
        value("Overhead clusters:")
    );
}

#[test]
fn reserve_is_kept_unless_it_may_be_taken() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 4096 -m 20", 32);
    let left = |reserve| {
        let fs = image.open_with(Options {
            reserve,
            ..Options::default()
        });
        let root = fs.root().unwrap();
        let file = create(&root, "file").file().unwrap();
        let error = file
            .fallocate(FallocateMode::Allocate, ByteRange::new(0, 64 * MIB))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        let statistics = fs.statistics();
        drop(file);
        root.unlink(b"file").unwrap();
        drop(root);
        fs.close().unwrap();
        image.assert_clean();
        statistics.free_blocks
    };
    let reserved = 32 * MIB / 4096 / 5;
    let kept = left(Reserve::Keep);
    assert!(
        (reserved..reserved + 8).contains(&kept),
        "{kept} of {reserved}"
    );
    assert!(left(Reserve::Take) < 8);
}

#[test]
fn blocks_of_a_removed_file_can_be_had_at_once() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 1024 -m 0", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let kept = create(&root, "kept");
    let name = "x".repeat(200);
    for needs in 0..5 {
        let all = ByteRange::new(0, fs.statistics().available_blocks * 1024 + MIB);
        let file = create(&root, "full").file().unwrap();
        let error = file.fallocate(FallocateMode::AllocateKeepSize, all);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace);
        fs.sync().unwrap();
        drop(file);
        root.unlink(b"full").unwrap();
        match needs {
            0 => drop(mkdir(&root, "directory")),
            1 => kept.file().unwrap().write_at(&[7; 100_000], 0).unwrap(),
            2 => (kept.file().unwrap())
                .fallocate(FallocateMode::Allocate, ByteRange::new(MIB, 9 * MIB))
                .unwrap(),
            3 => (kept.set_xattr(b"user.long", &[1; 900], XattrMode::Set)).unwrap(),
            _ => (0..100).for_each(|n| {
                root.link(format!("{name}{n}").as_bytes(), &kept).unwrap();
            }),
        }
    }
    drop((kept, root));
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn freed_blocks_are_discarded_after_the_commit() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 64);
    let fs = image.open_with(Options {
        discard: Discard::OnCommit,
        ..Options::default()
    });
    let root = fs.root().unwrap();
    let file = create(&root, "file").file().unwrap();
    let before = bytes_by_status(&image.device)[2];
    file.write_at(&vec![7; 20 << 20], 0).unwrap();
    fs.sync().unwrap();
    let with = bytes_by_status(&image.device)[2];
    assert!(with >= before + 20 * MIB);
    drop(file);
    root.unlink(b"file").unwrap();
    assert!(bytes_by_status(&image.device)[2] >= with);
    fs.sync().unwrap();
    assert!(bytes_by_status(&image.device)[2] < before + MIB);
    drop(root);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn write_zeroes_give_written_extents_with_or_without_space_below() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    // Bytes allocated, and written, on the device.
    for (zeroes, least, written) in [
        (DeviceZeroes::Written, 20 * MIB, 20 * MIB),
        (DeviceZeroes::Allocated, 20 * MIB, 0),
        (DeviceZeroes::MayUnmap, 0, 0),
    ] {
        let image = Image::new("-t ext4", 64);
        let fs = image.open_with(Options {
            zeroes,
            assign: Assign::Off,
            ..Options::default()
        });
        let file = create(&fs.root().unwrap(), "file").file().unwrap();
        let before = bytes_by_status(&image.device);
        file.fallocate(FallocateMode::WriteZeroes, ByteRange::new(0, 20 * MIB))
            .unwrap();
        file.sync(SyncMode::All).unwrap();
        let after = bytes_by_status(&image.device);
        let allocated = (after[1] + after[2]) - (before[1] + before[2]);
        assert!(
            (least..least + 2 * MIB).contains(&allocated),
            "{zeroes:?}: {allocated}"
        );
        let data = after[2] - before[2];
        assert!(
            (written..written + 2 * MIB).contains(&data),
            "{zeroes:?}: {data}"
        );
        let extents = file.extents(ByteRange::new(0, 20 * MIB)).unwrap();
        assert!(
            extents
                .iter()
                .all(|extent| extent.state == ExtentState::Written)
        );
        let mut bytes = vec![1; 20 << 20];
        file.read_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0));
        drop(file);
        fs.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn fallocate_passes_its_blocks_to_the_device_as_wanted() {
    require!(requires::tool("mke2fs"));
    for (assign, is_assigned) in [
        (Assign::Off, false),
        (Assign::Try, true),
        (Assign::Require, true),
    ] {
        let image = Image::new("-t ext4", 64);
        let fs = image.open_with(Options {
            assign,
            ..Options::default()
        });
        let file = create(&fs.root().unwrap(), "file").file().unwrap();
        let before = bytes_by_status(&image.device)[0];
        file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 20 * MIB))
            .unwrap();
        let taken = before - bytes_by_status(&image.device)[0];
        assert_eq!(taken >= 19 * MIB, is_assigned, "{assign:?}: {taken}");
    }
}

#[test]
fn device_is_asked_again_for_a_place_only_after_a_discard() {
    require!(requires::tool("mke2fs"));
    for (discard, assigns) in [(Discard::Off, 1), (Discard::OnCommit, 5)] {
        let image = Image::new("-t ext4", 64);
        let device = Arc::new(Statistics::new(image.device.clone()));
        let options = Options {
            discard,
            ..Options::default()
        };
        let fs = Filesystem::open(device.clone(), options).unwrap();
        let file = create(&fs.root().unwrap(), "file").file().unwrap();
        for _ in 0..5 {
            file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 2 * MIB))
                .unwrap();
            // Blocks allocated and freed in one transaction are not discarded.
            fs.sync().unwrap();
            file.resize(0).unwrap();
            fs.sync().unwrap();
            file.node().release_windows();
        }
        let count = device.snapshot().of(OperationKind::Assign).count();
        assert_eq!(count, assigns, "{discard:?}");
        if discard == Discard::Off {
            let all = image.device.geometry().range();
            fs.trim(all, 0, &CancelToken::new()).unwrap();
            file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 2 * MIB))
                .unwrap();
            let count = device.snapshot().of(OperationKind::Assign).count();
            assert_eq!(count, assigns + 1, "after a trim");
        }
    }
}

#[test]
fn fallocate_says_when_the_device_has_no_space_where_that_is_required() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let full = Image::new("-t ext4", 64);
    // The same image on a device with room for little more than the used blocks.
    let limited = || {
        let options = extant_blockdev::MemoryOptions {
            capacity: Some(12 * MIB),
            ..extant_blockdev::MemoryOptions::new(64 * MIB)
        };
        let device = MemoryDevice::with_options(options);
        for (at, page) in full.bytes().chunks(4096).enumerate() {
            if page.iter().any(|&byte| byte != 0) {
                let cached = extant_blockdev::Persistence::Cached;
                device.write_at(page, at as u64 * 4096, cached).unwrap();
            }
        }
        Arc::new(device)
    };
    for (assign, kind) in [
        (Assign::Try, None),
        (Assign::Require, Some(ErrorKind::NoSpace)),
    ] {
        let image = Image { device: limited() };
        let options = Options {
            assign,
            ..Options::default()
        };
        let fs = Filesystem::open(image.device.clone(), options).unwrap();
        let file = create(&fs.root().unwrap(), "file").file().unwrap();
        let done = file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 30 * MIB));
        assert_eq!(done.err().map(|error| error.kind()), kind);
        drop(file);
        fs.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn allocated_space_is_written_without_a_free_block_for_the_map() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 4096", 32);
    let fs = image.open_with(Options {
        reserve: Reserve::Take,
        ..Options::default()
    });
    let root = fs.root().unwrap();
    let file = create(&root, "file").file().unwrap();
    let size = 4 * MIB;
    file.fallocate(FallocateMode::Allocate, ByteRange::new(0, size))
        .unwrap();
    let filler = create(&root, "filler").file().unwrap();
    let mut at = 0;
    while filler
        .fallocate(FallocateMode::Allocate, ByteRange::at(at, 4096).unwrap())
        .is_ok()
    {
        at += 4096;
    }
    assert_eq!(fs.statistics().free_blocks, 0);
    // Each is an extent of its own: the tree would need nodes.
    let written = |block: u64| block % 16 == 7;
    for block in (0..size / 4096).filter(|block| written(*block)) {
        file.write_at(&[3; 4096], block * 4096).unwrap();
    }
    let mut bytes = [0; 4096];
    for block in 0..size / 4096 {
        file.read_at(&mut bytes, block * 4096).unwrap();
        let expected = if written(block) { 3 } else { 0 };
        assert!(bytes == [expected; 4096], "block {block}");
    }
    drop((file, filler, root));
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn group_that_is_allocated_as_a_whole_is_assigned_in_one_request() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -b 4096", 640);
    let device = Arc::new(Statistics::new(image.device.clone()));
    let fs = Filesystem::open(device.clone(), Options::default()).unwrap();
    let file = create(&fs.root().unwrap(), "file").file().unwrap();
    let size = 384 * MIB;
    file.fallocate(FallocateMode::Allocate, ByteRange::new(0, size))
        .unwrap();
    let assigns = device.snapshot().of(OperationKind::Assign).count();
    let mut pieces: Vec<ByteRange> = Vec::new();
    for extent in file.extents(ByteRange::new(0, size)).unwrap() {
        let start = extent.physical.unwrap();
        let end = start + extent.logical.len();
        match pieces.last_mut() {
            Some(last) if last.end() == start => *last = ByteRange::new(last.start(), end),
            _ => pieces.push(ByteRange::new(start, end)),
        }
    }
    // An extent may continue from one group to the next.
    let groups = size.div_ceil(128 * MIB) + 1;
    assert!(
        assigns <= groups + pieces.len() as u64,
        "{assigns} for {pieces:?}"
    );
    drop(file);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn extents_longer_than_groups_come_back_whole() {
    require!(requires::tool("mke2fs"));
    // Groups have 8 MiB here, extents up to 32.
    let image = Image::new("-t ext4 -b 1024 -m 0", 128);
    for way in 0..3 {
        let fs = image.open();
        let before = fs.statistics().free_blocks;
        let file = create(&fs.root().unwrap(), "file").file().unwrap();
        file.fallocate(FallocateMode::Allocate, ByteRange::new(0, 90 * MIB))
            .unwrap();
        let longest = file.extents(ByteRange::new(0, 90 * MIB)).unwrap();
        let longest = longest.iter().map(|extent| extent.logical.len()).max();
        assert!(longest.unwrap() > 20 * MIB, "{longest:?}");
        drop(file);
        fs.close().unwrap();
        // Its bitmaps have not been read yet.
        let fs = image.open();
        let root = fs.root().unwrap();
        let file = root.lookup(b"file").unwrap().file().unwrap();
        match way {
            0 => {}
            1 => file.resize(0).unwrap(),
            _ => {
                let hole = ByteRange::new(MIB, 89 * MIB);
                file.fallocate(FallocateMode::PunchHole, hole).unwrap();
            }
        }
        drop(file);
        root.unlink(b"file").unwrap();
        fs.sync().unwrap();
        assert_eq!(fs.statistics().free_blocks, before, "way {way}");
        drop(root);
        fs.close().unwrap();
        image.assert_clean();
    }
}
