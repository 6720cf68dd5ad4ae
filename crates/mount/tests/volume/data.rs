//! Data: reading, writing, privileges that writing takes, copying.

use extant_fuse::Operations;
use extant_fuse::operations::{
    Copy, DSYNC, FilePosition, Handle, OpenedFlags, Privileges, SyncScope, Write, WriteOrigin,
};
use extant_mount::volume::{NameDurability, Volume, VolumeOptions};
use extant_testkit::require;
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;

use crate::image::needs;
use crate::kernel::{Kernel, ROOT};

const IMMUTABLE: u32 = 0x10;
const APPEND: u32 = 0x20;
const SET_FLAGS: u32 = 0x4008_6602;
const EXTENTS: u32 = 0x8_0000;

fn set_flags(kernel: &Kernel, node: extant_fuse::operations::NodeId, flags: u32) {
    let (handle, flags) = (Handle(1), flags | EXTENTS);
    kernel
        .ioctl_on(node, handle, SET_FLAGS, &flags.to_ne_bytes(), 0)
        .unwrap();
}

#[test]
fn data_is_read_as_it_was_written() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    assert_eq!(kernel.write(file.node, 10_000, b"there").unwrap(), 5);
    assert_eq!(kernel.read(file.node, 9_998, 100), b"\0\0there");
    assert_eq!(kernel.read(file.node, 10_005, 100), b"");
    assert_eq!(kernel.write(ROOT, 0, b"x"), Err(Errno::ISDIR));
    let request = kernel.request();
    kernel
        .volume
        .sync(&request, file.node, Handle(1), SyncScope::Data)
        .unwrap();
    kernel
        .volume
        .sync_directory(&request, ROOT, Handle(0), SyncScope::All)
        .unwrap();
    kernel.end();
}

#[test]
fn open_with_truncation_cuts_and_takes_privileges() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, b"data").unwrap();
    kernel.chmod(file.node, 0o6777);
    kernel.user(1000, 1000);
    let opened = kernel.open(file.node, OFlags::WRONLY).unwrap();
    assert_eq!(opened.flags, OpenedFlags::KEEP_CACHE);
    assert_eq!(kernel.attributes(file.node).size, 4);
    kernel
        .open(file.node, OFlags::WRONLY | OFlags::TRUNC)
        .unwrap();
    let after = kernel.attributes(file.node);
    assert_eq!((after.size, after.mode & 0o7777), (0, 0o777));
    assert_eq!(kernel.open(ROOT, OFlags::RDONLY), Err(Errno::ISDIR));
    kernel.end();
}

#[test]
fn immutable_and_append_only_files_open_for_permitted_access() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.write(file.node, 0, b"first").unwrap();
    let open = |flags| kernel.open(file.node, flags).map(|_| ());
    let append = OFlags::WRONLY | OFlags::APPEND;
    set_flags(&kernel, file.node, IMMUTABLE);
    assert_eq!(open(OFlags::RDONLY), Ok(()));
    assert_eq!(open(OFlags::RDWR), Err(Errno::PERM));
    assert_eq!(open(append), Err(Errno::PERM));
    set_flags(&kernel, file.node, 0);
    set_flags(&kernel, file.node, APPEND);
    assert_eq!(open(OFlags::WRONLY), Err(Errno::PERM));
    assert_eq!(open(append | OFlags::TRUNC), Err(Errno::PERM));
    // Past the cache, which would write whole pages.
    let opened = kernel.open(file.node, append).unwrap();
    assert!(opened.flags.contains(OpenedFlags::DIRECT_IO));
    assert_eq!(kernel.write(file.node, 0, b"x"), Err(Errno::PERM));
    assert_eq!(kernel.write(file.node, 5, b" second"), Ok(7));
    assert_eq!(kernel.unlink(ROOT, "a"), Err(Errno::PERM));
    assert_eq!(kernel.read(file.node, 0, 100), b"first second");
    set_flags(&kernel, file.node, 0);
    kernel.end();
}

#[test]
fn file_of_a_read_only_volume_opens_to_read_alone() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.volume.destroy();
    let options = extant_ext4::Options {
        access: extant_ext4::Access::ReadOnly,
        ..extant_ext4::Options::default()
    };
    let filesystem = extant_ext4::Filesystem::open(kernel.device.clone(), options).unwrap();
    let volume = Volume::new(filesystem, VolumeOptions::default()).unwrap();
    let request = kernel.request();
    let file = volume.lookup(&request, ROOT, b"a").unwrap();
    let open = |flags| {
        let opened = volume.open(&request, file.node, flags, Privileges::Keep);
        opened.map(|_| ())
    };
    assert_eq!(open(OFlags::RDONLY), Ok(()));
    for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::TRUNC] {
        assert_eq!(open(flags), Err(Errno::ROFS));
    }
}

