//! Attributes, and whom files belong to.

use extant_fuse::Operations;
use extant_fuse::operations::{
    AttributeChange, Copy, FilePosition, Privileges, SetTime, Timestamp, Write, WriteOrigin,
};
use extant_fuse::options::{AccessTimes, WriteCache};
use extant_mount::volume::{IdMap, Owners, VolumeOptions};
use extant_testkit::require;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::image::needs;
use crate::kernel::{Kernel, ROOT};

const THEN: Timestamp = Timestamp {
    seconds: 1_000_000_000,
    nanoseconds: 123_456_789,
};

fn times(time: Timestamp) -> AttributeChange {
    AttributeChange {
        accessed: Some(SetTime::To(time)),
        modified: Some(SetTime::To(time)),
        ..AttributeChange::default()
    }
}

#[test]
fn times_are_kept_to_the_nanosecond() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let before = file.attributes;
    assert_eq!(before.created, Some(before.changed));
    let after = kernel.change(file.node, times(THEN)).unwrap();
    assert_eq!((after.accessed, after.modified), (THEN, THEN));
    assert!(after.changed >= before.changed);
    assert_eq!(after.created, before.created);
    let change = AttributeChange {
        changed: Some(THEN),
        ..times(THEN)
    };
    assert_eq!(kernel.change(file.node, change).unwrap().changed, THEN);
    let now = AttributeChange {
        modified: Some(SetTime::Now),
        ..AttributeChange::default()
    };
    let after = kernel.change(file.node, now).unwrap();
    assert!(after.modified >= before.modified && after.accessed == THEN);
    kernel.end();
}

fn written_back() -> VolumeOptions {
    VolumeOptions {
        write_cache: WriteCache::Back,
        ..VolumeOptions::default()
    }
}

/// The times that the kernel stores.
fn flush(modified: Timestamp, changed: Timestamp) -> AttributeChange {
    AttributeChange {
        modified: Some(SetTime::To(modified)),
        changed: Some(changed),
        ..AttributeChange::default()
    }
}

#[test]
fn time_of_a_direct_write_is_not_replaced_by_that_of_the_kernels_cache() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::with(16, written_back());
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let node = file.node;
    let direct = kernel.open(node, OFlags::WRONLY | OFlags::DIRECT).unwrap();
    let write = || {
        let write = Write {
            handle: direct.handle,
            offset: 0,
            data: &[1; 4096],
            origin: WriteOrigin::Direct,
            privileges: Privileges::Keep,
            sync: None,
        };
        kernel
            .volume
            .write(&kernel.request(), node, &write)
            .unwrap();
        kernel.attributes(node).modified
    };
    kernel.change(node, flush(THEN, THEN)).unwrap();
    let written = write();
    assert!(written > THEN);
    // After a rename, again at a close, and after a write to the cache from between.
    let later = Timestamp {
        seconds: written.seconds + 1,
        ..written
    };
    let after = kernel.change(node, flush(THEN, later)).unwrap();
    assert_eq!((after.modified, after.changed), (written, later));
    let close = AttributeChange {
        handle: Some(direct.handle),
        ..flush(THEN, later)
    };
    assert_eq!(kernel.change(node, close).unwrap().modified, written);
    let between = Timestamp {
        seconds: THEN.seconds + 1,
        ..THEN
    };
    for changed in [between, later] {
        let after = kernel.change(node, flush(between, changed)).unwrap();
        assert_eq!((after.modified, after.changed), (written, later));
    }
    // Those of programs, and of later writes to the cache.
    for chosen in [times(between), flush(THEN, later), flush(later, later)] {
        let written = write();
        let Some(SetTime::To(wanted)) = chosen.modified else {
            unreachable!()
        };
        assert_ne!(written, wanted);
        assert_eq!(kernel.change(node, chosen).unwrap().modified, wanted);
    }
    kernel.end();
}

