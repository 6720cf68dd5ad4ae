//! Damaged images: an error that names the structure, or success; never a panic, a hang or memory
//! without a bound.
//!
//! Four sorts of damage: bytes anywhere in metadata of an image with checksums, which mostly end at
//! the sum; the same without checksums, where every wrong field gets through to the code behind;
//! the superblock with its sum made right again, as nothing is read without it; and so every other
//! sort of structure (`sealed`).

mod sealed;
mod walk;
mod zone;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ext4::{Access, Filesystem, NewKind, OnError, Options, XattrMode};
use extant_fsck::{CheckOptions, check};
use extant_ondisk::ext4::Superblock;
use extant_space::{ByteRange, CancelToken, Control, FallocateMode, Silent, SpaceFile};
use extant_testkit::{require, requires, seeds};
use fastrand::Rng;

use crate::image::{MAPS, forgetful, make, new, open};
use crate::watch::Watch;
use sealed::{Kind, Sealed, Structure, put_bytes};
use walk::{Walk, assert_named};

/// Contents of files, which metadata does not contain.
const FILL: u8 = 0x5A;
const MEMORY_MAX: u64 = 64 << 20;

const WITH_SUMS: &str = "-t ext4 -b 1024 -J size=1 -N 128 -O orphan_file";
const WITHOUT_SUMS: [&str; 3] = [
    "-t ext4 -b 1024 -J size=1 -N 128 -O ^metadata_csum,^uninit_bg,^orphan_file",
    "-t ext4 -b 1024 -J size=1 -N 128 -O ^metadata_csum,uninit_bg,orphan_file,^flex_bg",
    "-t ext4 -b 1024 -J size=1 -N 128 -O ^metadata_csum,^uninit_bg,^64bit,^orphan_file -I 128",
];

/// Every kind of on-disk structure, some only in the log, with orphans.
fn populated(options: &str) -> MemoryDevice {
    let image = Arc::new(make(options, 4096));
    let filesystem = open(image.clone()).unwrap();
    let root = filesystem.root().unwrap();
    let large = root.create(b"large", &new(NewKind::Directory)).unwrap();
    let file = large.create(b"file", &new(NewKind::Regular)).unwrap();
    for number in 0..90 {
        let name = format!("a name that fills a block of the directory, number {number}");
        large.link(name.as_bytes(), &file).unwrap();
    }
    let data = file.file().unwrap();
    for piece in 0..120 {
        data.write_at(&[FILL; 1024], piece * 3072).unwrap();
    }
    let allocated = data.fallocate(
        FallocateMode::Allocate,
        ByteRange::new(400 << 10, 500 << 10),
    );
    assert_eq!(allocated.is_ok(), options != MAPS);
    file.set_xattr(b"user.long", &[FILL; 600], XattrMode::Set)
        .unwrap();
    file.set_xattr(b"user.short", b"value", XattrMode::Set)
        .unwrap();
    for (name, kind) in [
        ("short", NewKind::SymbolicLink(b"large/file")),
        ("long", NewKind::SymbolicLink(&[b'l'; 300])),
        ("pipe", NewKind::Fifo),
        ("sub", NewKind::Directory),
    ] {
        root.create(name.as_bytes(), &new(kind)).unwrap();
    }
    drop((data, file));
    let mut orphans = Vec::new();
    for number in 0..3 {
        let name = format!("orphan{number}");
        let node = root
            .create(name.as_bytes(), &new(NewKind::Regular))
            .unwrap();
        node.file().unwrap().write_at(&[FILL; 5000], 0).unwrap();
        root.unlink(name.as_bytes()).unwrap();
        orphans.push(node);
    }
    filesystem.sync().unwrap();
    root.create(b"last", &new(NewKind::Regular)).unwrap();
    filesystem.sync().unwrap();
    image.snapshot()
}

/// The same with an empty log, so that blocks are read in place.
fn at_rest(image: &MemoryDevice) -> MemoryDevice {
    let image = Arc::new(image.snapshot());
    open(image.clone()).and_then(Filesystem::close).unwrap();
    image.snapshot()
}

/// Offsets near fields with meaning.
fn metadata(bytes: &[u8]) -> Vec<usize> {
    let is_said = |near: &[u8]| {
        near.iter()
            .any(|&byte| byte != 0 && byte != 0xFF && byte != FILL)
    };
    let near = bytes
        .chunks(16)
        .enumerate()
        .filter(|(_, near)| is_said(near));
    near.flat_map(|(number, _)| number * 16..number * 16 + 16)
        .collect()
}

