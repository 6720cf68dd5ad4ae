//! Opening: features, access, errors that are noted.

use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ext4::{Access, Filesystem, NewKind, OnError, Options, Replay, Shutdown};
use extant_space::{ByteRange, ErrorKind, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::image::{Image, create, mkdir};

const READ_ONLY: Access = Access::ReadOnly;

fn open(image: &Image, access: Access) -> extant_space::Result<Filesystem> {
    let options = Options {
        access,
        ..Options::default()
    };
    Filesystem::open(image.device.clone(), options)
}

#[test]
fn features_that_are_not_offered_are_refused_by_name() {
    require!(requires::tool("mke2fs"));
    for (features, name) in [
        ("bigalloc -C 65536", "bigalloc"),
        ("inline_data", "inline_data"),
        ("mmp", "mmp"),
        ("ea_inode", "ea_inode"),
        ("quota", "quota"),
        ("quota,project", "project, quota"),
    ] {
        let image = Image::new(&format!("-t ext4 -O {features}"), 64);
        let error = open(&image, Access::ReadWrite).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{features}: {error}");
        let text = error.to_string();
        let is_named = name.split(", ").all(|name| text.contains(name));
        assert!(is_named && text.contains("read-only"), "{text}");
        // bigalloc differs in free-space accounting only; the format decides.
        if name != "bigalloc" {
            let fs = open(&image, READ_ONLY).unwrap();
            fs.root().unwrap().lookup(b"lost+found").unwrap();
        }
    }
}

#[test]
fn files_that_use_features_which_are_not_offered_are_refused_one_by_one() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let image = Image::new("-t ext4 -b 1024 -O casefold,encrypt,verity", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    for name in ["sealed", "secret"] {
        let file = create(&root, name).file().unwrap();
        file.write_at(&[7; 3000], 0).unwrap();
    }
    drop((mkdir(&root, "directory"), root));
    fs.close().unwrap();
    let image = image.set_fields(&[
        ("/sealed", "flags", 0x18_0000),
        ("/secret", "flags", 0x8_0800),
        ("/directory", "flags", 0x4008_0000),
    ]);
    let fs = image.open();
    let root = fs.root().unwrap();
    let kind = |error: extant_space::Error| error.kind();
    let sealed = root.lookup(b"sealed").unwrap().file().unwrap();
    let mut bytes = [0; 3000];
    sealed.read_at(&mut bytes, 0).unwrap();
    assert!(bytes == [7; 3000]);
    for refused in [
        sealed.write_at(b"x", 0),
        sealed.write_at(&[1; 1024], 0),
        sealed.write_at(b"x", 3000),
        sealed.resize(0),
        sealed.fallocate(FallocateMode::PunchHole, ByteRange::new(0, 1024)),
    ] {
        assert_eq!(refused.map_err(kind), Err(ErrorKind::Immutable));
    }
    let change = extant_ext4::AttributeChange {
        permissions: Some(0o600),
        ..Default::default()
    };
    sealed.node().set_attributes(&change).unwrap();

    let secret = root.lookup(b"secret").unwrap().file().unwrap();
    let refused = secret.read_at(&mut bytes, 0).unwrap_err();
    assert!(refused.to_string().contains("encrypt"), "{refused}");
    for refused in [
        Err(refused),
        secret.write_at(b"x", 0),
        secret.write_at(&[1; 1024], 0),
        secret.resize(0),
    ] {
        assert_eq!(refused.map_err(kind), Err(ErrorKind::Unsupported));
    }

    let directory = root.lookup(b"directory").unwrap();
    let refused = directory.lookup(b"file").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.to_string().contains("casefold"), "{refused}");
    let new = crate::image::new(extant_ext4::NewKind::Regular);
    let refused = directory.create(b"file", &new).map_err(kind);
    assert_eq!(refused.err(), Some(ErrorKind::Unsupported));
    let refused = directory.create_unnamed(&new).map_err(kind);
    assert_eq!(refused.err(), Some(ErrorKind::Unsupported));
    drop((sealed, secret, directory));
    // Their contents do not matter to other files.
    root.unlink(b"sealed").unwrap();
    root.unlink(b"secret").unwrap();
    drop((create(&root, "other"), root));
    fs.close().unwrap();
    image.assert_clean();
}