#[test]
fn write_drops_privileges_by_writer() {
    let [a, b] = needs();
    require!(a, b);
    let mut kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let mode = |kernel: &Kernel| kernel.attributes(file.node).mode & 0o7777;
    kernel.chmod(file.node, 0o6777);
    kernel.write(file.node, 0, b"root").unwrap();
    assert_eq!(mode(&kernel), 0o6777);
    // Data written back by the kernel was checked when it was written.
    let write = Write {
        handle: Handle(1),
        offset: 0,
        data: b"back",
        origin: WriteOrigin::Cache,
        privileges: Privileges::Drop,
        sync: None,
    };
    kernel
        .volume
        .write(&kernel.request(), file.node, &write)
        .unwrap();
    assert_eq!(mode(&kernel), 0o6777);
    kernel.user(1000, 1000);
    kernel.write(file.node, 0, b"user").unwrap();
    assert_eq!(mode(&kernel), 0o777);
    kernel.user(0, 0);
    kernel.end();
}

#[test]
fn capability_is_removed_by_any_write() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o755).unwrap();
    let name = b"security.capability";
    let give = || {
        let request = kernel.request();
        let (flags, keep) = (XattrFlags::empty(), Privileges::Keep);
        kernel
            .volume
            .set_xattr(&request, file.node, name, &[1; 20], flags, keep)
    };
    let get = || {
        let mut value = Vec::new();
        kernel
            .volume
            .xattr(&kernel.request(), file.node, name, &mut value)
    };
    for round in 0..2 {
        give().unwrap();
        assert_eq!(get(), Ok(()));
        kernel.write(file.node, 0, b"new").unwrap();
        assert_eq!(get(), Err(Errno::NODATA), "round {round}");
    }
    kernel.end();
}

#[test]
fn full_file_system_takes_a_part_of_an_append() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(8);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    let data = vec![7; 1 << 20];
    let mut at = 0;
    let last = loop {
        match kernel.write(file.node, at, &data) {
            Ok(written) if written == data.len() => at += written as u64,
            other => break other,
        }
        assert!(at < 8 << 20);
    };
    if let Ok(written) = last {
        at += written as u64;
        assert!(written > 0);
    }
    assert_eq!(kernel.attributes(file.node).size, at);
    assert_eq!(kernel.write(file.node, at, &data), Err(Errno::NOSPC));
    assert_eq!(kernel.attributes(file.node).size, at);
    kernel.end();
}

/// Takes all space but the last `left` bytes.
fn fill(kernel: &Kernel, left: u64) {
    let (file, _) = kernel.create(ROOT, "filler", 0o644).unwrap();
    let free = kernel.volume.filesystem().statistics().available_blocks * 4096;
    kernel.fallocate(file.node, 0, free - left).unwrap();
}

#[test]
fn full_file_system_fails_a_write_back_of_which_it_takes_a_part() {
    let [a, b] = needs();
    require!(a, b);
    for (origin, is_short) in [(WriteOrigin::Cache, false), (WriteOrigin::Direct, true)] {
        let kernel = Kernel::new(8);
        fill(&kernel, 512 << 10);
        let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
        let write = |offset, data: &[u8]| {
            let write = Write {
                handle: Handle(1),
                offset,
                data,
                origin,
                privileges: Privileges::Keep,
                sync: None,
            };
            kernel.volume.write(&kernel.request(), file.node, &write)
        };
        // The kernel may write back the end of a file first.
        assert_eq!(write(1 << 20, &[1; 4096]), Ok(4096));
        match write(0, &vec![7; 1 << 20]) {
            Ok(written) => {
                assert!(is_short && (1..1 << 20).contains(&written), "{written}");
                let last = kernel.read(file.node, written as u64 - 1, 2);
                assert_eq!(last, [7, 0]);
            }
            Err(errno) => assert!(!is_short && errno == Errno::NOSPC, "{origin:?}: {errno}"),
        }
        kernel.end();
    }
}