/// Damages a few places of one sector or several.
fn damage(image: &MemoryDevice, bytes: &[u8], places: &[usize], random: &mut Rng) {
    for _ in 0..random.usize(1..4) {
        let place = places[random.usize(..places.len())];
        let sector = place / 512 * 512;
        let mut data = vec![0; 512];
        image.read_at(&mut data, sector as u64).unwrap();
        let at = place % 512;
        let field = at & !3;
        let edges = [
            0,
            1,
            2,
            0x7F,
            0xFF,
            0xFFFF,
            0x8000,
            0x7FFF_FFFF,
            u32::MAX,
            4096,
            12,
        ];
        match random.u8(..6) {
            0 => data[at] ^= 1 << random.u8(..8),
            1 => data[at] = random.u8(..),
            2 => {
                let edge = edges[random.usize(..edges.len())] as u16;
                let field = at & !1;
                data[field..field + 2].copy_from_slice(&edge.to_le_bytes());
            }
            3 => {
                let edge = edges[random.usize(..edges.len())];
                data[field..field + 4].copy_from_slice(&edge.to_le_bytes());
            }
            // A number that could be meant: of a block, an inode, a length.
            4 => data[field..field + 4].copy_from_slice(&random.u32(..5000).to_le_bytes()),
            _ => {
                let from = places[random.usize(..places.len())] / 16 * 16;
                let to = at / 16 * 16;
                data[to..to + 16].copy_from_slice(&bytes[from..from + 16]);
            }
        }
        image
            .write_at(&data, sector as u64, Persistence::Cached)
            .unwrap();
    }
}

/// Reads everything, changes something; returns the number of errors.
fn live_with(image: &MemoryDevice, what: &str) -> usize {
    let mut errors = 0;
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let device = Arc::new(image.snapshot());
        let options = Options {
            access,
            on_error: Some(OnError::Continue),
            ..forgetful()
        };
        let mut walk = Walk::new(what);
        if let Some(filesystem) = walk.note(Filesystem::open(device, options)) {
            if let Some(root) = walk.note(filesystem.root()) {
                walk.node(&root, 0);
            }
            filesystem.statistics();
            if access == Access::ReadWrite {
                walk.changes(&filesystem);
            }
            walk.let_go();
            walk.note(filesystem.close());
        }
        errors += walk.errors;
    }
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    if let Err(error) = check(image, &CheckOptions::default(), control) {
        assert_named(&error, what);
    }
    errors
}

/// Continues a checksum as the format requires, without the final inversion. Checksums are private
/// to `ondisk`, so this is an independent implementation.
fn crc32c(before: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(before, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0x82F6_3B78 } else { 0 }
        })
    })
}

fn seeds(usual: Range<u64>) -> Range<u64> {
    let seeds = seeds::seeds("EXTANT_TROUBLE_SEEDS", usual);
    seeds::counted(seeds.end - seeds.start, "images");
    seeds
}

/// Damages an image for each seed; most of the time that is found out.
#[track_caller]
fn survives(name: &str, base: &MemoryDevice, damage: impl Fn(&MemoryDevice, &mut Rng)) {
    let watch = Watch::new();
    let seeds = seeds(0..400);
    let count = seeds.end - seeds.start;
    let mut found = 0;
    for seed in seeds {
        let what = format!("{name}: EXTANT_TROUBLE_SEEDS={seed}..{}", seed + 1);
        watch.tell(what.clone());
        let image = base.snapshot();
        damage(&image, &mut Rng::with_seed(seed));
        let mut errors = 0;
        let memory = allocation_counter::measure(|| errors = live_with(&image, &what));
        let most = memory.bytes_max;
        assert!(most < MEMORY_MAX, "{what}: {most} bytes of memory");
        found += u64::from(errors > 0);
    }
    assert!(
        count < 100 || found > count / 10,
        "{found} of {count} were found"
    );
}

fn survives_anywhere(name: &str, base: &MemoryDevice) {
    let bytes = base.to_vec();
    let places = metadata(&bytes);
    survives(name, base, |image, random| {
        damage(image, &bytes, &places, random)
    });
}

#[test]
fn damage_anywhere_is_an_error_or_does_no_harm() {
    require!(requires::tool("mke2fs"));
    let base = populated(WITH_SUMS);
    survives_anywhere("in use", &base);
    survives_anywhere("at rest", &at_rest(&base));
}

#[test]
fn damage_that_no_sum_finds_is_an_error_or_does_no_harm() {
    require!(requires::tool("mke2fs"));
    for options in WITHOUT_SUMS {
        let base = populated(options);
        survives_anywhere(&format!("{options}, in use"), &base);
        survives_anywhere(&format!("{options}, at rest"), &at_rest(&base));
    }
    survives_anywhere(MAPS, &at_rest(&populated(MAPS)));
}

