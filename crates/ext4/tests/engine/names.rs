//! Names: creating, linking, renaming, removing, listing.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;

use extant_ext4::{
    DeviceNumber, FileType, FollowLast, NewKind, Node, OnError, Options, RenameMode,
};
use extant_space::{ErrorKind, SpaceFile};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

use crate::image::{FORMATS, Image, create, mkdir, new};

fn names(directory: &Node) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    directory
        .list(0, &mut |listed| {
            assert!(names.insert(String::from_utf8_lossy(listed.name).into_owned()));
            ControlFlow::Continue(())
        })
        .unwrap();
    names
}

#[test]
fn everything_that_can_have_a_name_is_made_and_removed_in_every_format() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in FORMATS {
        let image = Image::new(format, 32);
        let long = "t".repeat(700);
        {
            let fs = image.open();
            let root = fs.root().unwrap();
            let dir = mkdir(&root, "dir");
            assert_eq!(root.attributes().links, 4, "{format}: with lost+found");
            let device = DeviceNumber {
                major: 300,
                minor: 70_000,
            };
            for (name, kind) in [
                ("file", NewKind::Regular),
                ("sub", NewKind::Directory),
                ("short", NewKind::SymbolicLink(b"file")),
                ("long", NewKind::SymbolicLink(long.as_bytes())),
                ("pipe", NewKind::Fifo),
                ("socket", NewKind::Socket),
                ("char", NewKind::CharacterDevice(device)),
                ("block", NewKind::BlockDevice(device)),
            ] {
                let node = dir.create(name.as_bytes(), &new(kind)).unwrap();
                assert_eq!(dir.lookup(name.as_bytes()).unwrap().number(), node.number());
            }
            assert_eq!(
                dir.lookup(b"char").unwrap().attributes().device,
                Some(device)
            );
            assert_eq!(dir.lookup(b"short").unwrap().read_link().unwrap(), b"file");
            root.link(b"other", &dir.lookup(b"file").unwrap()).unwrap();
            fs.close().unwrap();
        }
        image.assert_clean();
        {
            let fs = image.open();
            let dir = fs.resolve(b"/dir/", FollowLast::Yes).unwrap();
            assert_eq!(
                dir.lookup(b"long").unwrap().read_link().unwrap(),
                long.as_bytes()
            );
            let through = fs.resolve(b"dir/sub/../short", FollowLast::Yes).unwrap();
            assert_eq!(through.attributes().links, 2);
            assert_eq!(through.file_type(), FileType::Regular);
            let all = names(&dir);
            assert_eq!(all.len(), 10);
            for name in all {
                match name.as_str() {
                    "." | ".." => {}
                    "sub" => dir.remove_directory(b"sub").unwrap(),
                    name => dir.unlink(name.as_bytes()).unwrap(),
                }
            }
            drop(through);
            fs.root().unwrap().unlink(b"other").unwrap();
            fs.root().unwrap().remove_directory(b"dir").unwrap();
            drop(dir);
            fs.close().unwrap();
        }
        image.assert_clean();
    }
}

