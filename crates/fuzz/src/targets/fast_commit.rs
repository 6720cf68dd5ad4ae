//! Replay of fast commits: records of any content, in commits with right checksums.
//!
//! They are carried out wholly, after which the check finds nothing, or refused.

use std::sync::{Arc, LazyLock};

use arbitrary::{Arbitrary, Unstructured};
use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_jbd2::{JournalLocation, Recovery, Run};
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::JournalSuperblock;

use crate::crc::crc32c;
use crate::ext4_image::{FAST_COMMIT, options, report};
use crate::input::{list, parse};
use crate::targets::ext4::{named, walk};

const BLOCK: usize = 1024;

// Tags: docs/formats/ext4.md, "Fast commits".
const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREAT: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

/// Fields of an inode in a record.
const INODE_BYTES: usize = 160;

/// Where the next fast commit is, and its transaction.
struct Place {
    offset: u64,
    blocks: usize,
    transaction: u32,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let image = &FAST_COMMIT.image;
    let bytes = image.to_vec();
    let found = bytes.chunks(BLOCK).enumerate().find_map(|(number, block)| {
        let superblock = JournalSuperblock::parse(block).ok()?;
        Some((number as u64, superblock))
    });
    let (first, superblock) = found.expect("the image has a journal");
    // mke2fs makes it in one piece.
    let run = Run {
        first: PhysicalBlock(first),
        blocks: superblock.blocks(),
    };
    let location = JournalLocation::new(BLOCK as u32, &[run]).expect("it is inside the image");
    let recovery = Recovery::read(Arc::new(image.snapshot()), location).expect("it is valid");
    let area = superblock.fast_commits();
    Place {
        offset: (first + u64::from(area.start)) * BLOCK as u64,
        blocks: area.len(),
        transaction: recovery.report().next.0,
    }
});

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Record {
    Add {
        inode: u8,
        logical: u8,
        blocks: u16,
        physical: u16,
    },
    Remove {
        inode: u8,
        logical: u8,
        blocks: u8,
    },
    Name {
        kind: u8,
        parent: u8,
        inode: u8,
        name: u8,
    },
    Inode {
        inode: u8,
        mode: u16,
        links: u8,
        size: u16,
        flags: u8,
        byte: u8,
        value: u8,
    },
    Raw {
        tag: u8,
        words: [u32; 3],
        length: u8,
    },
}

const NAMES: [&[u8]; 8] = [
    b"large", b"sub", b"last", b"a", b"b", b"short", b".", b"x/y",
];

impl Record {
    fn encode(self, into: &mut Vec<u8>) {
        let number = |inode: u8| match inode {
            0 => 2_u32,
            inode => u32::from(inode % 40) + 10,
        };
        let mut value = Vec::new();
        let tag = match self {
            Self::Add {
                inode,
                logical,
                blocks,
                physical,
            } => {
                value.extend(number(inode).to_le_bytes());
                value.extend(u32::from(logical).to_le_bytes());
                value.extend((blocks & 0x800F).to_le_bytes());
                value.extend([0, 0]);
                value.extend(u32::from(physical % 5200).to_le_bytes());
                ADD_RANGE
            }
            Self::Remove {
                inode,
                logical,
                blocks,
            } => {
                value.extend(number(inode).to_le_bytes());
                value.extend(u32::from(logical).to_le_bytes());
                value.extend(u32::from(blocks).to_le_bytes());
                DEL_RANGE
            }
            Self::Name {
                kind,
                parent,
                inode,
                name,
            } => {
                value.extend(number(parent).to_le_bytes());
                value.extend(number(inode).to_le_bytes());
                value.extend(NAMES[usize::from(name) % NAMES.len()]);
                [CREAT, LINK, UNLINK][usize::from(kind) % 3]
            }
            Self::Inode {
                inode,
                mode,
                links,
                size,
                flags,
                byte,
                value: other,
            } => {
                value.extend(number(inode).to_le_bytes());
                let mut fields = [0; INODE_BYTES];
                let kinds = [0x8000, 0x4000, 0xA000, 0x1000];
                let mode = kinds[usize::from(mode) % 4] | mode >> 4 & 0x1FF;
                fields[..2].copy_from_slice(&mode.to_le_bytes());
                fields[4..6].copy_from_slice(&size.to_le_bytes());
                fields[0x1A] = links % 4;
                // Mostly with extents.
                fields[0x22] = if flags == 0 { 0 } else { 8 };
                fields[0x28..0x2A].copy_from_slice(&0xF30A_u16.to_le_bytes());
                fields[0x2C] = 4;
                fields[0x80] = 32;
                fields[usize::from(byte) % INODE_BYTES] ^= other;
                value.extend(fields);
                INODE
            }
            Self::Raw { tag, words, length } => {
                let bytes = words.iter().flat_map(|word| word.to_le_bytes());
                value.extend(bytes.cycle().take(length.into()));
                into.extend(u16::from(tag % 16).to_le_bytes());
                into.extend((value.len() as u16).to_le_bytes());
                into.extend(value);
                return;
            }
        };
        into.extend(tag.to_le_bytes());
        into.extend((value.len() as u16).to_le_bytes());
        into.extend(value);
    }
}

