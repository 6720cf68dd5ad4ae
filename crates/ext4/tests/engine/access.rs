//! Permissions of new nodes, append-only files, privileges, and access times.

use std::fs;
use std::os::unix::fs::MetadataExt;

use extant_ext4::{
    Access, AccessTime, AttributeChange, DeviceNumber, FileType, InodeFlags, NewKind, NewNode,
    Node, Options, RenameMode, Times, Timestamp, XattrMode,
};
use extant_space::{ByteRange, ErrorKind, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::command::{text, tool};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{Image, create, mkdir, new};

const DEFAULT: &[u8] = b"system.posix_acl_default";
const ACCESS: &[u8] = b"system.posix_acl_access";
const LONG_AGO: Timestamp = Timestamp {
    seconds: 1_000_000_000,
    nanoseconds: 5,
};

/// A list as programs give it: tag, permissions, user or group.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

const NOBODY: u32 = u32::MAX;

/// Owner rwx, user 1234 rwx, group r-x, mask rwx, others r-x.
fn default_list() -> Vec<u8> {
    list(&[
        (1, 7, NOBODY),
        (2, 7, 1234),
        (4, 5, NOBODY),
        (16, 7, NOBODY),
        (32, 5, NOBODY),
    ])
}

fn of(kind: NewKind<'_>, permissions: u16, umask: u16) -> NewNode<'_> {
    NewNode {
        permissions,
        umask,
        ..new(kind)
    }
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: extant_space::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Immutable);
}

fn set_flags(node: &Node, flags: InodeFlags) {
    node.set_attributes(&AttributeChange {
        flags: Some(flags),
        ..AttributeChange::default()
    })
    .unwrap();
}

#[test]
fn new_files_lose_the_umask_or_inherit_the_default_list() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("getfacl")
    );
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let make = |directory: &Node, name: &str, new: &NewNode<'_>| {
        directory.create(name.as_bytes(), new).unwrap()
    };
    let permissions = |node: &Node| node.attributes().permissions;
    let plain = make(&root, "plain", &of(NewKind::Regular, 0o4666, 0o7027));
    assert_eq!(permissions(&plain), 0o4640);
    let link = NewKind::SymbolicLink(b"x");
    assert_eq!(
        permissions(&make(&root, "link", &of(link, 0o777, 0o777))),
        0o777
    );
    let passing = root
        .create_unnamed(&of(NewKind::Regular, 0o666, 0o022))
        .unwrap();
    assert_eq!(permissions(&passing), 0o644);
    drop(passing);

    let above = mkdir(&root, "above");
    above
        .set_xattr(DEFAULT, &default_list(), XattrMode::Set)
        .unwrap();
    let file = make(&above, "file", &of(NewKind::Regular, 0o660, 0o777));
    assert_eq!(permissions(&file), 0o660);
    let limited = list(&[
        (1, 6, NOBODY),
        (2, 7, 1234),
        (4, 5, NOBODY),
        (16, 6, NOBODY),
        (32, 0, NOBODY),
    ]);
    assert_eq!(file.xattr(ACCESS).unwrap(), limited);
    assert_eq!(
        file.xattr(DEFAULT).unwrap_err().kind(),
        ErrorKind::NoAttribute
    );
    let inside = make(&above, "inside", &of(NewKind::Directory, 0o755, 0o777));
    assert_eq!(inside.xattr(DEFAULT).unwrap(), default_list());
    assert_eq!(permissions(&inside), 0o755);
    let unnamed = above
        .create_unnamed(&of(NewKind::Regular, 0o600, 0o777))
        .unwrap();
    assert_eq!(permissions(&unnamed), 0o600);
    inside.link(b"linked", &unnamed).unwrap();
    let pipe = make(&inside, "pipe", &of(NewKind::Fifo, 0o622, 0));
    assert_eq!(permissions(&pipe), 0o620);
    let link = make(&above, "link", &of(link, 0o777, 0o777));
    assert!(link.xattr_names().unwrap().is_empty());
    // An access control list equivalent to the mode is not stored.
    let minimal = list(&[(1, 7, NOBODY), (4, 5, NOBODY), (32, 4, NOBODY)]);
    let other = mkdir(&root, "other");
    other.set_xattr(DEFAULT, &minimal, XattrMode::Set).unwrap();
    let file = make(&other, "file", &of(NewKind::Regular, 0o666, 0o777));
    assert_eq!(permissions(&file), 0o644);
    assert!(file.xattr_names().unwrap().is_empty());
    drop((plain, unnamed, above, inside, pipe, link, other, file, root));
    fs.close().unwrap();
    image.assert_clean();

    // The kernel creates the same next to them.
    let work = Workdir::new();
    let path = work.path().join("image");
    fs::write(&path, image.bytes()).unwrap();
    let device = LoopDevice::attach(&path);
    let place = work.directory("mounted");
    let mount = Mount::new("ext4", device.path(), &place, "acl");
    let above = place.join("above");
    let file = rustix::fs::open(
        above.join("theirs"),
        rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY,
        rustix::fs::Mode::from_raw_mode(0o660),
    );
    drop(file.unwrap());
    rustix::fs::mkdir(
        above.join("their-inside"),
        rustix::fs::Mode::from_raw_mode(0o755),
    )
    .unwrap();
    for (ours, theirs) in [("file", "theirs"), ("inside", "their-inside")] {
        let acl = |name: &str| text(tool("getfacl").args(["-cEn"]).arg(above.join(name))).unwrap();
        assert_eq!(acl(ours), acl(theirs));
        let mode = |name: &str| fs::metadata(above.join(name)).unwrap().mode();
        assert_eq!(mode(ours), mode(theirs));
    }
    mount.unmount();
}