#[test]
fn copy_stops_at_the_end_of_the_source() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(32);
    let (from, _) = kernel.create(ROOT, "from", 0o644).unwrap();
    let (to, _) = kernel.create(ROOT, "to", 0o644).unwrap();
    let data: Vec<u8> = (0..3 << 20).map(|at| (at / 7) as u8).collect();
    kernel.write(from.node, 0, &data).unwrap();
    let place = |node, offset| FilePosition {
        node,
        handle: Handle(1),
        offset,
    };
    let copy = |offset, length| {
        let copy = Copy {
            from: place(from.node, offset),
            to: place(to.node, 5),
            length,
        };
        kernel.volume.copy(&kernel.request(), &copy)
    };
    assert_eq!(copy(11, 1 << 40), Ok(data.len() as u64 - 11));
    assert_eq!(kernel.read(to.node, 5, data.len()), data[11..]);
    assert_eq!(copy(data.len() as u64, 10), Ok(0));
    kernel.end();
}

#[test]
fn copy_that_finds_no_space_returns_the_part_that_the_file_has() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(8);
    let (from, _) = kernel.create(ROOT, "from", 0o644).unwrap();
    kernel.write(from.node, 0, &vec![7; 1 << 20]).unwrap();
    fill(&kernel, 512 << 10);
    let (to, _) = kernel.create(ROOT, "to", 0o644).unwrap();
    let place = |node| FilePosition {
        node,
        handle: Handle(1),
        offset: 0,
    };
    let copy = Copy {
        from: place(from.node),
        to: place(to.node),
        length: 1 << 20,
    };
    let copied = kernel.volume.copy(&kernel.request(), &copy).unwrap();
    assert!((1..1 << 20).contains(&copied), "{copied}");
    assert_eq!(kernel.attributes(to.node).size, copied);
    kernel.end();
}

/// File system after a power cut now.
fn after_a_cut(kernel: &Kernel) -> extant_ext4::Filesystem {
    crate::image::open(&std::sync::Arc::new(kernel.device.snapshot()))
}

#[test]
fn names_are_durable_at_once_where_that_is_wanted() {
    let [a, b] = needs();
    require!(a, b);
    let dirsync = 0x1_0000;
    for names in [NameDurability::Later, NameDurability::AtOnce] {
        let options = VolumeOptions {
            names,
            ..VolumeOptions::default()
        };
        let kernel = Kernel::with(16, options);
        kernel.mkdir(ROOT, "plain", 0o755).unwrap();
        let is_there = |name: &[u8]| {
            let found = after_a_cut(&kernel).resolve(name, extant_ext4::FollowLast::No);
            found.is_ok()
        };
        let at_once = names == NameDurability::AtOnce;
        assert_eq!(is_there(b"plain"), at_once);
        let flagged = kernel.mkdir(ROOT, "flagged", 0o755).unwrap();
        set_flags(&kernel, flagged.node, dirsync);
        kernel.create(flagged.node, "f", 0o644).unwrap();
        assert!(is_there(b"flagged/f"));
        kernel.unlink(flagged.node, "f").unwrap();
        assert!(!is_there(b"flagged/f"));
        kernel.end();
    }
}

#[test]
fn direct_write_with_dsync_by_descriptor_or_call_is_durable_at_once() {
    let [a, b] = needs();
    require!(a, b);
    let kernel = Kernel::new(16);
    let (file, _) = kernel.create(ROOT, "a", 0o644).unwrap();
    kernel.volume.sync_all(&kernel.request()).unwrap();
    let flags = OFlags::WRONLY | OFlags::DIRECT;
    for (flags, sync, size) in [
        (flags, None, 0),
        (flags | DSYNC, None, 8192),
        (flags, None, 8192),
        (flags, Some(SyncScope::Data), 16_384),
        (flags, None, 16_384),
        (flags, Some(SyncScope::All), 24_576),
    ] {
        let opened = kernel.open(file.node, flags).unwrap();
        assert!(
            opened
                .flags
                .contains(OpenedFlags::DIRECT_IO | OpenedFlags::PARALLEL_DIRECT_WRITES)
        );
        let write = Write {
            handle: opened.handle,
            offset: kernel.attributes(file.node).size,
            data: &[5; 4096],
            origin: WriteOrigin::Direct,
            privileges: Privileges::Keep,
            sync,
        };
        kernel
            .volume
            .write(&kernel.request(), file.node, &write)
            .unwrap();
        let found = after_a_cut(&kernel)
            .resolve(b"a", extant_ext4::FollowLast::No)
            .unwrap();
        assert_eq!(found.attributes().size_bytes, size);
    }
    kernel.end();
}