/// A file system with a closed file of `bytes` and a short symbolic link, and the number of the
/// file; the link has the next.
fn with_file_and_link(format: &str, bytes: &[u8]) -> (Image, u32) {
    let image = Image::new(format, 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let node = create(&root, "file");
    node.file().unwrap().write_at(bytes, 0).unwrap();
    let number = node.number().0;
    // As a block map, its second block would be number 0x320.
    let link = NewKind::SymbolicLink(b"link\x20\x03");
    drop((node, root.create(b"link", &crate::image::new(link)), root));
    fs.close().unwrap();
    (image, number)
}

#[test]
fn orphan_that_is_encrypted_keeps_the_whole_last_block() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let cipher: Vec<u8> = (0..12_288).map(|at| (at % 251) as u8 | 1).collect();
    let format = "-t ext4 -b 4096 -O encrypt,^orphan_file";
    let (image, number) = with_file_and_link(format, &cipher);
    let image = image.debugfs(&format!(
        "sif /file flags 0x80800\nsif /file size 5000\nssv last_orphan {number}\n"
    ));
    image.open().close().unwrap();
    let image = image.set_fields(&[("/file", "flags", 0x8_0000), ("/file", "size", 8192)]);
    let fs = image.open_with(Options {
        access: READ_ONLY,
        ..Options::default()
    });
    assert_eq!(fs.superblock().last_orphan(), None);
    let file = fs.root().unwrap().lookup(b"file").unwrap();
    assert_eq!(file.attributes().allocated_bytes, 8192);
    let mut bytes = vec![0; 8192];
    file.file().unwrap().read_at(&mut bytes, 0).unwrap();
    assert!(bytes == cipher[..8192], "the last block has changed");
}

#[test]
fn size_past_the_last_block_is_refused_for_one_file_and_as_an_orphan() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    for (format, most) in [
        ("-t ext4 -b 4096 -O ^orphan_file", ((1u64 << 32) - 1) << 12),
        (
            "-t ext4 -b 1024 -O ^orphan_file,large_dir,^huge_file",
            ((1u64 << 32) - 1) << 10,
        ),
        (
            "-t ext3 -b 1024",
            (12 + 256 + 256 * 256 + 256 * 256 * 256) << 10,
        ),
    ] {
        for size in [most + 1, u64::MAX >> 1, u64::MAX] {
            let (image, number) = with_file_and_link(format, &[7; 5000]);
            let image = image.set_fields(&[("/file", "size", size)]);
            let fs = image.open();
            let root = fs.root().unwrap();
            let refused = root.lookup(b"file").map(|_| ()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{format}: {refused}");
            assert!(refused.to_string().contains("i_size"), "{refused}");
            root.lookup(b"link").unwrap();
            drop((fs, root));
            let image = image.debugfs(&format!("ssv last_orphan {number}\n"));
            let fs = image.open();
            let (recorded, _) = fs.superblock().recorded_errors();
            assert!(recorded.is_some(), "{format}, {size}");
        }
        let (image, _) = with_file_and_link(format, &[7; 5000]);
        let image = image.set_fields(&[("/file", "size", most)]);
        let fs = image.open();
        let file = fs.root().unwrap().lookup(b"file").unwrap().file().unwrap();
        let mut bytes = [1; 4096];
        file.read_at(&mut bytes, most - 4096).unwrap();
        assert!(bytes == [0; 4096], "{format}");
    }
}

#[test]
fn orphan_with_its_target_in_the_inode_loses_no_blocks() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    for format in ["-t ext4 -b 4096 -O ^orphan_file", "-t ext2 -b 1024"] {
        let (image, number) = with_file_and_link(format, &[7; 5000]);
        let free = image.open().statistics().free_blocks;
        let link = number + 1;
        let image = image.debugfs(&format!("ssv last_orphan {link}\n"));
        let fs = image.open();
        assert_eq!(fs.superblock().last_orphan(), None);
        assert_eq!(fs.superblock().recorded_errors(), (None, None), "{format}");
        fs.sync().unwrap();
        assert_eq!(fs.statistics().free_blocks, free, "{format}");
        drop(fs);
        image.assert_clean();
    }
}

#[test]
fn orphan_file_that_is_too_large_is_refused() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    let image = Image::new("-t ext4 -b 4096 -O orphan_file", 64);
    let bytes = image.bytes();
    // s_orphan_file_inum
    let number = u32::from_le_bytes(bytes[1024 + 0x280..][..4].try_into().unwrap());
    let inode = format!("<{number}>");
    for blocks in [513u64, 1 << 31] {
        let image = Image::from_bytes(&bytes).set_fields(&[(&inode, "size", blocks << 12)]);
        for access in [READ_ONLY, Access::ReadWrite] {
            let error = open(&image, access).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("512"), "{error}");
        }
    }
}