struct Input(Vec<Vec<Record>>);

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(from: &mut Unstructured<'a>) -> arbitrary::Result<Self> {
        let mut commits = Vec::new();
        while commits.len() < 4 && !from.is_empty() {
            commits.push(list(from, 12)?);
        }
        Ok(Self(commits))
    }
}

/// A commit in one block, or in several if a record ends one.
fn encode(records: &[Record], is_first: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if is_first {
        bytes.extend(HEAD.to_le_bytes());
        bytes.extend(8_u16.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(PLACE.transaction.to_le_bytes());
    }
    let mut record_bytes = Vec::new();
    for record in records {
        record_bytes.clear();
        record.encode(&mut record_bytes);
        // A tag for the padding, or the tail, has room behind it.
        let left = BLOCK - bytes.len() % BLOCK;
        if record_bytes.len() + 4 > left {
            bytes.extend(PAD.to_le_bytes());
            bytes.extend((left as u16 - 4).to_le_bytes());
            bytes.resize(bytes.len() + left - 4, 0);
        }
        bytes.extend(&record_bytes);
    }
    let left = BLOCK - bytes.len() % BLOCK;
    if left < 12 {
        bytes.extend(PAD.to_le_bytes());
        bytes.extend((left as u16 - 4).to_le_bytes());
        bytes.resize(bytes.len() + left - 4, 0);
    }
    let left = BLOCK - bytes.len() % BLOCK;
    bytes.extend(TAIL.to_le_bytes());
    bytes.extend((left as u16 - 4).to_le_bytes());
    bytes.extend(PLACE.transaction.to_le_bytes());
    let sum = crc32c(0, &bytes);
    bytes.extend(sum.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

pub(crate) fn target(data: &[u8]) {
    let Some(Input(commits)) = parse(data) else {
        return;
    };
    let image = Arc::new(FAST_COMMIT.image.snapshot());
    let mut used = 0;
    for (number, records) in commits.iter().enumerate() {
        let bytes = encode(records, number == 0);
        if used + bytes.len() > PLACE.blocks * BLOCK {
            break;
        }
        put(&image, PLACE.offset + used as u64, &bytes);
        used += bytes.len();
    }
    let opened = extant_ext4::Filesystem::open(image.clone(), options());
    let Some(filesystem) = named(opened) else {
        return;
    };
    if let Some(root) = named(filesystem.root()) {
        walk(&root);
    }
    named(filesystem.close()).expect("memory does not fail");
    let report = report(&image).expect("it is a file system");
    assert!(report.is_clean(), "{report}");
}

fn put(image: &MemoryDevice, offset: u64, bytes: &[u8]) {
    let written = image.write_at(bytes, offset, Persistence::Cached);
    written.expect("inside the journal");
}
