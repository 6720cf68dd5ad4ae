//! Flipped bits in metadata: nothing panics or hangs, and both checks agree.
//!
//! Formats without checksums are the hard ones, since with them every flip is a wrong checksum.
//! Bytes are taken from blocks that hold something other than the file contents written by the
//! population.

use std::collections::HashSet;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_fsck::{CheckOptions, FindingKind, Report};
use extant_space::Result;
use extant_testkit::{require, requires, seeds};

use crate::image::{Image, check_device};
use crate::population::{FILL, populate};

/// Offsets of bytes in metadata that are not zero, or are close to one that is not.
fn metadata_bytes(image: &Image, block_bytes: usize) -> Vec<usize> {
    let bytes = image.bytes();
    // The contents of the log are not read.
    let journal: HashSet<usize> = image
        .debugfs("blocks <8>")
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .skip(1)
        .collect();
    let mut offsets = Vec::new();
    for (number, block) in bytes.chunks(block_bytes).enumerate() {
        let is_data = block.iter().all(|&byte| byte == FILL || byte == 0);
        if is_data || journal.contains(&number) {
            continue;
        }
        for (index, near) in block.chunks(16).enumerate() {
            if near.iter().any(|&byte| byte != 0 && byte != 0xFF) {
                let start = number * block_bytes + index * 16;
                offsets.extend(start..start + near.len());
            }
        }
    }
    offsets
}

/// Findings of ours alone: kind, part of the message, and the reason to keep it as a finding.
const ONLY_OURS: [(FindingKind, &str, &str); 31] = [
    (
        FindingKind::Backup,
        "",
        "e2fsck reads copies when the first is lost only",
    ),
    (
        FindingKind::Totals,
        "",
        "e2fsck says so, and does not call it an error",
    ),
    (
        FindingKind::Superblock,
        "s_free_",
        "e2fsck says so, and does not call it an error",
    ),
    (
        FindingKind::Superblock,
        "s_last_orphan",
        "the kernel calls it an error",
    ),
    (
        FindingKind::Feature,
        "",
        "e2fsck says so, and does not call it an error",
    ),
    (
        FindingKind::Descriptor,
        "checksum",
        "e2fsck says so, and does not call it an error",
    ),
    (
        FindingKind::ResizeInode,
        "does not name",
        "e2fsck does not read so far with -n",
    ),
    (
        FindingKind::Mapping,
        "eh_depth is",
        "the kernel refuses the file; e2fsck walks any depth",
    ),
    (
        FindingKind::Mapping,
        "no entries above",
        "the kernel refuses the file",
    ),
    (
        FindingKind::Inode,
        "without the feature",
        "the kernel checks the flag alone",
    ),
    (
        FindingKind::Inode,
        "without huge_file",
        "the kernel does not read it, and must write 0",
    ),
    (
        FindingKind::Inode,
        "i_extra_isize is",
        "the kernel refuses an odd size",
    ),
    (
        FindingKind::Inode,
        "a feature that is not on",
        "the kernel checks the flag alone",
    ),
    (
        FindingKind::Entry,
        "the value of an attribute",
        "the kernel refuses to open it",
    ),
    (
        FindingKind::Size,
        "more than",
        "e2fsck does not see that i_blocks ends before the map does",
    ),
    (
        FindingKind::Journal,
        "s_start is",
        "e2fsck asks whether to recover, and does not call it an error",
    ),
    (
        FindingKind::Journal,
        "without needs_recovery",
        "the same; the kernel throws the transactions away",
    ),
    (
        FindingKind::Journal,
        "s_first is",
        "the kernel refuses to mount",
    ),
    (
        FindingKind::Journal,
        "s_journal_dev",
        "the kernel refuses to mount",
    ),
    (
        FindingKind::Attributes,
        "h_hash",
        "it only finds blocks to share, and e2fsck rebuilds it",
    ),
    (
        FindingKind::Attributes,
        "a zero in the name",
        "the kernel refuses the attributes",
    ),
    (
        FindingKind::Attributes,
        "which cannot be",
        "e2fsck passes over short symbolic links",
    ),
    (
        FindingKind::Inode,
        "immutable or append-only",
        "e2fsck does not call it an error",
    ),
    (
        FindingKind::DuplicateName,
        "",
        "e2fsck compares names of one block only",
    ),
    (
        FindingKind::HashTree,
        "its hash",
        "e2fsck lets the next block's first hash be in both",
    ),
    (
        FindingKind::Inode,
        "in use, and i_dtime",
        "e2fsck passes over inodes of the file system itself",
    ),
    (
        FindingKind::Descriptor,
        "bg_itable_unused",
        "e2fsck does not call it an error",
    ),
    (
        FindingKind::Attributes,
        "e_name_index",
        "e2fsck checks those in blocks only",
    ),
    (
        FindingKind::Descriptor,
        "without uninit_bg",
        "e2fsck minds only where something is used",
    ),
    (
        FindingKind::Attributes,
        "no value of",
        "the kernel refuses a value of another size",
    ),
    (
        FindingKind::HashTree,
        "outside of its node",
        "e2fsck compares hashes of one node only",
    ),
];