#[test]
fn append_only_file_takes_the_times_that_the_kernel_stores_alone() {
    let [a, b] = needs();
    require!(a, b);
    const SET_FLAGS: u32 = 0x4008_6602;
    const APPEND_WITH_EXTENTS: u32 = 0x8_0020;
    let kernel = Kernel::with(16, written_back());
    let (file, opened) = kernel.create(ROOT, "a", 0o644).unwrap();
    let node = file.node;
    let set_flags = |flags: u32| {
        let input = flags.to_ne_bytes();
        let (handle, room) = (opened.handle, 0);
        kernel
            .ioctl_on(node, handle, SET_FLAGS, &input, room)
            .unwrap();
    };
    kernel.change(node, flush(THEN, THEN)).unwrap();
    set_flags(APPEND_WITH_EXTENTS);
    let plus = |seconds| Timestamp {
        seconds: THEN.seconds + seconds,
        ..THEN
    };
    let future = plus(1 << 32);
    for (modified, result) in [
        (plus(-1), Err(Errno::PERM)),
        (future, Err(Errno::PERM)),
        (THEN, Ok(THEN)),
        (plus(1), Ok(plus(1))),
    ] {
        let changed = kernel.change(node, flush(modified, plus(2)));
        assert_eq!(changed.map(|after| after.modified), result);
    }
    // The kernel's own, from before a direct append.
    let append = OFlags::WRONLY | OFlags::APPEND;
    let handle = kernel.open(node, append).unwrap().handle;
    let write = Write {
        handle,
        offset: 0,
        data: b"appended",
        origin: WriteOrigin::Direct,
        privileges: Privileges::Keep,
        sync: None,
    };
    kernel
        .volume
        .write(&kernel.request(), node, &write)
        .unwrap();
    let after = kernel.change(node, flush(plus(1), plus(3))).unwrap();
    assert!(after.modified > plus(1));
    set_flags(0x8_0000);
    kernel.end();
}

#[test]
fn write_back_moves_times_only_where_the_kernel_does_not_store_them() {
    let [a, b] = needs();
    require!(a, b);
    for (options, moves) in [(written_back(), false), (VolumeOptions::default(), true)] {
        let kernel = Kernel::with(16, options);
        let (file, opened) = kernel.create(ROOT, "a", 0o644).unwrap();
        let handle = opened.handle;
        // Into a hole, over it, into unwritten space, and past the end within a block.
        kernel.fallocate(file.node, 8192, 8192).unwrap();
        kernel.change(file.node, flush(THEN, THEN)).unwrap();
        for (offset, data) in [
            (0, &[1; 4096][..]),
            (0, &[2; 512]),
            (8192, &[3; 4096]),
            (16_384, b"x"),
        ] {
            let write = Write {
                handle,
                offset,
                data,
                origin: WriteOrigin::Cache,
                privileges: Privileges::Keep,
                sync: None,
            };
            kernel
                .volume
                .write(&kernel.request(), file.node, &write)
                .unwrap();
            let after = kernel.attributes(file.node);
            let moved = (after.modified > THEN, after.changed > THEN);
            assert_eq!(moved, (moves, moves), "{offset}");
            kernel.change(file.node, flush(THEN, THEN)).unwrap();
        }
        assert_eq!(kernel.attributes(file.node).size, 16_385);
        kernel.end();
    }
}

#[test]
fn size_is_changed_within_the_limits_of_a_file() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, b"12345").unwrap();
    kernel.change(file.node, times(THEN)).unwrap();
    let resize = |size| AttributeChange {
        size: Some(size),
        ..AttributeChange::default()
    };
    for size in [5, 4, 10_000] {
        let after = kernel.change(file.node, resize(size)).unwrap();
        assert_eq!(after.size, size);
        assert!(after.modified > THEN && after.accessed == THEN);
    }
    let both = AttributeChange {
        size: Some(3),
        ..times(THEN)
    };
    let after = kernel.change(file.node, both).unwrap();
    assert_eq!((after.size, after.modified), (3, THEN));
    assert_eq!(kernel.change(ROOT, resize(0)), Err(Errno::ISDIR));
    let most = kernel.change(file.node, resize(1 << 50));
    assert_eq!(most, Err(Errno::FBIG));
    kernel.end();
}

#[test]
fn owner_change_takes_privileges_also_by_root() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let give = |uid| AttributeChange {
        uid: Some(uid),
        ..AttributeChange::default()
    };
    for (before, after) in [(0o6755, 0o755), (0o6745, 0o2745), (0o1777, 0o1777)] {
        let name = format!("{before:o}");
        let (file, _) = kernel.create(ROOT, &name, 0o644).unwrap();
        kernel.chmod(file.node, before);
        let changed = kernel.change(file.node, give(5)).unwrap();
        assert_eq!((changed.mode & 0o7777, changed.uid), (after, 5));
    }
    let directory = kernel.mkdir(ROOT, "d", 0o755).unwrap();
    kernel.chmod(directory.node, 0o6755);
    let changed = kernel.change(directory.node, give(5)).unwrap();
    assert_eq!(changed.mode & 0o7777, 0o6755);
    kernel.end();
}

#[test]
fn truncation_drops_privileges_on_request_of_the_kernel() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.user(1000, 1000);
    for (privileges, before, after) in [
        (Privileges::Keep, 0o6777, 0o6777),
        (Privileges::Drop, 0o6777, 0o777),
        // Not executable by the group, and the caller is not of it.
        (Privileges::Drop, 0o2767, 0o767),
    ] {
        kernel.chmod(file.node, before);
        let cut = AttributeChange {
            size: Some(0),
            privileges,
            ..AttributeChange::default()
        };
        assert_eq!(kernel.change(file.node, cut).unwrap().mode & 0o7777, after);
    }
    kernel.end();
}

