//! Records made one by one: their effect, refused records, and crashes during replay, which change
//! nothing.

use std::sync::Arc;

use extant_blockdev::simulation::{CrashDevice, CrashOptions};
use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ext4::{Access, FileType, Filesystem, InodeNumber, NewKind, Options};
use extant_ondisk::ext4::extent::ExtentKind::{Unwritten, Written};
use extant_ondisk::ext4::fast_commit::Change;
use extant_ondisk::ext4::fast_commit::Change::{AddRange, DelRange, Inode as Fields};
use extant_ondisk::ext4::fast_commit::NameChange::{Create, Link, Unlink};
use extant_ondisk::ext4::inode::{InodeFlags, Mode};
use extant_ondisk::ext4::{Inode, LogicalBlock, PhysicalBlock};
use extant_space::{ErrorKind, ExtentState, Result};
use extant_testkit::{require, requires};

use crate::made::{Made, extent, file, name, node};
use crate::snapshot::{Snapshot, assert_clean};
use crate::tree::{assert_same, tree};

fn remove(inode: InodeNumber, start: u32, blocks: u32) -> Change<'static> {
    DelRange {
        inode,
        start: LogicalBlock(start),
        blocks,
    }
}

/// The block of the device that a file has first.
fn first_block(made: &Made, inode: InodeNumber) -> PhysicalBlock {
    let options = Options {
        access: Access::ReadOnly,
        ..Options::default()
    };
    let fs = Filesystem::open(Arc::new(made.device.snapshot()), options).unwrap();
    let file = fs.node(inode).unwrap().file().unwrap();
    let mut first = None;
    let all = extant_space::ByteRange::new(0, 1 << 20);
    extant_space::SpaceFile::for_each_extent(&file, all, &mut |extent| {
        first = first.or(extent.physical);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    PhysicalBlock(first.unwrap() >> made.layout.block_bits())
}

/// Two files, a directory, and commits with every kind of record.
fn everything() -> Made {
    let (mut one, mut two) = (InodeNumber(0), InodeNumber(0));
    let mut dir = InodeNumber(0);
    let mut made = Made::new(|root| {
        one = file(root, "one", 8, 1);
        two = file(root, "two", 8, 2);
        dir = root
            .create(b"dir", &node(NewKind::Directory))
            .unwrap()
            .number();
    });
    let of_two = first_block(&made, two);
    let (new, link, inner) = (
        InodeNumber(two.0 + 10),
        InodeNumber(two.0 + 11),
        InodeNumber(two.0 + 12),
    );
    let place = made.free(40);
    made.fill(place, 40, 0x77);
    // A new file with blocks of its own, some of which move to another one later; a target; a
    // directory.
    let fields = made.inode(&made.file(20_000, 7));
    made.commit(&[
        Fields {
            inode: new,
            bytes: &fields,
        },
        AddRange {
            inode: new,
            extent: extent(0, place, 10, Written),
        },
        AddRange {
            inode: new,
            extent: extent(15, PhysicalBlock(place.0 + 15), 5, Unwritten),
        },
        name(Create, new, b"new"),
        name(Link, new, b"second"),
    ]);
    let mut short = Inode::zeroed(32);
    short.set_mode(Mode::new(FileType::SymbolicLink, 0o777));
    short.set_links(1);
    short.set_size_bytes(3, &made.layout);
    short.block_area_mut()[..3].copy_from_slice(b"one");
    let short = made.inode(&short);
    let mut sub = made.file(1024, 9);
    sub.set_mode(Mode::new(FileType::Directory, 0o750));
    sub.set_links(2);
    let sub = made.inode(&sub);
    made.commit(&[
        Fields {
            inode: link,
            bytes: &short,
        },
        name(Create, link, b"link"),
        Fields {
            inode: inner,
            bytes: &sub,
        },
        Change::Name {
            change: Create,
            parent: dir,
            inode: inner,
            name: b"inner",
        },
    ]);
    // Blocks move to another file before they leave the first one, and from a deleted file.
    made.commit(&[
        name(Unlink, two, b"two"),
        remove(one, 2, 3),
        AddRange {
            inode: one,
            extent: extent(2, place, 2, Written),
        },
        AddRange {
            inode: one,
            extent: extent(4, of_two, 4, Written),
        },
        remove(new, 0, 2),
    ]);
    made
}

#[test]
fn records_of_all_kinds_are_carried_out() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let image = Snapshot::of_device(&everything().device);
    let seen = image.ours();
    assert_same(&seen, &image.ours_read_only(), "read-only");
    assert!(!seen.contains_key("/two"));
    assert_eq!(seen["/link"].content, b"one");
    assert_eq!(seen["/dir"].links, 3);
    assert_eq!(seen["/dir/inner"].permissions, 0o750);
    let new = &seen["/new"];
    assert_eq!((new.links, new.size, new.permissions), (2, 20_000, 0o640));
    let (written, unwritten) = (ExtentState::Written, ExtentState::Unwritten);
    let expected = [(2048, 10_240, written), (15_360, 20_480, unwritten)];
    assert_eq!(new.extents, expected);
    assert_eq!(seen["/second"], *new);
    assert!(new.content[2048..10_240].iter().all(|&byte| byte == 0x77));
    let one = &seen["/one"];
    let mut expected = vec![1; 8192];
    expected[2048..4096].fill(0x77);
    expected[4096..].fill(2);
    assert_eq!(one.content, expected);
    assert_eq!(one.extents, [(0, 8192, written)]);
}

#[test]
fn number_of_a_removed_file_is_used_again() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    for is_open in [false, true] {
        let mut two = InodeNumber(0);
        let mut made = Made::new(|root| {
            two = file(root, "two", 300, 2);
            file(root, "one", 1, 1);
            if is_open {
                // An orphan of the log, whose end left no record.
                let open = root.lookup(b"two").unwrap();
                root.unlink(b"two").unwrap();
                std::mem::forget(open);
            }
        });
        let place = made.free(4);
        made.fill(place, 4, 0x55);
        let fields = made.inode(&made.file(3_000, 77));
        let mut changes = vec![
            Fields {
                inode: two,
                bytes: &fields,
            },
            AddRange {
                inode: two,
                extent: extent(0, place, 3, Written),
            },
            name(Create, two, b"again"),
        ];
        if !is_open {
            changes.insert(0, name(Unlink, two, b"two"));
        }
        made.commit(&changes);
        let seen = Snapshot::of_device(&made.device).ours();
        assert!(!seen.contains_key("/two"));
        assert_eq!(seen["/again"].content, vec![0x55; 3000]);
        assert_eq!(seen["/again"].extents.len(), 1);
    }
}