#[test]
fn directory_of_thousands_of_names_grows_and_empties() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in [
        "-t ext4 -b 1024 -N 8000",
        "-t ext4 -b 1024 -N 8000 -O ^dir_index",
    ] {
        let image = Image::new(format, 64);
        let fs = image.open();
        let dir = mkdir(&fs.root().unwrap(), "dir");
        let count = if format.contains("dir_index") {
            600
        } else {
            5000
        };
        for number in 0..count {
            create(&dir, &format!("a name of some length {number}"));
        }
        assert_eq!(names(&dir).len(), count + 2);
        for number in (0..count).step_by(2) {
            dir.unlink(format!("a name of some length {number}").as_bytes())
                .unwrap();
        }
        assert_eq!(names(&dir).len(), count / 2 + 2);
        let error = fs.root().unwrap().remove_directory(b"dir").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotEmpty);
        fs.sync().unwrap();
        drop(dir);
        fs.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn rename_moves_replaces_exchanges_and_refuses() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    let image = Image::new("-t ext4", 32);
    let fs = image.open();
    let root = fs.root().unwrap();
    let (a, b) = (mkdir(&root, "a"), mkdir(&root, "b"));
    let file = create(&a, "file");
    let replaced = create(&b, "file");
    let kind = |result: extant_space::Result<()>| result.unwrap_err().kind();
    let (replace, keep, exchange) = (
        RenameMode::Replace,
        RenameMode::NoReplace,
        RenameMode::Exchange,
    );
    assert_eq!(
        kind(a.rename(b"file", &b, b"file", keep)),
        ErrorKind::AlreadyExists
    );
    a.rename(b"file", &b, b"file", replace).unwrap();
    assert_eq!(b.lookup(b"file").unwrap().number(), file.number());
    assert_eq!(replaced.attributes().links, 0);
    assert_eq!(
        kind(a.rename(b"file", &b, b"x", replace)),
        ErrorKind::NotFound
    );
    // Directories take their `..` and the count of names with them.
    let sub = mkdir(&a, "sub");
    mkdir(&sub, "deep");
    a.rename(b"sub", &b, b"moved", keep).unwrap();
    assert_eq!(sub.lookup(b"..").unwrap().number(), b.number());
    assert_eq!((a.attributes().links, b.attributes().links), (2, 3));
    assert_eq!(
        kind(root.rename(b"b", &sub, b"x", replace)),
        ErrorKind::InvalidArgument
    );
    assert_eq!(
        kind(sub.rename(b"deep", &root, b"b", replace)),
        ErrorKind::NotEmpty
    );
    assert_eq!(
        kind(b.rename(b"file", &root, b"a", replace)),
        ErrorKind::IsDirectory
    );
    assert_eq!(
        kind(b.rename(b"moved", &b, b"file", replace)),
        ErrorKind::NotDirectory
    );
    b.rename(b"moved", &root, b"a", replace).unwrap();
    assert_eq!(a.attributes().links, 0);
    assert_eq!(root.lookup(b"a").unwrap().number(), sub.number());
    // A file and a directory change places.
    sub.rename(b"deep", &b, b"file", exchange).unwrap();
    assert_eq!(sub.lookup(b"deep").unwrap().number(), file.number());
    let deep = b.lookup(b"file").unwrap();
    assert_eq!(deep.lookup(b"..").unwrap().number(), b.number());
    assert_eq!((sub.attributes().links, b.attributes().links), (2, 3));
    assert_eq!(kind(a.rename(b"x", &b, b"y", replace)), ErrorKind::NotFound);
    drop((a, b, sub, deep, file, replaced, root));
    fs.close().unwrap();
    image.assert_clean();
}

/// `i_flags` of a directory with extents: `CASEFOLD`, `ENCRYPT`.
const FOREIGN_NAMES: [u64; 2] = [0x4008_0000, 0x8_0800];
const PLAIN_NAMES: u64 = 0x8_0000;

#[test]
fn directory_with_names_not_offered_moves_to_another_parent() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for flags in FOREIGN_NAMES {
        let image = Image::new("-t ext4 -O casefold,encrypt", 16);
        let fs = image.open();
        let root = fs.root().unwrap();
        for parent in ["a", "b"] {
            let parent = mkdir(&root, parent);
            mkdir(&parent, "sub");
            create(&mkdir(&parent, "foreign"), "inside");
        }
        drop((fs, root));
        let set = |image: Image, flags| {
            image.set_fields(&[
                ("/a/foreign", "flags", flags),
                ("/b/foreign", "flags", flags),
            ])
        };
        let image = set(image, flags);
        let fs = image.open();
        let root = fs.root().unwrap();
        let (a, b) = (root.lookup(b"a").unwrap(), root.lookup(b"b").unwrap());
        let (keep, exchange) = (RenameMode::NoReplace, RenameMode::Exchange);
        // Each with a directory of the other parent, then to the first parent.
        a.rename(b"foreign", &b, b"foreign", exchange).unwrap();
        a.rename(b"sub", &b, b"foreign", exchange).unwrap();
        b.rename(b"sub", &a, b"foreign", exchange).unwrap();
        b.rename(b"sub", &root, b"out", keep).unwrap();
        root.rename(b"out", &a, b"in", keep).unwrap();
        assert_eq!((a.attributes().links, b.attributes().links), (5, 3));
        drop((fs, root, a, b));
        let image = image.set_fields(&[
            ("/a/sub", "flags", PLAIN_NAMES),
            ("/a/in", "flags", PLAIN_NAMES),
        ]);
        image.assert_clean();
    }
}