/// Findings of e2fsck alone: a part of the message, and why it is no finding here.
const ONLY_THEIRS: [(&str, &str); 2] = [
    (
        "Failed to initialize orphan file",
        "it wants zeros where the sum would be that the format does not have",
    ),
    (
        "orphan_present is set but orphan file is clean",
        "the kernel sets it when it mounts, so that every crash leaves it",
    ),
];

/// Whether they differ where they are known to.
fn is_known_difference(found: &Result<Report>, words: &str) -> bool {
    let Ok(report) = found else {
        return false;
    };
    if report.is_clean() {
        return ONLY_THEIRS.iter().any(|(part, _)| words.contains(part));
    }
    report.findings.iter().any(|finding| {
        ONLY_OURS
            .iter()
            .any(|(kind, part, _)| finding.kind == *kind && finding.words.contains(part))
    })
}

fn is_good(found: &Result<Report>) -> bool {
    found.as_ref().is_ok_and(Report::is_clean)
}

#[track_caller]
fn differences(format: &str, block_bytes: usize, flips: usize, seed: u64) -> String {
    let image = Image::new(format, 16);
    image.mounted(populate);
    let whole = image.bytes();
    let device = MemoryDevice::from_bytes(&whole);
    let offsets = metadata_bytes(&image, block_bytes);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut differences = Vec::new();
    for number in 0..flips {
        let offset = *random.choice(&offsets).expect("metadata");
        let bit = random.u32(..8);
        let sector = offset / 512 * 512;
        let mut bytes = whole[sector..sector + 512].to_vec();
        bytes[offset - sector] ^= 1 << bit;
        let flipped = device.snapshot();
        flipped
            .write_at(&bytes, sector as u64, Persistence::Cached)
            .unwrap();
        let found = check_device(&flipped, &CheckOptions::default());
        image.write_at(&bytes, sector);
        let (status, words) = image.e2fsck();
        image.write_at(&whole[sector..sector + 512], sector);
        if is_good(&found) != (status == 0) && !is_known_difference(&found, &words) {
            let found = match found {
                Ok(report) => report.to_string(),
                Err(error) => error.to_string(),
            };
            let words = words.split("\n\n\n").next().unwrap_or_default();
            differences.push(format!(
                "{format}, seed {seed}, flip {number}: bit {bit} of byte {offset:#x} (block {}, byte {:#x})\nours: {found}\ne2fsck {status}: {words}",
                offset / block_bytes,
                offset % block_bytes
            ));
        }
    }
    differences.join("\n----\n")
}

#[test]
fn flipped_bits_of_metadata_are_judged_as_by_e2fsck() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("setfattr"),
        requires::kernel_filesystem("ext4")
    );
    const FLIPS: usize = 100;
    let seeds = seeds::seeds("EXTANT_TROUBLE_SEEDS", 1..2);
    let formats = [
        (
            "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^has_journal",
            1024,
        ),
        (
            "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,ea_inode",
            1024,
        ),
        ("-t ext2 -b 1024", 1024),
        ("-t ext2 -b 4096", 4096),
        ("-t ext3 -b 2048", 2048),
        (
            "-t ext4 -b 4096 -O ^metadata_csum,uninit_bg,orphan_file",
            4096,
        ),
        ("-t ext4 -b 1024 -O metadata_csum_seed,orphan_file", 1024),
    ];
    for seed in seeds {
        let differences = formats.map(|(format, block)| differences(format, block, FLIPS, seed));
        assert!(
            differences.iter().all(String::is_empty),
            "EXTANT_TROUBLE_SEEDS={seed}..{}\n{}",
            seed + 1,
            differences.join("\n")
        );
        seeds::counted(FLIPS * formats.len(), "images");
    }
}

/// Pieces of metadata replaced by others, and by noise.
#[test]
fn scrambled_metadata_gives_an_answer() {
    require!(
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("setfattr"),
        requires::kernel_filesystem("ext4")
    );
    let image = Image::new("-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg", 16);
    image.mounted(populate);
    let whole = image.bytes();
    let offsets = metadata_bytes(&image, 1024);
    let device = MemoryDevice::from_bytes(&whole);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..500 {
        let scrambled = device.snapshot();
        for _ in 0..random.usize(1..20) {
            let [to, from] = [(); 2].map(|()| *random.choice(&offsets).unwrap() / 512 * 512);
            let mut sector = whole[to..to + 512].to_vec();
            let at = random.usize(..508);
            if random.bool() {
                sector.copy_from_slice(&whole[from..from + 512])
            } else {
                sector[at..at + 4].copy_from_slice(&random.u32(..).to_le_bytes())
            }
            // The superblock is not changed, or most images would be refused at it.
            if to / 1024 != 1 {
                scrambled
                    .write_at(&sector, to as u64, Persistence::Cached)
                    .unwrap();
            }
        }
        let report = check_device(&scrambled, &CheckOptions::default()).unwrap();
        assert!(report.findings.len() <= CheckOptions::default().findings_max);
    }
}
