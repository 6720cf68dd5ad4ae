//! The longest run that the file system under a file can allocate, which the
//! fragmentation score measures against.
//!
//! As in `e4defrag`: of ext4 the groups and flex groups are read from the superblock, when the
//! device may be read (root); else they are those that `mke2fs` makes by default.
//!
//! Format: the kernel's Documentation/filesystems/ext4/super.rst.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use extant_space::MapSummary;

const SUPERBLOCK_OFFSET: u64 = 1024;
const SUPERBLOCK_BYTES: usize = 1024;
const MAGIC: u16 = 0xef53;
const INCOMPAT_FLEX_BG: u32 = 0x200;

const S_BLOCKS_PER_GROUP: usize = 0x20;
const S_MAGIC: usize = 0x38;
const S_FEATURE_INCOMPAT: usize = 0x60;
const S_LOG_GROUPS_PER_FLEX: usize = 0x174;

/// Larger "blocks" are transfer sizes of network file systems.
const BLOCK_BYTES_MAX: u64 = 64 << 10;

/// Empty summaries for files; the answer for the last device is kept.
#[derive(Debug, Default)]
pub(super) struct Geometry {
    last: Option<(u64, Option<u64>)>,
}

impl Geometry {
    /// The empty summary that scores the file at `path` as its file system asks for.
    pub(super) fn summary_for(&mut self, path: &Path) -> MapSummary {
        let Ok(metadata) = fs::metadata(path) else {
            return MapSummary::default();
        };
        let block_bytes = match metadata.blksize() {
            bytes @ 512..=BLOCK_BYTES_MAX => bytes,
            _ => 4096,
        };
        let device = metadata.dev();
        let run_blocks = match self.last {
            Some((last, run_blocks)) if last == device => run_blocks,
            _ => read_run_blocks(device),
        };
        self.last = Some((device, run_blocks));
        match run_blocks {
            Some(blocks) => MapSummary::new(block_bytes, blocks),
            None => MapSummary::for_block_size(block_bytes),
        }
    }
}

/// Blocks of the flex groups of the ext4 on `device`, `None` when that cannot be known.
fn read_run_blocks(device: u64) -> Option<u64> {
    let (major, minor) = (major(device), minor(device));
    let uevent = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/uevent")).ok()?;
    let name = uevent
        .lines()
        .find_map(|line| line.strip_prefix("DEVNAME="))?;
    let mut superblock = [0; SUPERBLOCK_BYTES];
    let file = File::open(Path::new("/dev").join(name)).ok()?;
    file.read_exact_at(&mut superblock, SUPERBLOCK_OFFSET)
        .ok()?;
    run_blocks(&superblock)
}

fn run_blocks(superblock: &[u8; SUPERBLOCK_BYTES]) -> Option<u64> {
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| superblock[at + i]));
    let magic = u16::from_le_bytes([superblock[S_MAGIC], superblock[S_MAGIC + 1]]);
    if magic != MAGIC {
        return None;
    }
    let group = u64::from(word(S_BLOCKS_PER_GROUP));
    if word(S_FEATURE_INCOMPAT) & INCOMPAT_FLEX_BG == 0 {
        return Some(group);
    }
    // More than the group count of any file system is damage, not a size.
    let log = superblock[S_LOG_GROUPS_PER_FLEX];
    (log < 32).then(|| group << log)
}

/// As glibc's `major()` and `minor()` take a device number apart.
fn major(device: u64) -> u64 {
    ((device >> 8) & 0xfff) | ((device >> 32) & !0xfff)
}

fn minor(device: u64) -> u64 {
    (device & 0xff) | ((device >> 12) & !0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields as `mkfs.ext4` writes them for 4 KiB blocks.
    fn superblock() -> [u8; SUPERBLOCK_BYTES] {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes[S_MAGIC..][..2].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[S_BLOCKS_PER_GROUP..][..4].copy_from_slice(&32_768u32.to_le_bytes());
        bytes[S_FEATURE_INCOMPAT..][..4].copy_from_slice(&0x2c2u32.to_le_bytes());
        bytes[S_LOG_GROUPS_PER_FLEX] = 4;
        bytes
    }

    #[test]
    fn run_of_a_default_file_system_is_a_flex_group() {
        let mut bytes = superblock();
        assert_eq!(run_blocks(&bytes), Some(524_288));
        bytes[S_FEATURE_INCOMPAT + 1] = 0;
        assert_eq!(run_blocks(&bytes), Some(32_768));
    }

    #[test]
    fn foreign_or_damaged_superblock_gives_no_geometry() {
        let mut bytes = superblock();
        bytes[S_LOG_GROUPS_PER_FLEX] = 200;
        assert_eq!(run_blocks(&bytes), None);
        bytes[S_MAGIC] = 0;
        assert_eq!(run_blocks(&bytes), None);
    }

    #[test]
    fn device_numbers_come_apart_as_in_glibc() {
        assert_eq!((major(0x0801), minor(0x0801)), (8, 1));
        assert_eq!((major(0x10_0103), minor(0x10_0103)), (1, 0x103));
    }
}