#[test]
fn superblock_with_wrong_fields_and_a_right_sum_is_an_error_or_does_no_harm() {
    require!(requires::tool("mke2fs"));
    for base in [populated(WITH_SUMS), at_rest(&populated(WITHOUT_SUMS[0]))] {
        survives("superblock", &base, |image, random| {
            let mut bytes = vec![0; Superblock::BYTES];
            image.read_at(&mut bytes, Superblock::OFFSET).unwrap();
            for _ in 0..random.usize(1..3) {
                let width = [1, 2, 4][random.usize(..3)];
                // Fields that the kernel has given a meaning.
                let at = random.usize(..0x288 / width) * width;
                let value = match random.u8(..4) {
                    0 => 0,
                    1 => u32::MAX,
                    2 => random.u32(..),
                    _ => random.u32(..300),
                };
                bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            }
            let sum = crc32c(u32::MAX, &bytes[..0x3FC]);
            bytes[0x3FC..].copy_from_slice(&sum.to_le_bytes());
            image
                .write_at(&bytes, Superblock::OFFSET, Persistence::Cached)
                .unwrap();
        });
    }
}

/// Damages a structure: bits, bytes, plausible values, and parts of other structures.
fn damage_structure(bytes: &mut [u8], random: &mut Rng) {
    for _ in 0..random.usize(1..4) {
        // Most say something near their start.
        let end = if random.bool() {
            bytes.len().min(64)
        } else {
            bytes.len()
        };
        let at = random.usize(..end / 4) * 4;
        let (half, word) = (at + 2 * random.usize(..2), &mut bytes[at..at + 4]);
        match random.u8(..7) {
            0 => word[random.usize(..4)] ^= 1 << random.u8(..8),
            1 => word[random.usize(..4)] = random.u8(..),
            2 => word.copy_from_slice(&random.u32(..5000).to_le_bytes()),
            3 => word.copy_from_slice(&random.u32(..100).to_be_bytes()),
            4 => word.fill(if random.bool() { 0 } else { 0xFF }),
            5 => bytes[half..half + 2].copy_from_slice(&random.u16(..40).to_le_bytes()),
            _ => {
                let from = random.usize(..bytes.len() / 4) * 4;
                bytes.copy_within(from..from + 4, at);
            }
        }
    }
}

/// Damages structures of every kind, an image for each seed and kind; every kind is found out at
/// least once, as its sum is right.
fn survives_sealed(base: &MemoryDevice, wanted: &[Kind]) {
    let sealed = Sealed::new(base);
    let mut kinds: BTreeMap<Kind, Vec<Structure>> = BTreeMap::new();
    for structure in &sealed.found {
        kinds.entry(structure.kind).or_default().push(*structure);
    }
    let watch = Watch::new();
    for kind in wanted {
        let all = kinds.get(kind).unwrap_or_else(|| panic!("no {kind:?}"));
        let mut found = 0;
        let seeds = seeds(0..80);
        let count = seeds.end - seeds.start;
        for seed in seeds {
            let mut random = Rng::with_seed(seed);
            let image = base.snapshot();
            let structure = all[random.usize(..all.len())];
            let mut bytes = sealed.read(&image, &structure);
            damage_structure(&mut bytes, &mut random);
            sealed.write(&image, &structure, bytes);
            let what = format!("{structure}: EXTANT_TROUBLE_SEEDS={seed}..{}", seed + 1);
            watch.tell(what.clone());
            let mut errors = 0;
            let memory = allocation_counter::measure(|| errors = live_with(&image, &what));
            let most = memory.bytes_max;
            assert!(most < MEMORY_MAX, "{what}: {most} bytes of memory");
            found += u64::from(errors > 0);
        }
        assert!(count < 80 || found > 0, "{kind:?}: nothing was found");
    }
}

#[test]
fn structures_are_written_back_as_they_were_found() {
    require!(requires::tool("mke2fs"));
    for base in [populated(WITH_SUMS), at_rest(&populated(WITH_SUMS))] {
        let sealed = Sealed::new(&base);
        for structure in &sealed.found {
            let image = base.snapshot();
            let bytes = sealed.read(&image, structure);
            sealed.write(&image, structure, bytes);
            assert!(image.to_vec() == base.to_vec(), "{structure}");
        }
    }
}

#[test]
fn structure_with_wrong_fields_and_a_right_sum_is_an_error_or_does_no_harm() {
    require!(requires::tool("mke2fs"));
    survives_sealed(
        &at_rest(&populated(WITH_SUMS)),
        &[
            Kind::Descriptor,
            Kind::BlockBitmap,
            Kind::InodeBitmap,
            Kind::Inode,
            Kind::ExtentNode,
            Kind::DirectoryLeaf,
            Kind::DirectoryIndex,
            Kind::AttributeBlock,
            Kind::OrphanBlock,
        ],
    );
}

#[test]
fn journal_with_wrong_fields_and_right_sums_is_an_error_or_does_no_harm() {
    require!(requires::tool("mke2fs"));
    survives_sealed(
        &populated(WITH_SUMS),
        &[
            Kind::JournalSuperblock,
            Kind::JournalDescriptor,
            Kind::JournalCommit,
            Kind::JournalCopy,
        ],
    );
}
