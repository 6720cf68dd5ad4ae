//! Everything on every kind of file system.

use std::collections::{BTreeMap, BTreeSet};

use extant_ondisk::ext4::bitmap::Bitmap;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::inode::{DeviceNumber, FileType};
use extant_ondisk::ext4::{
    Access, Features, GroupDescriptor, GroupNumber, Incompat, Inode, InodeNumber, RoCompat,
    Superblock, orphan,
};
use extant_testkit::{command, oracle, require};

use crate::groups;
use crate::image::{Image, e2fsprogs};
use crate::kinds::{self, Kind};
use crate::walk::{Seen, Walk};

/// Reads everything on one kind of file system.
fn census(kind: Kind) {
    require!(e2fsprogs());
    let image = kinds::make(kind);
    oracle::assert_e2fsck_clean(&image.path());
    assert!(groups::check(&image) > 0);
    check_superblocks(&image);
    check_groups(&image);
    check_features(&image);
    let seen = check_inodes(&image);
    check_seen(&seen, &image.superblock());
    check_orphan_file(&image);
}

/// One test for each kind, so that they run beside each other.
macro_rules! censuses {
    ($($name:ident: $kind:ident,)+) => {$(
        #[test]
        fn $name() {
            census(kinds::$kind);
        }
    )+};
}

censuses! {
    defaults_are_read_and_written_again: DEFAULTS,
    blocks_of_1k_are_read_and_written_again: BLOCKS_1K,
    blocks_of_2k_are_read_and_written_again: BLOCKS_2K,
    blocks_of_64k_are_read_and_written_again: BLOCKS_64K,
    short_descriptors_are_read_and_written_again: SHORT_DESCRIPTORS,
    gdt_csum_is_read_and_written_again: GDT_CSUM,
    file_system_without_sums_is_read_and_written_again: NO_SUMS,
    stored_seed_is_read_and_written_again: STORED_SEED,
    inodes_of_128_bytes_are_read_and_written_again: SMALL_INODES,
    inodes_of_512_bytes_are_read_and_written_again: LARGE_INODES,
    block_maps_are_read_and_written_again: BLOCK_MAPS,
    meta_bg_is_read_and_written_again: META_BG,
    sparse_super2_is_read_and_written_again: SPARSE_SUPER2,
    bigalloc_is_read_and_written_again: BIGALLOC,
}

/// Minimum counts, so that a walk over nothing does not pass.
fn check_seen(seen: &Seen, superblock: &Superblock) {
    eprintln!("{seen:?}");
    let features = superblock.features();
    let small = superblock.layout().block_bytes() < 4096;
    assert!(seen.inodes > 2400 && seen.names > 2400);
    assert!(seen.directory_blocks > if small { 50 } else { 2 });
    assert!(seen.index_nodes > 0);
    assert_eq!(
        seen.index_levels,
        u8::from(superblock.layout().block_bytes() == 1024)
    );
    if features.incompat.contains(Incompat::EXTENTS) {
        let is_bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        assert!(seen.extents > 40 && (seen.unwritten > 0 || is_bigalloc));
        assert!(!small || (seen.extent_blocks > 10 && seen.extent_depth == 2));
    } else {
        assert!(seen.mapped_blocks > 1500);
    }
    let has_room = superblock.layout().inode_bytes() > 128;
    assert_eq!(seen.inode_attributes > 0, has_room);
    assert!(seen.block_attributes > 0);
}

fn check_superblocks(image: &Image) {
    let superblock = image.superblock();
    let layout = superblock.layout();
    for group in layout.superblock_backups() {
        let block = layout.superblock_block(group).unwrap();
        let start = layout.bytes_of(block).start();
        let bytes = image.read(start, Superblock::BYTES);
        let backup = Superblock::parse(&bytes).unwrap();
        assert_eq!(backup.raw().s_block_group_nr.get(), group.0 as u16);
        // Backups are not kept up to date in all fields; their types are the same.
        assert_eq!(layout, backup.layout());
        assert_eq!(
            (superblock.uuid(), superblock.hash_seed()),
            (backup.uuid(), backup.hash_seed())
        );
    }
    for index in 0..layout.descriptor_blocks() {
        for copy in layout.descriptor_block_backups(index) {
            let block = image.block(layout, copy);
            let first = index * layout.descriptors_per_block();
            let last = layout.groups().min(first + layout.descriptors_per_block());
            for (place, group) in (first..last).enumerate() {
                let bytes = &block[place * usize::from(layout.descriptor_bytes())..];
                GroupDescriptor::parse(bytes, GroupNumber(group), &superblock).unwrap();
            }
        }
    }
}

