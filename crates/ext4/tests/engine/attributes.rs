//! Attributes of inodes, and extended ones; the kernel reads attributes written here, and the
//! reverse.

use std::fs;
use std::os::unix::fs::MetadataExt;

use extant_blockdev::{HostDevice, HostOptions};
use extant_ext4::{
    AttributeChange, Filesystem, FollowLast, InodeFlags, Options, Timestamp, XattrMode,
};
use extant_space::{ErrorKind, SpaceFile};
use extant_testkit::command::{run, text, tool};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{FORMATS, Image, create, mkdir};

#[test]
fn attributes_are_changed_and_immutable_files_are_not() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let file = create(&root, "file");
    let modified = Timestamp {
        seconds: 3_000_000_000,
        nanoseconds: 123_456_789,
    };
    let change = AttributeChange {
        permissions: Some(0o4711),
        uid: Some(70_000),
        gid: Some(80_000),
        modified: Some(modified),
        flags: Some(InodeFlags::IMMUTABLE | InodeFlags::EXTENTS),
        ..AttributeChange::default()
    };
    file.set_attributes(&change).unwrap();
    let is = file.attributes();
    assert_eq!((is.permissions, is.uid, is.gid), (0o4711, 70_000, 80_000));
    assert_eq!(is.modified, modified);
    assert!(
        is.flags
            .contains(InodeFlags::IMMUTABLE | InodeFlags::EXTENTS)
    );
    let again = AttributeChange {
        uid: Some(0),
        ..AttributeChange::default()
    };
    let kind = |result: extant_space::Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(file.set_attributes(&again)), ErrorKind::Immutable);
    assert_eq!(kind(root.unlink(b"file")), ErrorKind::Immutable);
    assert_eq!(kind(root.link(b"x", &file)), ErrorKind::Immutable);
    let free = AttributeChange {
        flags: Some(InodeFlags::empty()),
        ..again
    };
    file.set_attributes(&free).unwrap();
    assert_eq!(file.attributes().uid, 0);
    root.unlink(b"file").unwrap();
    drop((file, root));
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn extended_attributes_go_into_the_inode_then_the_block_and_out_again() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in FORMATS {
        let image = Image::new(format, 32);
        let fs = image.open();
        let root = fs.root().unwrap();
        let free = fs.statistics().free_blocks;
        let file = create(&root, "file");
        let set = |name: &str, bytes: usize, mode| {
            file.set_xattr(name.as_bytes(), &vec![b'v'; bytes], mode)
        };
        let kind = |result: extant_space::Result<()>| result.unwrap_err().kind();
        set("user.small", 5, XattrMode::Create).unwrap();
        set("user.large", 600, XattrMode::Set).unwrap();
        set("trusted.other", 100, XattrMode::Set).unwrap();
        assert_eq!(
            kind(set("user.small", 1, XattrMode::Create)),
            ErrorKind::AlreadyExists
        );
        assert_eq!(
            kind(set("user.none", 1, XattrMode::Replace)),
            ErrorKind::NoAttribute
        );
        assert_eq!(
            kind(set("user.huge", 8000, XattrMode::Set)),
            ErrorKind::NoSpace
        );
        assert_eq!(
            kind(set("nonsense", 1, XattrMode::Set)),
            ErrorKind::Unsupported
        );
        assert_eq!(
            kind(set("user.x", 65_537, XattrMode::Set)),
            ErrorKind::TooLarge
        );
        let mut names = file.xattr_names().unwrap();
        names.sort();
        assert_eq!(
            names,
            [
                b"trusted.other".to_vec(),
                b"user.large".into(),
                b"user.small".into()
            ]
        );
        set("user.large", 700, XattrMode::Replace).unwrap();
        assert_eq!(file.xattr(b"user.large").unwrap(), vec![b'v'; 700]);
        fs.sync().unwrap();
        for name in names {
            file.remove_xattr(&name).unwrap();
            assert_eq!(
                file.xattr(&name).unwrap_err().kind(),
                ErrorKind::NoAttribute
            );
        }
        set("user.again", 700, XattrMode::Set).unwrap();
        root.unlink(b"file").unwrap();
        drop(file);
        fs.sync().unwrap();
        assert_eq!(fs.statistics().free_blocks, free, "{format}");
        drop(root);
        fs.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn attributes_of_ours_are_the_kernels_and_shared_blocks_stay_whole() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("getfattr"),
        requires::tool("setfacl")
    );
    let work = Workdir::new();
    let path = work.path().join("image");
    fs::write(&path, Image::new("-t ext4", 32).bytes()).unwrap();
    let mounted = |change: &dyn Fn(&std::path::Path)| {
        let device = LoopDevice::attach(&path);
        let place = work.directory("mounted");
        let mount = Mount::new("ext4", device.path(), &place, "acl,user_xattr");
        change(&place);
        mount.unmount();
        fs::remove_dir(&place).unwrap();
    };
    let open = || {
        let device = HostDevice::open(&path, &HostOptions::default()).unwrap();
        Filesystem::open(std::sync::Arc::new(device), Options::default()).unwrap()
    };
    mounted(&|place| {
        for name in ["one", "two", "three"] {
            let file = place.join(name);
            fs::write(&file, name).unwrap();
            let value = "s".repeat(900);
            run(tool("setfattr")
                .args(["-n", "user.shared", "-v", &value])
                .arg(&file))
            .unwrap();
        }
        run(tool("setfacl")
            .args(["-m", "u:1234:rw,g:55:r"])
            .arg(place.join("one")))
        .unwrap();
    });
    let list;
    {
        let fs = open();
        let find = |name: &str| fs.resolve(name.as_bytes(), FollowLast::Yes).unwrap();
        let one = find("one");
        list = one.xattr(b"system.posix_acl_access").unwrap();
        let two = find("two");
        two.set_xattr(b"system.posix_acl_access", &list, XattrMode::Set)
            .unwrap();
        assert_eq!(
            two.attributes().permissions & 0o777,
            one.attributes().permissions & 0o777
        );
        two.set_xattr(b"user.shared", b"changed", XattrMode::Set)
            .unwrap();
        assert_eq!(one.xattr(b"user.shared").unwrap(), vec![b's'; 900]);
        fs.root().unwrap().unlink(b"three").unwrap();
        let dir = mkdir(&fs.root().unwrap(), "dir");
        dir.set_xattr(b"user.d", &[0, 1, 2], XattrMode::Set)
            .unwrap();
        let nonsense = two.set_xattr(b"system.posix_acl_access", &list[..9], XattrMode::Set);
        assert_eq!(nonsense.unwrap_err().kind(), ErrorKind::InvalidArgument);
        drop((one, two, dir));
        fs.close().unwrap();
    }
    mounted(&|place| {
        let acl = |name: &str| {
            let mut command = tool("getfacl");
            text(command.args(["-cEn"]).arg(place.join(name))).unwrap()
        };
        assert_eq!(acl("one"), acl("two"));
        assert!(acl("two").contains("user:1234:rw-"), "{}", acl("two"));
        let mut command = tool("getfattr");
        let values = text(
            command
                .args(["-d", "--absolute-names"])
                .args(["one", "two"].map(|name| place.join(name))),
        )
        .unwrap();
        assert!(values.contains("user.shared=\"changed\""), "{values}");
        assert!(values.contains(&"s".repeat(900)));
        assert_eq!(
            fs::metadata(place.join("two")).unwrap().mode() & 0o777,
            0o664
        );
    });
    let image = Image::from_bytes(&fs::read(&path).unwrap());
    image.assert_clean();
}