#[test]
fn read_only_file_system_is_read_and_stays_as_it_is() {
    require!(requires::tool("mke2fs"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    create(&mkdir(&root, "dir"), "file")
        .file()
        .unwrap()
        .write_at(b"data", 0)
        .unwrap();
    fs.sync().unwrap();
    // The state after a crash: synced data is only in the journal.
    let crashed = Image {
        device: Arc::new(image.device.snapshot()),
    };
    let before = crashed.bytes();
    let seen = open(&crashed, READ_ONLY).unwrap();
    let file = seen
        .resolve(b"dir/file", extant_ext4::FollowLast::Yes)
        .unwrap();
    let mut bytes = [0; 4];
    file.file().unwrap().read_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"data");
    let kind = |error: extant_space::Error| error.kind();
    assert_eq!(
        kind(file.file().unwrap().write_at(b"x", 0).unwrap_err()),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        kind(seen.root().unwrap().unlink(b"dir").unwrap_err()),
        ErrorKind::IsDirectory
    );
    assert_eq!(
        kind(
            seen.root()
                .unwrap()
                .remove_directory(b"lost+found")
                .unwrap_err()
        ),
        ErrorKind::ReadOnly
    );
    drop(file);
    seen.close().unwrap();
    assert!(before == crashed.bytes(), "something was written");
}

#[test]
fn closed_file_system_takes_no_changes() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let fs = image.open();
    let node = create(&fs.root().unwrap(), "file");
    fs.clone().close().unwrap();
    let error = node.file().unwrap().write_at(b"x", 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn dropped_file_system_is_closed() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 16);
    let node = create(&image.open().root().unwrap(), "file");
    drop(node);
    image.assert_clean();
}

/// Damages the block bitmap of the first group.
fn damage(device: &MemoryDevice) {
    let mut bytes = vec![0; device.geometry().size as usize];
    device.read_at(&mut bytes, 0).unwrap();
    // bg_block_bitmap_lo of the first descriptor, with blocks of 4 KiB.
    let block = u32::from_le_bytes(bytes[4096..4100].try_into().unwrap());
    let at = u64::from(block) * 4096;
    let wrong = [bytes[at as usize] ^ 1; 512];
    device.write_at(&wrong, at, Persistence::Cached).unwrap();
}

#[test]
fn damage_is_recorded_and_stops_changes_by_error_policy() {
    require!(requires::tool("mke2fs"));
    for (on_error, after) in [
        (Some(OnError::ReadOnly), Some(ErrorKind::ReadOnly)),
        (Some(OnError::Continue), None),
        (None, None),
    ] {
        let image = Image::new("-t ext4 -b 4096 -e continue", 16);
        damage(&image.device);
        let fs = image.open_with(Options {
            on_error,
            ..Options::default()
        });
        let root = fs.root().unwrap();
        let error = root
            .create(b"dir", &crate::image::new(extant_ext4::NewKind::Directory))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("bitmap of group 0"), "{error}");
        let change = root.set_attributes(&extant_ext4::AttributeChange::default());
        assert_eq!(change.err().map(|error| error.kind()), after);
        drop((root, fs));
        let bytes = image.bytes();
        let errors = u32::from_le_bytes(bytes[1024 + 0x194..1024 + 0x198].try_into().unwrap());
        assert!(errors > 0, "no error is counted in the superblock");
        let state = u16::from_le_bytes(bytes[1024 + 0x3A..1024 + 0x3C].try_into().unwrap());
        assert_eq!(
            state & 2,
            2,
            "the superblock does not say that there are errors"
        );
    }
}

#[test]
fn root_that_is_no_directory_is_refused() {
    require!(requires::tool("mke2fs"), requires::tool("debugfs"));
    for command in [
        "set_inode_field <2> mode 0100644",
        "set_inode_field <2> links_count 0",
        "clri <2>",
    ] {
        let image = Image::new("-t ext4 -b 4096", 16).debugfs(command);
        let before = image.bytes();
        let error = open(&image, Access::ReadWrite).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{command}: {error}");
        assert!(error.to_string().contains("root inode"), "{error}");
        assert!(before == image.bytes(), "something was written");
        // For reports on a damaged file system.
        let fs = open(&image, READ_ONLY).unwrap();
        let error = fs.root().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{command}: {error}");
    }
}