fn check_groups(image: &Image) {
    let superblock = image.superblock();
    let layout = superblock.layout();
    for group in (0..layout.groups()).map(GroupNumber) {
        let place = layout.descriptor_place(group);
        let block = image.block(layout, place.block);
        let bytes = &block[place.byte as usize..][..usize::from(layout.descriptor_bytes())];
        let mut descriptor = GroupDescriptor::parse(bytes, group, &superblock).unwrap();
        let before = descriptor;
        let flags = descriptor.flags(layout);
        for (bitmap, block, uninit) in [
            (
                Bitmap::Blocks,
                descriptor.block_bitmap(),
                GroupFlags::BLOCK_UNINIT,
            ),
            (
                Bitmap::Inodes,
                descriptor.inode_bitmap(),
                GroupFlags::INODE_UNINIT,
            ),
        ] {
            if flags.contains(uninit) {
                continue;
            }
            let bits = image.block(layout, block);
            bitmap
                .verify(&bits, group, &descriptor, &superblock)
                .unwrap();
            bitmap.seal(&bits, &mut descriptor, &superblock);
            let (units, free) = match bitmap {
                Bitmap::Blocks => (layout.clusters_per_group(), descriptor.free_blocks()),
                Bitmap::Inodes => (layout.inodes_per_group(), descriptor.free_inodes()),
            };
            let used: u32 = bits[..units as usize / 8]
                .iter()
                .map(|byte| byte.count_ones())
                .sum();
            assert_eq!(units - used, free, "{bitmap:?} of group {group}");
        }
        assert_eq!(
            descriptor, before,
            "checksums of the bitmaps of group {group}"
        );
        let mut copy = vec![0; bytes.len()];
        // Without group checksums, that field is not ours.
        copy[30..32].copy_from_slice(&bytes[30..32]);
        descriptor.write(&mut copy, group, &superblock);
        assert_eq!(copy, bytes, "descriptor of group {group} written again");
    }
}

fn check_inodes(image: &Image) -> Seen {
    let mut walk = Walk::new(image);
    let layout = *walk.superblock.layout();
    let mut by_name = BTreeMap::new();
    for number in (1..=layout.inodes()).map(InodeNumber) {
        let (inode, bytes) = walk.inode(number);
        if inode.is_unused() {
            continue;
        }
        let attributes = walk.attributes(number, &inode, &bytes);
        match inode.mode().file_type() {
            Some(FileType::Directory) => {
                let names = walk.names(number, &inode);
                check_names(image, number, &names);
                if number == InodeNumber::ROOT {
                    by_name.extend(names);
                }
            }
            // Its contents are not for reading.
            _ if number == InodeNumber::RESIZE => {}
            Some(FileType::Regular | FileType::SymbolicLink) => {
                walk.contents(number, &inode);
            }
            _ => {}
        }
        if number.0 >= 11 && !attributes.is_empty() {
            check_attributes(image, number, &attributes);
        }
    }
    let number = |name: &str| by_name[name.as_bytes()];
    check_files(&mut walk, number);
    walk.seen
}

fn check_names(image: &Image, directory: InodeNumber, names: &[(Vec<u8>, u32)]) {
    // `/12/100644/0/0/name/size/`
    let text = image.ask(&format!("ls -p <{directory}>"));
    let said: BTreeSet<_> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.strip_prefix('/')?.split('/');
            let inode: u32 = parts.next()?.parse().ok()?;
            Some((parts.nth(3)?.as_bytes().to_vec(), inode))
        })
        .filter(|(_, inode)| *inode != 0)
        .collect();
    let ours: BTreeSet<_> = names.iter().cloned().collect();
    assert_eq!(ours.len(), names.len(), "a name twice");
    assert_eq!(ours, said, "names in directory {directory}");
}

fn check_attributes(image: &Image, number: InodeNumber, ours: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let listed = image.ask(&format!("ea_list <{number}>"));
    let listed = listed.lines().filter(|line| line.starts_with("  ")).count();
    assert_eq!(listed, ours.len());
    for (name, value) in ours {
        let name = std::str::from_utf8(name).unwrap();
        let file = image.beside("value");
        image.ask(&format!(
            "ea_get -f {} <{number}> {name}",
            crate::image::shown(&file)
        ));
        assert_eq!(
            std::fs::read(file).unwrap(),
            *value,
            "{name} of inode {number}"
        );
    }
}