/// Fields of the superblock, as little-endian numbers.
fn field(image: &Image, offset: usize, bytes: usize) -> u64 {
    let field = &image.bytes()[1024 + offset..][..bytes];
    let number = |number, byte: &u8| number << 8 | u64::from(*byte);
    field.iter().rev().fold(0, number)
}

#[test]
fn first_attribute_sets_ext_attr_and_makes_revision_0_dynamic() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    const EXT_ATTR: u64 = 8;
    for format in [
        "-t ext4 -O ^ext_attr -I 128",
        "-t ext4 -O ^ext_attr -I 256",
        "-t ext2 -O ^ext_attr -I 128",
        "-t ext2 -r 0",
    ] {
        let image = Image::new(format, 16);
        assert_eq!(field(&image, 0x5C, 4) & EXT_ATTR, 0, "{format}");
        let fs = image.open();
        let file = create(&fs.root().unwrap(), "file");
        fs.sync().unwrap();
        assert_eq!(field(&image, 0x5C, 4) & EXT_ATTR, 0, "{format}");
        file.set_xattr(b"user.a", b"value", XattrMode::Set).unwrap();
        drop(file);
        fs.close().unwrap();
        assert_eq!(field(&image, 0x5C, 4) & EXT_ATTR, EXT_ATTR, "{format}");
        let (revision, first, bytes) = (
            field(&image, 0x4C, 4),
            field(&image, 0x54, 4),
            field(&image, 0x58, 2),
        );
        assert_eq!((revision, first), (1, 11), "{format}");
        assert!([128, 256].contains(&bytes), "{format}");
        image.assert_clean();
        let file = image.open().root().unwrap().lookup(b"file").unwrap();
        assert_eq!(file.xattr(b"user.a").unwrap(), b"value", "{format}");
    }
}

#[test]
fn first_file_of_2_gib_makes_revision_0_dynamic() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext2 -r 0", 16);
    let fs = image.open();
    let file = create(&fs.root().unwrap(), "file").file().unwrap();
    file.resize(3 << 30).unwrap();
    drop(file);
    fs.close().unwrap();
    assert_eq!(field(&image, 0x4C, 4), 1);
    image.assert_clean();
}