#[test]
fn inherited_lists_go_into_a_block_where_the_inode_has_no_room() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4 -I 128", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let free = fs.statistics().free_blocks;
    root.set_xattr(DEFAULT, &default_list(), XattrMode::Set)
        .unwrap();
    let directory = mkdir(&root, "directory");
    let file = create(&directory, "file");
    assert_eq!(directory.xattr(DEFAULT).unwrap(), default_list());
    assert_eq!(
        file.attributes().allocated_bytes,
        u64::from(fs.block_bytes())
    );
    fs.sync().unwrap();
    directory.unlink(b"file").unwrap();
    drop((file, directory));
    root.remove_directory(b"directory").unwrap();
    root.remove_xattr(DEFAULT).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statistics().free_blocks, free);
    drop(root);
    fs.close().unwrap();
    image.assert_clean();
}

/// Changes of attributes of an append-only file, which it is again in the end.
fn assert_rules_of_attributes(node: &Node) {
    let (append, immutable) = (InodeFlags::APPEND, InodeFlags::IMMUTABLE);
    let plain = AttributeChange::default();
    let flags = |flags| AttributeChange {
        flags: Some(flags),
        ..plain
    };
    let touched = AttributeChange {
        accessed: Some(LONG_AGO),
        modified: Some(LONG_AGO),
        times: Times::Present,
        ..plain
    };
    let never = [
        AttributeChange {
            permissions: Some(0o600),
            ..plain
        },
        AttributeChange {
            uid: Some(1),
            ..plain
        },
        AttributeChange {
            gid: Some(1),
            ..plain
        },
        AttributeChange {
            times: Times::Chosen,
            ..touched
        },
    ];
    never
        .iter()
        .for_each(|change| assert_refused(node.set_attributes(change)));
    node.set_attributes(&touched).unwrap();
    assert_eq!(node.attributes().modified, LONG_AGO);
    set_flags(node, append | InodeFlags::SYNC);
    set_flags(node, append | immutable);
    never
        .iter()
        .chain([
            &touched,
            &flags(immutable),
            &flags(append | immutable | InodeFlags::NODUMP),
        ])
        .for_each(|change| assert_refused(node.set_attributes(change)));
    set_flags(node, append | immutable);
    set_flags(node, append);
}

