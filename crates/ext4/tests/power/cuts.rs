//! The states that cuts leave, with one thing taken for granted.
//!
//! The superblock is two sectors of 512 bytes with one checksum, and is written past the journal: torn between them
//! it is lost, for the kernel as well, and e2fsck takes a copy. Disks are trusted here, as they are there, to
//! write these 1024 bytes as one. Everything else may be torn at any sector.

use extant_blockdev::simulation::{CrashOptions, CrashState, WriteLog};
use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_ondisk::ext4::Superblock;

/// Calls `visit` with every state, position by position.
pub fn for_each(log: &WriteLog, options: CrashOptions, mut visit: impl FnMut(CrashState)) {
    let mut cursor = log.cursor();
    loop {
        if cursor.is_crash_point() {
            for state in cursor.crash_states(options) {
                if !is_whole(&state.image) {
                    let from = match state.index() % 2 {
                        0 => cursor.durable(),
                        _ => cursor.image(),
                    };
                    copy_superblock(&from, &state.image);
                }
                visit(state);
            }
        }
        if cursor.advance().is_none() {
            break;
        }
    }
}

fn superblock(image: &MemoryDevice) -> [u8; Superblock::BYTES] {
    let mut bytes = [0; Superblock::BYTES];
    image.read_at(&mut bytes, Superblock::OFFSET).unwrap();
    bytes
}

fn is_whole(image: &MemoryDevice) -> bool {
    Superblock::parse(&superblock(image)).is_ok()
}

fn copy_superblock(from: &MemoryDevice, to: &MemoryDevice) {
    to.write_at(&superblock(from), Superblock::OFFSET, Persistence::Cached)
        .unwrap();
}