#[test]
fn map_shows_the_image_root_as_the_builder() {
    let [a, b] = needs();
    require!(a, b);
    let options = VolumeOptions {
        owners: Owners {
            users: IdMap::root_as(1000),
            groups: IdMap::root_as(100),
        },
        ..VolumeOptions::default()
    };
    let mut kernel = Kernel::with(16, options);
    assert_eq!(kernel.attributes(ROOT).uid, 1000);
    kernel.user(1000, 100);
    let (file, _) = kernel.create(ROOT, "mine", 0o644).unwrap();
    assert_eq!((file.attributes.uid, file.attributes.gid), (1000, 100));
    let give = AttributeChange {
        uid: Some(5),
        gid: Some(0),
        ..AttributeChange::default()
    };
    let (other, _) = kernel.create(ROOT, "other", 0o644).unwrap();
    let shown = kernel.change(other.node, give).unwrap();
    assert_eq!((shown.uid, shown.gid), (5, 0));
    kernel.volume.destroy();
    drop(kernel.volume);
    let image = crate::image::open(&kernel.device);
    let root = image.root().unwrap();
    let owner = |name: &[u8]| {
        let attributes = root.lookup(name).unwrap().attributes();
        (attributes.uid, attributes.gid)
    };
    assert_eq!(owner(b"mine"), (0, 0));
    assert_eq!(owner(b"other"), (5, 100));
}

#[test]
fn reading_moves_the_time_of_access_as_the_options_say() {
    let [a, b] = needs();
    require!(a, b);
    for (access_times, moves) in [(AccessTimes::Relative, true), (AccessTimes::Never, false)] {
        let options = VolumeOptions {
            access_times,
            ..VolumeOptions::default()
        };
        let kernel = Kernel::with(16, options);
        let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
        kernel.write(file.node, 0, b"data").unwrap();
        let then = AttributeChange {
            accessed: Some(SetTime::To(THEN)),
            ..AttributeChange::default()
        };
        kernel.change(file.node, then).unwrap();
        kernel.read(file.node, 0, 4);
        assert_eq!(kernel.attributes(file.node).accessed > THEN, moves);
        kernel.change(ROOT, then).unwrap();
        kernel.names(ROOT);
        assert_eq!(kernel.attributes(ROOT).accessed > THEN, moves);
        kernel.end();
    }
}

#[test]
fn access_with_noatime_leaves_the_time_of_access() {
    let [a, b] = needs();
    require!(a, b);
    let options = VolumeOptions {
        access_times: AccessTimes::Strict,
        ..VolumeOptions::default()
    };
    let kernel = Kernel::with(16, options);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let (to, target) = kernel.create(ROOT, "b", 0o644).unwrap();
    kernel.write(file.node, 0, b"data").unwrap();
    for (flags, moves) in [(OFlags::empty(), true), (OFlags::NOATIME, false)] {
        let then = || {
            kernel.change(file.node, times(THEN)).unwrap();
            kernel.change(ROOT, times(THEN)).unwrap();
        };
        let moved = |node| kernel.attributes(node).accessed > THEN;
        then();
        kernel.read_with(file.node, 0, 4, flags);
        assert_eq!(moved(file.node), moves);
        let request = kernel.request();
        let directory = kernel.volume.open_directory(&request, ROOT, flags).unwrap();
        kernel.list(ROOT, directory.handle, 0, 10);
        kernel
            .volume
            .release_directory(&request, ROOT, directory.handle);
        assert_eq!(moved(ROOT), moves);
        then();
        let source = kernel.open(file.node, flags).unwrap();
        let place = |node, handle| FilePosition {
            node,
            handle,
            offset: 0,
        };
        let copy = Copy {
            from: place(file.node, source.handle),
            to: place(to.node, target.handle),
            length: 4,
        };
        assert_eq!(kernel.volume.copy(&request, &copy), Ok(4));
        assert_eq!(moved(file.node), moves);
    }
    kernel.end();
}

#[test]
fn statistics_are_those_of_the_engine() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let shown = kernel.volume.statistics(&kernel.request(), ROOT).unwrap();
    let engine = kernel.volume.filesystem().statistics();
    assert_eq!(shown.blocks, engine.blocks);
    assert!(shown.blocks_available < shown.blocks_free && shown.blocks_free < shown.blocks);
    assert_eq!(
        (shown.block_size, shown.name_length_max),
        (engine.block_bytes, 255)
    );
    assert_eq!(shown.files, u64::from(engine.inodes));
    kernel.end();
}
