//! Single structures, and recomputing their checksums after damage.
//!
//! Checksums are computed here from docs/formats, so that a mistake in `extant_ondisk` cannot hide
//! itself.

use std::fmt;

use extant_blockdev::{Device, MemoryDevice, Persistence};

use super::crc32c;

/// A sort of structure that has a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Descriptor,
    BlockBitmap,
    InodeBitmap,
    Inode,
    ExtentNode,
    DirectoryLeaf,
    DirectoryIndex,
    AttributeBlock,
    OrphanBlock,
    JournalSuperblock,
    JournalDescriptor,
    JournalCommit,
    JournalCopy,
}

/// Its location, and the inputs of its checksum.
#[derive(Clone, Copy)]
pub struct Structure {
    pub kind: Kind,
    pub offset: usize,
    pub length: usize,
    /// The sum that its own begins with.
    seed: u32,
    /// Number of the group, if it belongs to one; of a copy in the journal its tag.
    beside: usize,
}

impl fmt::Display for Structure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at byte {}", self.kind, self.offset)
    }
}

/// A file system with `metadata_csum` and `64bit`, and a journal with checksums v3.
pub struct Sealed {
    bytes: Vec<u8>,
    block: usize,
    seed: u32,
    pub found: Vec<Structure>,
}

const EXTENTS: u32 = 0x8_0000;
const INDEX: u32 = 0x1000;
const JOURNAL: u32 = 8;

impl Sealed {
    pub fn new(image: &MemoryDevice) -> Self {
        let bytes = image.to_vec();
        let mut sealed = Self {
            block: 1024 << u32_at(&bytes, 1024 + 0x18),
            seed: match u32_at(&bytes, 1024 + 0x60) & 0x2000 {
                0 => crc32c(u32::MAX, &bytes[1024 + 0x68..][..16]),
                _ => u32_at(&bytes, 1024 + 0x270),
            },
            found: Vec::new(),
            bytes,
        };
        sealed.groups();
        sealed
    }

    fn add(&mut self, kind: Kind, offset: usize, length: usize, seed: u32, beside: usize) {
        self.found.push(Structure {
            kind,
            offset,
            length,
            seed,
            beside,
        });
    }

    fn groups(&mut self) {
        let superblock = |at: usize| u32_at(&self.bytes, 1024 + at);
        let first = superblock(0x14);
        let per_group = superblock(0x20);
        let (inodes_per_group, orphans) = (superblock(0x28), superblock(0x280));
        let inode_bytes = u16_at(&self.bytes, 1024 + 0x58).into();
        let groups = (superblock(4) - first).div_ceil(per_group);
        let (block, seed) = (self.block, self.seed);
        for group in 0..groups {
            let descriptor = (first as usize + 1) * block + group as usize * 64;
            let place = |at| u32_at(&self.bytes, descriptor + at) as usize * block;
            let (blocks, inodes, table) = (place(0), place(4), place(8));
            let group_seed = crc32c(seed, &group.to_le_bytes());
            self.add(Kind::Descriptor, descriptor, 64, group_seed, 0);
            self.add(
                Kind::BlockBitmap,
                blocks,
                per_group as usize / 8,
                seed,
                descriptor,
            );
            self.add(
                Kind::InodeBitmap,
                inodes,
                inodes_per_group as usize / 8,
                seed,
                descriptor,
            );
            for index in 0..inodes_per_group {
                let number = group * inodes_per_group + index + 1;
                let at = table + index as usize * inode_bytes;
                self.inode(number, at, inode_bytes, number == orphans);
            }
        }
    }