#[test]
fn append_only_file_grows_at_its_end_and_does_nothing_else() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let node = create(&root, "log");
    let file = node.file().unwrap();
    file.write_at(&[1; 8192], 0).unwrap();
    set_flags(&node, InodeFlags::APPEND);
    // In whole blocks, written and unwritten.
    assert_refused(file.write_at(&[2; 4096], 0));
    assert_refused(file.write_at(&[2; 10], 5));
    assert_refused(file.write_at(&[2; 10], 8191));
    assert_refused(file.resize(0));
    assert_refused(file.resize(10_000));
    for mode in FallocateMode::ALL {
        let result = file.fallocate(mode, ByteRange::new(0, 4096));
        match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => result.unwrap(),
            _ => assert_refused(result),
        }
    }
    file.write_at(&[3; 100], 8192).unwrap();
    file.fallocate(
        FallocateMode::AllocateKeepSize,
        ByteRange::new(8192, 40_960),
    )
    .unwrap();
    file.write_at(&[4; 5000], 8292).unwrap();
    assert_eq!(file.size().unwrap(), 13_292);
    assert_rules_of_attributes(&node);
    assert_refused(root.unlink(b"log"));
    assert_refused(root.rename(b"log", &root, b"other", RenameMode::Replace));
    assert_refused(root.link(b"other", &node));

    let directory = mkdir(&root, "directory");
    let kept = create(&directory, "kept");
    set_flags(&directory, InodeFlags::APPEND);
    create(&directory, "new");
    directory.link(b"linked", &kept).unwrap();
    let free = create(&root, "free");
    root.rename(b"free", &directory, b"moved", RenameMode::NoReplace)
        .unwrap();
    assert_refused(directory.unlink(b"new"));
    assert_refused(directory.rename(b"new", &root, b"out", RenameMode::Replace));
    create(&root, "another");
    assert_refused(root.rename(b"another", &directory, b"new", RenameMode::Replace));
    assert_refused(root.rename(b"another", &directory, b"new", RenameMode::Exchange));
    assert_refused(root.remove_directory(b"directory"));
    set_flags(&directory, InodeFlags::empty());
    set_flags(&directory, InodeFlags::IMMUTABLE);
    assert_refused(directory.create(b"more", &new(NewKind::Regular)));
    drop((file, node, directory, kept, free, root));
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn privileges_are_dropped_once_and_then_nothing_is_changed() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let file = create(&root, "program");
    let change = |permissions| {
        let change = AttributeChange {
            permissions: Some(permissions),
            changed: Some(LONG_AGO),
            ..AttributeChange::default()
        };
        file.set_attributes(&change).unwrap();
    };
    let permissions = || file.attributes().permissions;
    change(0o6755);
    file.drop_privileges().unwrap();
    assert_eq!(permissions(), 0o755);
    assert_ne!(file.attributes().changed, LONG_AGO);
    // Without execution by the group, the bit means something else.
    change(0o6745);
    file.drop_privileges().unwrap();
    assert_eq!(permissions(), 0o2745);
    change(0o2745);
    file.drop_privileges().unwrap();
    assert_eq!(file.attributes().changed, LONG_AGO);
    let capability = b"security.capability";
    file.set_xattr(capability, &[1; 20], XattrMode::Set)
        .unwrap();
    file.set_xattr(b"user.other", b"stays", XattrMode::Set)
        .unwrap();
    file.drop_privileges().unwrap();
    assert_eq!(file.xattr_names().unwrap(), [b"user.other".to_vec()]);
    change(0o2745);
    file.drop_privileges().unwrap();
    assert_eq!(file.attributes().changed, LONG_AGO);
    change(0o4755);
    set_flags(&file, InodeFlags::IMMUTABLE);
    assert_refused(file.drop_privileges());
    let directory = mkdir(&root, "directory");
    let sticky = AttributeChange {
        permissions: Some(0o6777),
        ..AttributeChange::default()
    };
    directory.set_attributes(&sticky).unwrap();
    directory.drop_privileges().unwrap();
    assert_eq!(directory.attributes().permissions, 0o6777);
}