#[test]
fn directory_with_a_damaged_block_is_not_moved_and_nothing_has_changed() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let image = Image::new("-t ext4 -b 1024", 16);
    let fs = image.open();
    let root = fs.root().unwrap();
    let (a, b) = (mkdir(&root, "a"), mkdir(&root, "b"));
    let sub = mkdir(&a, "sub");
    create(&sub, "inside");
    mkdir(&b, "other");
    drop((fs, root, a, b, sub));
    let mut bytes = image.bytes();
    let is_block = |block: &[u8]| block[8] == b'.' && block[32..].starts_with(b"inside");
    for block in bytes.chunks_mut(1024).filter(|block| is_block(block)) {
        block[1000] ^= 1;
    }
    let image = Image::from_bytes(&bytes);
    let fs = image.open_with(Options {
        on_error: Some(OnError::Continue),
        ..Options::default()
    });
    let root = fs.root().unwrap();
    let (a, b) = (root.lookup(b"a").unwrap(), root.lookup(b"b").unwrap());
    for refused in [
        a.rename(b"sub", &b, b"sub", RenameMode::NoReplace),
        a.rename(b"sub", &b, b"other", RenameMode::Exchange),
        b.rename(b"other", &a, b"sub", RenameMode::Exchange),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
    }
    assert_eq!(names(&a).len(), 3);
    assert_eq!(names(&b).len(), 3);
    create(&a, "the journal accepts changes");
    drop((root, a, b));
    fs.close().unwrap();
}

#[test]
fn unlinked_file_lives_as_long_as_it_is_used() {
    require!(requires::tool("mke2fs"), requires::tool("e2fsck"));
    for format in ["-t ext4", "-t ext4 -O ^orphan_file"] {
        let image = Image::new(format, 32);
        let fs = image.open();
        let root = fs.root().unwrap();
        let nodes: Vec<_> = (0..5).map(|n| create(&root, &format!("f{n}"))).collect();
        for (number, node) in nodes.iter().enumerate() {
            node.file()
                .unwrap()
                .write_at(&[number as u8; 10_000], 0)
                .unwrap();
            root.unlink(format!("f{number}").as_bytes()).unwrap();
        }
        let mut bytes = [0; 10_000];
        nodes[3].file().unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, [3; 10_000]);
        // One is given a name again; a crash takes the others.
        root.link(b"again", &nodes[3]).unwrap();
        drop(nodes.into_iter().nth(1));
        let unnamed = root.create_unnamed(&new(NewKind::Regular)).unwrap();
        unnamed.file().unwrap().write_at(&[9; 5000], 0).unwrap();
        fs.sync().unwrap();
        let crashed = Image {
            device: std::sync::Arc::new(image.device.snapshot()),
        };
        let after = crashed.open();
        assert_eq!(names(&after.root().unwrap()).len(), 4);
        after.close().unwrap();
        crashed.assert_clean();
        drop((unnamed, root));
        fs.close().unwrap();
        image.assert_clean();
    }
}

#[test]
fn directory_counts_as_many_others_as_the_kernel_does() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("debugfs"),
        requires::kernel_filesystem("ext4")
    );
    // `.` and its own name are two links of 65,000. With many files the directory has a tree.
    const ONE_LESS: u64 = 64_997;
    for (format, files) in [
        ("-t ext4 -b 1024", 200),
        ("-t ext4 -b 1024", 0),
        ("-t ext4 -b 1024 -O ^dir_nlink", 200),
        ("-t ext4 -b 1024 -O ^dir_index", 200),
    ] {
        let image = Image::new(format, 16);
        let fs = image.open();
        let dir = mkdir(&fs.root().unwrap(), "dir");
        for name in 0..files {
            create(&dir, &format!("{name:030}"));
        }
        drop((fs, dir));
        let image = image.set_fields(&[("/dir", "links_count", 2 + ONE_LESS)]);
        let work = Workdir::new();
        let path = work.path().join("image");
        std::fs::write(&path, image.bytes()).unwrap();
        let device = LoopDevice::attach(&path);
        let place = work.directory("mounted");
        let mount = Mount::new("ext4", device.path(), &place, "");
        let fs = image.open();
        let dir = fs.root().unwrap().lookup(b"dir").unwrap();
        for name in ["new1", "new2", "new3"] {
            let theirs = std::fs::create_dir(place.join("dir").join(name));
            let ours = dir.create(name.as_bytes(), &new(NewKind::Directory));
            assert_eq!(
                ours.is_ok(),
                theirs.is_ok(),
                "{format}, {files} files: {name}"
            );
            if let Err(refused) = ours {
                assert_eq!(refused.kind(), ErrorKind::TooManyLinks);
            }
            let theirs = std::fs::metadata(place.join("dir")).unwrap().nlink();
            let ours = u64::from(dir.attributes().links);
            assert_eq!(ours, theirs, "{format}, {files} files: {name}");
        }
        mount.unmount();
    }
}