    fn inode(&mut self, number: u32, at: usize, length: usize, is_orphans: bool) {
        let mode = u16_at(&self.bytes, at);
        if mode == 0 {
            return;
        }
        let generation = u32_at(&self.bytes, at + 0x64);
        let seed = crc32c(self.seed, &number.to_le_bytes());
        let seed = crc32c(seed, &generation.to_le_bytes());
        self.add(Kind::Inode, at, length, seed, 0);
        let attributes = u32_at(&self.bytes, at + 0x68) as usize * self.block;
        if attributes != 0 {
            let number = (attributes / self.block) as u64;
            let seed = crc32c(self.seed, &number.to_le_bytes());
            self.add(Kind::AttributeBlock, attributes, self.block, seed, 0);
        }
        let flags = u32_at(&self.bytes, at + 0x20);
        if flags & EXTENTS == 0 {
            return;
        }
        let mut blocks = Vec::new();
        self.node(at + 0x28, seed, &mut blocks);
        for (index, &start) in blocks.iter().enumerate() {
            match mode >> 12 {
                _ if is_orphans => {
                    let number = (start / self.block) as u64;
                    let seed = crc32c(seed, &number.to_le_bytes());
                    self.add(Kind::OrphanBlock, start, self.block, seed, 0);
                }
                4 => {
                    let kind = if index == 0 && flags & INDEX != 0 {
                        Kind::DirectoryIndex
                    } else {
                        Kind::DirectoryLeaf
                    };
                    self.add(kind, start, self.block, seed, 0);
                }
                _ => {}
            }
        }
        if number == JOURNAL {
            self.journal(&blocks);
        }
    }

    /// Notes the nodes below one, and finds the blocks that its leaves name.
    fn node(&mut self, at: usize, seed: u32, blocks: &mut Vec<usize>) {
        let (count, depth) = (u16_at(&self.bytes, at + 2), u16_at(&self.bytes, at + 6));
        for entry in (1..=usize::from(count)).map(|index| at + 12 * index) {
            if depth > 0 {
                let child = u32_at(&self.bytes, entry + 4) as usize * self.block;
                self.add(Kind::ExtentNode, child, self.block, seed, 0);
                self.node(child, seed, blocks);
                continue;
            }
            let start = u32_at(&self.bytes, entry + 8) as usize;
            let count = usize::from(u16_at(&self.bytes, entry + 4)).min(32_768);
            blocks.extend((start..start + count).map(|block| block * self.block));
        }
    }

    fn journal(&mut self, blocks: &[usize]) {
        let place = blocks[0];
        self.add(Kind::JournalSuperblock, place, 1024, u32::MAX, 0);
        let seed = crc32c(u32::MAX, &self.bytes[place + 0x30..][..16]);
        let mut copies: Vec<(usize, u32)> = Vec::new();
        for &at in &blocks[1..] {
            let word = |byte| u32::from_be_bytes(self.bytes[at + byte..][..4].try_into().unwrap());
            if let Some((tag, sequence)) = copies.pop() {
                let seed = crc32c(seed, &sequence.to_be_bytes());
                self.add(Kind::JournalCopy, at, self.block, seed, tag);
                continue;
            }
            if word(0) != 0xC03B_3998 {
                continue;
            }
            match word(4) {
                1 => {
                    copies = self.tags(at).map(|tag| (tag, word(8))).collect();
                    copies.reverse();
                    self.add(Kind::JournalDescriptor, at, self.block, seed, 0);
                }
                2 => self.add(Kind::JournalCommit, at, self.block, seed, 0),
                5 => self.add(Kind::JournalDescriptor, at, self.block, seed, 0),
                _ => {}
            }
        }
    }

    /// The tags of a descriptor block.
    fn tags(&self, at: usize) -> impl Iterator<Item = usize> + use<> {
        let mut tags = Vec::new();
        let mut tag = at + 12;
        loop {
            let flags = u32::from_be_bytes(self.bytes[tag + 4..][..4].try_into().unwrap());
            tags.push(tag);
            if flags & 8 != 0 {
                return tags.into_iter();
            }
            tag += if flags & 2 == 0 { 32 } else { 16 };
        }
    }