fn check_files(walk: &mut Walk<'_>, number: impl Fn(&str) -> u32) {
    let layout = *walk.superblock.layout();
    let mut read = |name: &str| {
        let number = InodeNumber(number(name));
        let (inode, _) = walk.inode(number);
        let contents = match inode.mode().file_type() {
            Some(FileType::Regular | FileType::SymbolicLink) => walk.contents(number, &inode),
            _ => Vec::new(),
        };
        if inode.mode().file_type() == Some(FileType::Regular) {
            assert!(
                contents == walk.image.dump(number.0),
                "{name} reads as debugfs reads it"
            );
        }
        check_stat(walk.image, number, &inode, &walk.superblock);
        (inode, contents)
    };
    assert!(read("fragmented").1 == kinds::fragmented(layout.block_bytes() as usize));
    assert_eq!(read("plain").1, "0123456789abcdef".repeat(9000).as_bytes());
    assert_eq!(read("short").1, b"target");
    assert_eq!(read("long").1, "t/".repeat(100).as_bytes());
    read("reserved");
    for (name, major, minor) in [("block", 8, 1), ("character", 300, 60_000)] {
        assert_eq!(read(name).0.device(), Some(DeviceNumber { major, minor }));
    }
    assert_eq!(read("pipe").0.mode().file_type(), Some(FileType::Fifo));
    assert_eq!(read("full").0.mode().file_type(), Some(FileType::Directory));
}

/// Compares fields with debugfs's `stat`.
fn check_stat(image: &Image, number: InodeNumber, inode: &Inode, superblock: &Superblock) {
    let text = image.ask(&format!("stat <{number}>"));
    let after = |word: &str| {
        let rest = text
            .split_once(word)
            .unwrap_or_else(|| panic!("{word} in {text}"))
            .1;
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let layout = superblock.layout();
    assert_eq!(after("Mode:"), inode.mode().to_string());
    assert_eq!(after("Flags:"), format!("{:#x}", inode.flags().bits()));
    assert_eq!(after("Generation:"), inode.generation().to_string());
    assert_eq!(after("Links:"), inode.links().to_string());
    assert_eq!(after("Blockcount:"), inode.sectors(layout).to_string());
    assert_eq!(after("User:"), inode.uid().to_string());
    let is_node = matches!(
        inode.mode().file_type(),
        Some(FileType::BlockDevice | FileType::CharacterDevice)
    );
    if !is_node {
        assert_eq!(after("Size:"), inode.size_bytes(layout).to_string());
    }
    if superblock.seed().is_some() {
        let sum = after("Inode checksum:");
        assert!(sum.starts_with("0x"), "{text}");
    }
}

fn check_orphan_file(image: &Image) {
    let mut walk = Walk::new(image);
    let Some(number) = walk.superblock.orphan_file() else {
        return;
    };
    let (inode, _) = walk.inode(number);
    let seed = walk.superblock.seed().map(|seed| inode.seed(seed, number));
    let map = walk.map(number, &inode);
    assert!(!map.is_empty());
    let layout = *walk.superblock.layout();
    for piece in map.values() {
        let block = image.block(&layout, piece.physical);
        orphan::verify(&block, piece.physical, seed).unwrap();
        assert_eq!(orphan::orphans(&block, &layout).count(), 0);
        let mut copy = vec![0; block.len()];
        orphan::seal(&mut copy, piece.physical, seed);
        assert_eq!(copy, block, "orphan block {} written again", piece.physical);
    }
}

/// Features have the names that dumpe2fs gives them.
fn check_features(image: &Image) {
    let mut dumpe2fs = command::tool("dumpe2fs");
    let text = command::text(dumpe2fs.arg("-h").arg(image.path())).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with("Filesystem features:"));
    let said: Vec<_> = line.unwrap().split_whitespace().skip(2).collect();
    assert_eq!(image.superblock().features().to_string(), said.join(" "));
}

#[test]
fn features_of_today_are_understood_and_others_refused_by_name() {
    require!(e2fsprogs());
    let usual = Image::mkfs(64, &["-O", "orphan_file,metadata_csum_seed"]);
    usual
        .superblock()
        .features()
        .check(&Features::UNDERSTOOD, Access::ReadWrite)
        .unwrap();
    for (options, access, line) in [
        (
            "casefold",
            Access::ReadOnly,
            "superblock: unsupported feature casefold",
        ),
        (
            "inline_data",
            Access::ReadOnly,
            "superblock: unsupported feature inline_data",
        ),
        (
            "mmp",
            Access::ReadOnly,
            "superblock: unsupported feature mmp",
        ),
        (
            "bigalloc,quota",
            Access::ReadWrite,
            "superblock: unsupported features quota, bigalloc; open it read-only",
        ),
    ] {
        let image = Image::mkfs(64, &["-O", options]);
        let error = image
            .superblock()
            .features()
            .check(&Features::UNDERSTOOD, access)
            .unwrap_err();
        assert_eq!(error.to_string(), line);
    }
}
