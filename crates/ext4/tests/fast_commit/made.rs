//! Fast commits made record by record, on an image that our engine left in use.

use std::fs;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice, MemoryOptions, Persistence};
use extant_ext4::{FileType, Filesystem, InodeNumber, NewKind, NewNode, Node, Options};
use extant_jbd2::{JournalLocation, Recovery, Run, Sequence};
use extant_ondisk::ext4::extent::{ExtentKind, LeafEntry};
use extant_ondisk::ext4::fast_commit::{Change, CommitWriter, NameChange, Position};
use extant_ondisk::ext4::inode::{InodeFlags, Mode};
use extant_ondisk::ext4::{Inode, Layout, LogicalBlock, PhysicalBlock, Superblock};
use extant_ondisk::jbd2::JournalSuperblock;
use extant_space::SpaceFile;
use extant_testkit::command::{text, tool};
use extant_testkit::workdir::Workdir;

/// A file system in use, with its journal found.
pub struct Made {
    pub device: MemoryDevice,
    pub layout: Layout,
    place: JournalLocation,
    next: Sequence,
    area: std::ops::Range<u32>,
    /// Blocks of the area that have commits.
    used: u32,
}

pub const MKFS: &str = "-t ext4 -O fast_commit -b 1024 -J size=4 -N 2048";