    /// Writes one back to its image, changed and with a valid checksum.
    pub fn write(&self, image: &MemoryDevice, structure: &Structure, mut bytes: Vec<u8>) {
        let Structure { kind, seed, .. } = *structure;
        let end = bytes.len();
        let zeroed = |bytes: &[u8], at: usize, length: usize| {
            let mut copy = bytes.to_vec();
            copy[at..at + length].fill(0);
            crc32c(seed, &copy)
        };
        match kind {
            Kind::Descriptor => {
                let sum = zeroed(&bytes, 0x1E, 2) as u16;
                bytes[0x1E..0x20].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::BlockBitmap | Kind::InodeBitmap => {
                let sum = crc32c(seed, &bytes).to_le_bytes();
                let at = if kind == Kind::BlockBitmap { 0 } else { 2 };
                self.reseal(image, structure.beside, |descriptor| {
                    descriptor[0x18 + at..][..2].copy_from_slice(&sum[..2]);
                    descriptor[0x38 + at..][..2].copy_from_slice(&sum[2..]);
                });
            }
            Kind::Inode => {
                let has_high = end > 128 && u16_at(&bytes, 0x80) >= 4;
                bytes[0x7C..0x7E].fill(0);
                if has_high {
                    bytes[0x82..0x84].fill(0);
                }
                let sum = crc32c(seed, &bytes).to_le_bytes();
                bytes[0x7C..0x7E].copy_from_slice(&sum[..2]);
                if has_high {
                    bytes[0x82..0x84].copy_from_slice(&sum[2..]);
                }
            }
            Kind::ExtentNode => {
                let at = end / 12 * 12;
                let sum = crc32c(seed, &bytes[..at]);
                bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::DirectoryLeaf => {
                let sum = crc32c(seed, &bytes[..end - 12]);
                bytes[end - 4..].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::DirectoryIndex => {
                let most = (end - 32 - 8) / 8;
                let count = usize::from(u16_at(&bytes, 34)).min(most);
                let tail = 32 + most * 8;
                let sum = crc32c(seed, &bytes[..32 + count * 8]);
                let sum = crc32c(crc32c(sum, &bytes[tail..tail + 4]), &[0; 4]);
                bytes[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::AttributeBlock => {
                let sum = zeroed(&bytes, 0x10, 4);
                bytes[0x10..0x14].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::OrphanBlock => {
                let sum = crc32c(seed, &bytes[..end - 8]);
                bytes[end - 4..].copy_from_slice(&sum.to_le_bytes());
            }
            Kind::JournalSuperblock => {
                let sum = zeroed(&bytes, 0xFC, 4);
                bytes[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
            }
            Kind::JournalDescriptor => {
                let sum = zeroed(&bytes, end - 4, 4);
                bytes[end - 4..].copy_from_slice(&sum.to_be_bytes());
            }
            Kind::JournalCommit => {
                let sum = zeroed(&bytes, 0x10, 4);
                bytes[0x10..0x14].copy_from_slice(&sum.to_be_bytes());
            }
            Kind::JournalCopy => {
                let sum = crc32c(seed, &bytes).to_be_bytes();
                let of = |other: &&Structure| {
                    other.kind == Kind::JournalDescriptor
                        && (other.offset..other.offset + other.length).contains(&structure.beside)
                };
                let descriptor = self.found.iter().find(of).expect("a tag is in one");
                let mut tags = self.read(image, descriptor);
                let at = structure.beside - descriptor.offset + 12;
                tags[at..at + 4].copy_from_slice(&sum);
                self.write(image, descriptor, tags);
            }
        }
        put_bytes(image, structure.offset, &bytes);
    }

    pub fn read(&self, image: &MemoryDevice, structure: &Structure) -> Vec<u8> {
        let (start, sectors) = sectors_around(image, structure.offset, structure.length);
        sectors[structure.offset - start..][..structure.length].to_vec()
    }

    fn reseal(&self, image: &MemoryDevice, offset: usize, change: impl FnOnce(&mut [u8])) {
        let of = |other: &&Structure| other.offset == offset;
        let descriptor = self.found.iter().find(of).expect("one of each group");
        let mut bytes = self.read(image, descriptor);
        change(&mut bytes);
        self.write(image, descriptor, bytes);
    }
}

/// Devices read and write sectors.
fn sectors_around(image: &MemoryDevice, offset: usize, length: usize) -> (usize, Vec<u8>) {
    let start = offset / 512 * 512;
    let end = (offset + length).next_multiple_of(512);
    let mut sectors = vec![0; end - start];
    image.read_at(&mut sectors, start as u64).unwrap();
    (start, sectors)
}

pub fn put_bytes(image: &MemoryDevice, offset: usize, bytes: &[u8]) {
    let (start, mut sectors) = sectors_around(image, offset, bytes.len());
    sectors[offset - start..][..bytes.len()].copy_from_slice(bytes);
    image
        .write_at(&sectors, start as u64, Persistence::Cached)
        .unwrap();
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}