#[test]
fn only_whole_commits_count() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let make = |link: InodeNumber, made: &mut Made, names: &[String]| {
        let changes: Vec<_> = names
            .iter()
            .map(|text| name(Link, link, text.as_bytes()))
            .collect();
        made.commit(&changes)
    };
    let mut one = InodeNumber(0);
    let mut made = Made::new(|root| one = file(root, "one", 2, 1));
    let names: Vec<Vec<String>> = (0..4)
        .map(|commit| {
            (0..60)
                .map(|number| format!("a rather long name {commit} {number}"))
                .collect()
        })
        .collect();
    let blocks: Vec<u32> = names
        .iter()
        .map(|names| make(one, &mut made, names))
        .collect();
    assert!(blocks.iter().all(|&blocks| blocks > 1), "{blocks:?}");
    // A flipped bit in any block loses its commit and those behind.
    let total: u32 = blocks.iter().sum();
    for damaged in 0..=total {
        let device = Arc::new(made.device.snapshot());
        if damaged < total {
            let at = made.offset(damaged);
            let mut block = vec![0; made.layout.block_bytes() as usize];
            device.read_at(&mut block, at).unwrap();
            block[20] ^= 1;
            device.write_at(&block, at, Persistence::Fua).unwrap();
        }
        let mut end = 0;
        let whole = blocks
            .iter()
            .take_while(|&&blocks| {
                end += blocks;
                end <= damaged
            })
            .count();
        let fs = Filesystem::open(device, Options::default()).unwrap();
        let links = fs.node(one).unwrap().attributes().links;
        assert_eq!(usize::from(links), 1 + 60 * whole, "block {damaged}");
    }
}

fn open(device: &Arc<MemoryDevice>) -> Result<()> {
    Filesystem::open(device.clone(), Options::default()).map(drop)
}