pub fn node(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: 0o755,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// Makes a file system of `mebibytes` MiB by mke2fs with `options`.
pub fn mke2fs(options: &str, mebibytes: u64) -> MemoryDevice {
    MemoryDevice::from_bytes(&extant_testkit::mke2fs(options, mebibytes << 20))
}

/// The same device with larger atomic writes: superblocks have 1,024 bytes.
pub fn in_blocks_of(logical_block: u32, device: &MemoryDevice) -> MemoryDevice {
    let bytes = device.to_vec();
    let options = MemoryOptions {
        logical_block,
        ..MemoryOptions::new(bytes.len() as u64)
    };
    let device = MemoryDevice::with_options(options);
    device.write_at(&bytes, 0, Persistence::Fua).unwrap();
    device
}

impl Made {
    /// An image on which `prepare` worked, and was synced, and then the power went.
    pub fn new(prepare: impl FnOnce(&Node)) -> Self {
        Self::of(MKFS, prepare)
    }

    pub fn of(mkfs: &str, prepare: impl FnOnce(&Node)) -> Self {
        let device = Arc::new(mke2fs(mkfs, 24));
        let fs = Filesystem::open(device.clone(), Options::default()).unwrap();
        prepare(&fs.root().unwrap());
        fs.sync().unwrap();
        Self::left(device.snapshot())
    }

    /// A device that was left in use.
    pub fn left(device: MemoryDevice) -> Self {
        let layout = layout_of(&device);
        let place = journal_place(&device);
        let shared = Arc::new(device.snapshot());
        let recovery = Recovery::read(shared, place.clone()).unwrap();
        assert!(recovery.is_needed(), "the log is empty");
        let next = recovery.report().next;
        let first = place.runs(0, 1).next().unwrap().first;
        let mut block = vec![0; layout.block_bytes() as usize];
        let at = first.0 << layout.block_bits();
        device.read_at(&mut block, at).unwrap();
        let area = JournalSuperblock::parse(&block).unwrap().fast_commits();
        assert!(!area.is_empty(), "no place for fast commits");
        Self {
            device,
            layout,
            place,
            next,
            area,
            used: 0,
        }
    }

    /// Adds a commit of `changes`; returns its blocks.
    pub fn commit(&mut self, changes: &[Change<'_>]) -> u32 {
        let position = match self.used {
            0 => Position::First,
            _ => Position::Later,
        };
        let mut writer = CommitWriter::new(self.layout.block_bytes(), self.next, position);
        changes.iter().for_each(|change| writer.push(change));
        let bytes = writer.finish();
        let size = self.layout.block_bytes() as usize;
        for block in bytes.chunks_exact(size) {
            let at = self.offset(self.used);
            self.device.write_at(block, at, Persistence::Fua).unwrap();
            self.used += 1;
        }
        (bytes.len() / size) as u32
    }

    /// The first byte of a block for fast commits.
    pub fn offset(&self, block: u32) -> u64 {
        let at = self.area.start + block;
        assert!(at < self.area.end, "the commits do not fit");
        self.place.runs(at, 1).next().unwrap().first.0 << self.layout.block_bits()
    }

    /// The bytes of an inode for a record.
    pub fn inode(&self, inode: &Inode) -> Vec<u8> {
        let mut bytes = vec![0; self.layout.inode_bytes().into()];
        inode.write(&mut bytes, InodeNumber(1), &self.layout, None);
        bytes.truncate(128 + usize::from(inode.extra_isize()));
        bytes
    }

    /// An inode of a file with extents.
    pub fn file(&self, size: u64, generation: u32) -> Inode {
        let mut inode = Inode::zeroed(32);
        inode.set_mode(Mode::new(FileType::Regular, 0o640));
        inode.set_links(1);
        inode.set_flags(InodeFlags::EXTENTS);
        inode.set_generation(generation);
        inode.set_size_bytes(size, &self.layout);
        inode
    }

    /// Free blocks, from the end of the device.
    pub fn free(&self, blocks: u64) -> PhysicalBlock {
        PhysicalBlock(self.layout.blocks() - 200 - blocks)
    }

    pub fn fill(&self, start: PhysicalBlock, blocks: u64, value: u8) {
        let bits = self.layout.block_bits();
        let data = vec![value; (blocks << bits) as usize];
        let at = start.0 << bits;
        self.device.write_at(&data, at, Persistence::Fua).unwrap();
    }
}

pub fn name(change: NameChange, inode: InodeNumber, name: &[u8]) -> Change<'_> {
    Change::Name {
        change,
        parent: InodeNumber::ROOT,
        inode,
        name,
    }
}

pub fn extent(logical: u32, physical: PhysicalBlock, blocks: u16, kind: ExtentKind) -> LeafEntry {
    LeafEntry {
        logical: LogicalBlock(logical),
        physical,
        blocks,
        kind,
    }
}

fn layout_of(device: &MemoryDevice) -> Layout {
    let mut bytes = vec![0; Superblock::BYTES];
    device.read_at(&mut bytes, Superblock::OFFSET).unwrap();
    *Superblock::parse(&bytes).unwrap().layout()
}

/// Location of the journal.
pub fn journal_place(device: &MemoryDevice) -> JournalLocation {
    let block_bytes = layout_of(device).block_bytes();
    let work = Workdir::new();
    let path = work.path().join("image");
    fs::write(&path, device.to_vec()).unwrap();
    let mut debugfs = tool("debugfs");
    let answer = text(debugfs.args(["-R", "dump_extents -l <8>"]).arg(&path));
    let answer = answer.unwrap_or_else(|failure| panic!("{failure}"));
    let runs: Vec<Run> = answer.lines().filter_map(run_of).collect();
    JournalLocation::new(block_bytes, &runs).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// A line such as ` 0/ 0   1/  1     0 -  1023  8322 -  9345   1024`.
fn run_of(line: &str) -> Option<Run> {
    let words: Vec<&str> = line
        .split(|letter: char| !letter.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .collect();
    let [_, _, _, _, _, _, first, _, blocks] = words[..] else {
        return None;
    };
    Some(Run {
        first: PhysicalBlock(first.parse().ok()?),
        blocks: blocks.parse().ok()?,
    })
}

/// A regular file with `blocks` blocks of `value`.
pub fn file(directory: &Node, name: &str, blocks: usize, value: u8) -> InodeNumber {
    let node = directory
        .create(name.as_bytes(), &node(NewKind::Regular))
        .unwrap();
    let data = vec![value; blocks * 1024];
    node.file().unwrap().write_at(&data, 0).unwrap();
    node.number()
}
