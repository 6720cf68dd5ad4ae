//! The program of ASSIGN_RANGE (docs/background.md): every block of a file, far from the one
//! before, with a sync after each pass.

use extant_ext4::File;
use extant_space::{Result, SpaceFile, SyncMode};

use crate::tower::BLOCK;

/// Blocks from one write to the next.
const STRIDE: u64 = 16;
/// Passes that write everything.
pub const PASSES: u64 = STRIDE;

/// Writes a block of each stride; the first pass the last one, the last pass the first.
pub fn pass(file: &File, bytes: u64, pass: u64) -> Result<()> {
    let first = (STRIDE - 1 - pass) * BLOCK;
    for offset in (first..bytes).step_by((STRIDE * BLOCK) as usize) {
        file.write_at(&block(offset), offset)?;
    }
    Ok(())
}

/// All passes.
pub fn run(file: &File, bytes: u64) -> Result<()> {
    for number in 0..PASSES {
        pass(file, bytes, number)?;
        file.sync(SyncMode::All)?;
    }
    Ok(())
}

/// Checks that the file holds the data of `passes` passes, and zeros elsewhere; blocks of the pass
/// after them may be either.
#[track_caller]
pub fn assert_holds(file: &File, bytes: u64, passes: u64) {
    let mut found = vec![0; BLOCK as usize];
    for offset in (0..bytes).step_by(BLOCK as usize) {
        assert_eq!(file.read_at(&mut found, offset).unwrap(), found.len());
        let in_pass = STRIDE - 1 - offset / BLOCK % STRIDE;
        let is_written = found == block(offset);
        let is_zero = found.iter().all(|&byte| byte == 0);
        let is_right = match in_pass.cmp(&passes) {
            std::cmp::Ordering::Less => is_written,
            std::cmp::Ordering::Equal => is_written || is_zero,
            std::cmp::Ordering::Greater => is_zero,
        };
        assert!(is_right, "block at {offset} after {passes} passes");
    }
}

/// A block that belongs to `offset` and to no other.
fn block(offset: u64) -> Vec<u8> {
    let words = BLOCK as usize / 8;
    (offset + 1).to_le_bytes().repeat(words)
}
