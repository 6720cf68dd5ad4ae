//! Small file systems of mke2fs on a device that was full of something else before.

use std::fs;

use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ondisk::jbd2::JournalSuperblock;
use extant_testkit::command::{run, tool};
use extant_testkit::workdir::Workdir;

/// Contents of free blocks, which no file may ever show.
pub const OLD: u8 = 0xA5;

/// Format of a file system.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Options of mke2fs.
    pub options: &'static str,
    pub kibibytes: usize,
    pub commits: Commits,
    /// Blocks of the log, where it is to be shorter than mke2fs makes it: it wraps sooner.
    pub log_blocks: Option<u32>,
}

/// How a sync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commits {
    Full,
    /// By fast-commit records if possible. They record names, not directories: a replay sets new
    /// times on these.
    Fast,
}

/// The formats that differ in the writes and their order.
pub const PLAIN: Format = Format {
    options: "-t ext4 -b 1024 -J size=1 -N 256",
    kibibytes: 4096,
    commits: Commits::Full,
    log_blocks: Some(512),
};
/// Orphans in a list, no checksums, old descriptors.
pub const OLD_FEATURES: Format = Format {
    options: "-t ext4 -b 1024 -J size=1 -N 256 -O ^orphan_file,^metadata_csum,^64bit,^flex_bg,uninit_bg",
    kibibytes: 4096,
    commits: Commits::Full,
    log_blocks: Some(512),
};
/// Many groups, so that every change touches many bitmaps; and features that no file uses.
pub const MANY_GROUPS: Format = Format {
    options: "-t ext4 -b 1024 -g 512 -J size=1 -N 512 -O ^orphan_file,casefold,encrypt,verity",
    kibibytes: 5120,
    commits: Commits::Full,
    log_blocks: Some(512),
};
pub const BIG_BLOCKS: Format = Format {
    options: "-t ext4 -b 4096 -J size=4 -N 256",
    kibibytes: 12_288,
    commits: Commits::Full,
    log_blocks: Some(512),
};

/// Block maps, whose indirect blocks hold 256 numbers.
pub const MAPS: Format = Format {
    options: "-t ext3 -b 1024 -J size=1 -N 256",
    kibibytes: 4096,
    commits: Commits::Full,
    log_blocks: Some(512),
};
pub const BIG_MAPS: Format = Format {
    options: "-t ext3 -b 4096 -J size=4 -N 256",
    kibibytes: 12_288,
    commits: Commits::Full,
    log_blocks: Some(512),
};

/// Writes fast commits.
pub const FAST: Format = Format {
    options: "-t ext4 -b 1024 -J size=1 -N 256 -O fast_commit",
    kibibytes: 5120,
    commits: Commits::Fast,
    // Its end is where the fast commits are.
    log_blocks: None,
};

/// Without a journal.
pub const BARE: Format = Format {
    options: "-t ext4 -b 1024 -N 256 -O ^has_journal",
    kibibytes: 4096,
    commits: Commits::Full,
    log_blocks: None,
};

impl Format {
    /// Makes the file system by mke2fs; all other bytes are [`OLD`].
    #[track_caller]
    pub fn make(&self) -> MemoryDevice {
        let work = Workdir::new();
        let path = work.path().join("image");
        fs::write(&path, vec![OLD; self.kibibytes << 10]).unwrap();
        run(tool("mke2fs")
            .args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=1"])
            .args(self.options.split_whitespace())
            .arg(&path))
        .unwrap_or_else(|failure| panic!("{failure}"));
        let bytes = fs::read(&path).unwrap();
        let device = MemoryDevice::from_bytes(&bytes);
        if let Some(blocks) = self.log_blocks {
            shorten_log(&device, &bytes, blocks);
        }
        device
    }
}

/// Makes the log end after `blocks` of the blocks it has.
fn shorten_log(device: &MemoryDevice, bytes: &[u8], blocks: u32) {
    let found = bytes.chunks(1024).enumerate().find_map(|(number, block)| {
        let superblock = JournalSuperblock::parse(block).ok()?;
        Some((number, superblock))
    });
    let (number, mut superblock) = found.expect("a journal");
    assert!(superblock.blocks() >= blocks);
    superblock.edit(|raw| raw.s_maxlen.set(blocks)).unwrap();
    device
        .write_at(
            superblock.as_bytes(),
            number as u64 * 1024,
            Persistence::Cached,
        )
        .unwrap();
}