#[test]
fn record_that_cannot_be_true_is_refused_by_its_place() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let (mut one, mut two, mut dir) = (InodeNumber(0), InodeNumber(0), InodeNumber(0));
    let made = Made::new(|root| {
        one = file(root, "one", 8, 1);
        two = file(root, "two", 8, 2);
        let made = root.create(b"dir", &node(NewKind::Directory)).unwrap();
        dir = made.number();
    });
    let new = InodeNumber(two.0 + 20);
    let of_two = first_block(&made, two);
    let outside = PhysicalBlock(made.layout.blocks() - 2);
    let file_fields = made.inode(&made.file(0, 7));
    let mut typeless = made.file(0, 7);
    typeless.set_mode(Mode(0o644));
    let typeless = made.inode(&typeless);
    let mut mapped = made.file(0, 7);
    mapped.set_flags(InodeFlags::empty());
    let mapped = made.inode(&mapped);
    let add = |inode, physical, blocks| AddRange {
        inode,
        extent: extent(100, physical, blocks, Written),
    };
    let fields = |inode, bytes| Fields { inode, bytes };
    let (corrupt, unsupported) = (ErrorKind::Corrupt, ErrorKind::Unsupported);
    let cases: Vec<(ErrorKind, &str, Vec<Change<'_>>)> = vec![
        (
            corrupt,
            "block 0, record 1: fast commit AddRange",
            vec![add(one, outside, 9)],
        ),
        (corrupt, "are in use already", vec![add(one, of_two, 4)]),
        (
            corrupt,
            "are in use already",
            vec![add(one, PhysicalBlock(1), 1)],
        ),
        (
            corrupt,
            "several files",
            vec![add(one, made.free(9), 4), add(two, made.free(9), 4)],
        ),
        (
            corrupt,
            "record 1: inode 8 is the file system's own",
            vec![remove(InodeNumber(8), 0, 9)],
        ),
        (
            corrupt,
            "record 2: inode",
            vec![remove(one, 0, 1), add(dir, made.free(9), 4)],
        ),
        (
            corrupt,
            "while it has a name",
            vec![fields(one, &file_fields)],
        ),
        (corrupt, "without a type", vec![fields(new, &typeless)]),
        (unsupported, "without extents", vec![fields(new, &mapped)]),
        (corrupt, "gets none", vec![fields(new, &file_fields)]),
        (corrupt, "does not exist", vec![name(Link, new, b"x")]),
        (corrupt, "gets the name of", vec![name(Link, one, b"two")]),
        (corrupt, "gets another name", vec![name(Link, dir, b"x")]),
        (
            corrupt,
            "is no directory",
            vec![Change::Name {
                change: Link,
                parent: one,
                inode: two,
                name: b"x",
            }],
        ),
    ];
    for (kind, words, changes) in cases {
        let mut made = Made::left(made.device.snapshot());
        made.commit(&changes);
        let device = Arc::new(made.device.snapshot());
        for _ in 0..2 {
            let Err(error) = open(&device) else {
                panic!("not refused: {words}");
            };
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(
                text.contains(words) && text.contains("fast commit"),
                "{text}"
            );
        }
        let options = Options {
            access: Access::ReadOnly,
            ..Options::default()
        };
        let error = Filesystem::open(device, options).unwrap_err();
        assert_eq!(error.kind(), kind);
    }
}

#[test]
fn random_records_are_carried_out_wholly_or_refused() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let mut one = InodeNumber(0);
    let base = Made::new(|root| {
        one = file(root, "one", 8, 1);
        file(root, "two", 8, 2);
        root.create(b"dir", &node(NewKind::Directory)).unwrap();
    })
    .device;
    let mut carried_out = 0;
    for seed in 0..80 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut made = Made::left(base.snapshot());
        let free = made.free(0).0;
        let sizes = [made.file(3000, 1), made.file(9000, 2)];
        let mut dir = made.file(1024, 3);
        dir.set_mode(Mode::new(FileType::Directory, 0o755));
        let bytes = [
            made.inode(&sizes[0]),
            made.inode(&sizes[1]),
            made.inode(&dir),
        ];
        let names = [&b"one"[..], b"two", b"x", b"y", b"dir"];
        for _ in 0..random.usize(1..4) {
            let changes: Vec<_> = (0..random.usize(1..8))
                .map(|_| {
                    let inode = InodeNumber(one.0 + random.u32(0..6));
                    match random.u8(..10) {
                        0..3 => AddRange {
                            inode,
                            extent: extent(
                                random.u32(..20),
                                PhysicalBlock(free - random.u64(..60)),
                                random.u16(1..6),
                                if random.bool() { Written } else { Unwritten },
                            ),
                        },
                        3 | 4 => remove(inode, random.u32(..20), random.u32(1..9)),
                        5 | 6 => Fields {
                            inode,
                            bytes: &bytes[random.usize(..3)],
                        },
                        kind => name(
                            [Create, Link, Unlink][usize::from(kind) % 3],
                            inode,
                            names[random.usize(..5)],
                        ),
                    }
                })
                .collect();
            made.commit(&changes);
        }
        let device = Arc::new(made.device.snapshot());
        match Filesystem::open(device.clone(), Options::default()) {
            Ok(fs) => {
                tree(&fs);
                fs.close().unwrap();
                assert_clean(&device);
                carried_out += 1;
            }
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "seed {seed}: {error}"
            ),
        }
    }
    assert!((5..75).contains(&carried_out), "{carried_out} of 80");
}

#[test]
fn power_cut_during_replay_leaves_records_or_their_effect() {
    require!(
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("debugfs")
    );
    let made = everything();
    let expected = Snapshot::of_device(&made.device).ours();
    let disk = Arc::new(CrashDevice::new(made.device.snapshot()));
    let fs = Filesystem::open(disk.clone(), Options::default()).unwrap();
    fs.close().unwrap();
    let disk = Arc::into_inner(disk).expect("the file system released it");
    let mut cuts = 0;
    let options = CrashOptions {
        states_max: 6,
        ..CrashOptions::seeded(1)
    };
    for crash in disk.into_log().crashes(options) {
        let device = Arc::new(crash.image.snapshot());
        let fs = Filesystem::open(device.clone(), Options::default())
            .unwrap_or_else(|error| panic!("{crash}: {error}"));
        assert_same(&expected, &tree(&fs), &crash.to_string());
        fs.close().unwrap();
        if cuts % 29 == 0 {
            assert_clean(&device);
        }
        cuts += 1;
    }
    assert!(cuts > 50, "{cuts} power cuts");
}