#[test]
fn damaged_journal_is_passed_over_where_it_is_not_loaded() {
    require!(requires::tool("mke2fs"));
    let image = Image::new("-t ext4 -b 4096", 16);
    create(&image.open().root().unwrap(), "file");
    // The extent header of the journal's inode, number 8; bg_inode_table_lo of the first descriptor
    // leads there.
    let mut bytes = image.bytes();
    let table = u32::from_le_bytes(bytes[4096 + 8..][..4].try_into().unwrap()) as usize * 4096;
    bytes[table + 7 * 256 + 40..][..12].fill(0xFF);
    let image = Image::from_bytes(&bytes);
    for access in [Access::ReadWrite, READ_ONLY] {
        let error = open(&image, access).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert_eq!(
            error.to_string().contains("noload"),
            access == READ_ONLY,
            "{error}"
        );
    }
    let with = |access| Options {
        access,
        replay: Replay::Off,
        ..Options::default()
    };
    let before = image.bytes();
    let fs = image.open_with(with(READ_ONLY));
    fs.root().unwrap().lookup(b"file").unwrap();
    assert!(fs.journal().is_err());
    fs.close().unwrap();
    assert!(before == image.bytes(), "something was written");
    let error = Filesystem::open(image.device.clone(), with(Access::ReadWrite)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

const NO_JOURNAL: &str = "-t ext4 -b 1024 -O ^has_journal";

/// Whether `s_state` marks the file system as closed cleanly.
fn is_valid(image: &Image) -> bool {
    image.bytes()[1024 + 0x3A] & 1 == 1
}

#[test]
fn file_system_without_a_journal_is_marked_while_it_is_open_and_refused_when_it_was_not_closed() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new(NO_JOURNAL, 16);
    let fs = image.open();
    assert!(!is_valid(&image), "open, and marked clean");
    let node = create(&fs.root().unwrap(), "file");
    node.file().unwrap().write_at(&[7; 5000], 0).unwrap();
    node.sync(SyncMode::All).unwrap();
    let crashed = Image {
        device: Arc::new(image.device.snapshot()),
    };
    drop(node);
    fs.close().unwrap();
    assert!(is_valid(&image), "closed, and not marked clean");
    image.assert_clean();

    let error = open(&crashed, Access::ReadWrite).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("e2fsck"), "{error}");
    let before = crashed.bytes();
    let seen = open(&crashed, READ_ONLY).unwrap();
    let node = seen.root().unwrap().lookup(b"file").unwrap();
    let mut found = [0; 5000];
    node.file().unwrap().read_at(&mut found, 0).unwrap();
    assert!(found == [7; 5000], "what was synced is not there");
    drop(node);
    seen.close().unwrap();
    assert!(before == crashed.bytes(), "something was written");

    // Cut off, it stays marked.
    let image = Image::new(NO_JOURNAL, 16);
    let fs = image.open();
    drop(create(&fs.root().unwrap(), "file"));
    fs.shut_down(Shutdown::NoLogFlush).unwrap();
    fs.close().unwrap();
    assert!(!is_valid(&image));
}

#[test]
fn orphans_without_a_journal_are_listed_at_the_close_and_freed_by_the_next_opening() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new(NO_JOURNAL, 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let free = fs.statistics().free_blocks;
    let node = create(&root, "file");
    node.file().unwrap().write_at(&[7; 50_000], 0).unwrap();
    root.unlink(b"file").unwrap();
    fs.clone().close().unwrap();
    let first = u32::from_le_bytes(image.bytes()[1024 + 0xE8..][..4].try_into().unwrap());
    assert_eq!(first, node.number().0, "s_last_orphan");
    drop((node, root, fs));
    let fs = image.open();
    fs.sync().unwrap();
    assert_eq!(fs.statistics().free_blocks, free);
    fs.close().unwrap();
    image.assert_clean();
}

#[test]
fn inode_number_without_a_journal_is_used_again_when_its_removal_is_durable() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new(&format!("{NO_JOURNAL} -N 32"), 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let number = create(&root, "a").number();
    root.unlink(b"a").unwrap();
    assert_ne!(create(&root, "b").number(), number, "in one transaction");
    fs.sync().unwrap();
    assert_eq!(create(&root, "c").number(), number);
    // If all others are in use, the opener waits for it.
    let full = (0..).find_map(|name| {
        let new = crate::image::new(extant_ext4::NewKind::Regular);
        root.create(format!("{name}").as_bytes(), &new).err()
    });
    assert_eq!(full.unwrap().kind(), ErrorKind::NoSpace);
    root.unlink(b"b").unwrap();
    drop(create(&root, "d"));
    drop(root);
    fs.close().unwrap();
    image.assert_clean();
}