#[test]
fn access_time_moves_by_its_policy_and_lasts_from_the_last_close_on() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let node = create(&root, "file");
    let at = |seconds| {
        Some(Timestamp {
            seconds,
            nanoseconds: 0,
        })
    };
    let now = node.attributes().created.unwrap().seconds;
    let moves = |accessed, modified, changed, policy| {
        let change = AttributeChange {
            accessed: at(accessed),
            modified: at(modified),
            changed: at(changed),
            ..AttributeChange::default()
        };
        node.set_attributes(&change).unwrap();
        node.touch_accessed(policy);
        Some(node.attributes().accessed) != at(accessed)
    };
    let relative = AccessTime::Relative;
    assert!(!moves(now - 10, now - 20, now - 20, relative));
    assert!(moves(now - 10, now - 10, now - 20, relative));
    assert!(moves(now - 10, now - 20, now - 5, relative));
    assert!(moves(now - 86_401, now - 90_000, now - 90_000, relative));
    assert!(moves(now - 10, now - 20, now - 20, AccessTime::Strict));
    assert!(!moves(now - 10, now, now, AccessTime::Never));
    set_flags(&node, InodeFlags::NOATIME);
    assert!(!moves(now - 10, now, now, AccessTime::Strict));
    set_flags(&node, InodeFlags::empty());
    assert!(!moves(now - 10, now, now, AccessTime::Never));
    fs.sync().unwrap();
    node.touch_accessed(relative);
    let accessed = node.attributes().accessed;
    node.sync(SyncMode::All).unwrap();
    let there = || {
        let options = Options {
            access: Access::ReadOnly,
            ..Options::default()
        };
        let fs = image.open_with(options);
        let node = fs.root().unwrap().lookup(b"file").unwrap();
        node.touch_accessed(AccessTime::Strict);
        node.attributes().accessed
    };
    // Nothing is committed for it alone, as long as the file is in use.
    assert_eq!(Some(there()), at(now - 10));
    let other = node.clone();
    drop(node);
    fs.sync().unwrap();
    assert_eq!(Some(there()), at(now - 10));
    drop(other);
    fs.sync().unwrap();
    assert_eq!(there(), accessed);
    drop(root);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn whiteout_replaces_the_moved_name() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let whiteout = RenameMode::Whiteout { uid: 7, gid: 8 };
    let (from, to) = (mkdir(&root, "from"), mkdir(&root, "to"));
    let moved = create(&from, "moved").number();
    create(&to, "moved");
    let inner = mkdir(&from, "directory").number();
    from.rename(b"moved", &to, b"moved", whiteout).unwrap();
    from.rename(b"directory", &to, b"directory", whiteout)
        .unwrap();
    to.rename(b"directory", &to, b"again", whiteout).unwrap();
    assert_eq!(to.lookup(b"moved").unwrap().number(), moved);
    assert_eq!(to.lookup(b"again").unwrap().number(), inner);
    for (directory, name) in [(&from, "moved"), (&from, "directory"), (&to, "directory")] {
        let left = directory.lookup(name.as_bytes()).unwrap().attributes();
        assert_eq!(left.file_type, FileType::CharacterDevice);
        assert_eq!(left.device, Some(DeviceNumber { major: 0, minor: 0 }));
        assert_eq!((left.permissions, left.links), (0, 1));
        assert_eq!((left.uid, left.gid), (7, 8));
    }
    assert_eq!(from.attributes().links, 2);
    assert_eq!(to.attributes().links, 3);
    // Both names of one file: nothing happens, as in the kernel.
    let both = create(&from, "both");
    from.link(b"second", &both).unwrap();
    from.rename(b"both", &from, b"second", whiteout).unwrap();
    assert_eq!(from.lookup(b"both").unwrap().number(), both.number());
    let none = from.rename(b"none", &to, b"x", whiteout);
    assert_eq!(none.unwrap_err().kind(), ErrorKind::NotFound);
    drop((from, to, both, root));
    fs.close().unwrap();
    image.assert_clean();
}
