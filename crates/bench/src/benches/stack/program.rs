//! The test program of "ASSIGN_RANGE" (docs/background.md), reimplemented: allocates a file at
//! once, then writes every block of it, each far from the one before.
//!
//! A pass writes one block of each stride, from the start of the file to its end, and syncs. The
//! first pass writes the last block of each stride, the next pass the block before it, and so on.
//! No write is adjacent to an earlier one's end, so a layer that allocates per write fragments the
//! file.

use std::time::{Duration, Instant};

use anyhow::Result;

const BLOCK: usize = 4096;
const STRIDE: usize = 16 * BLOCK;

/// A block in memory that direct I/O takes.
#[repr(align(4096))]
pub(super) struct Block([u8; BLOCK]);

impl Block {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The file that the program works on.
pub(super) trait ImageFile {
    fn allocate(&self, bytes: u64) -> Result<()>;
    fn write(&self, block: &Block, offset: u64) -> Result<()>;
    fn sync(&self) -> Result<()>;
}

/// Duration of the writes.
pub(super) struct Times {
    /// Total.
    pub(super) total: Duration,
    /// Part of the total in syncs.
    pub(super) syncs: Duration,
    /// The write that took longest.
    pub(super) slowest: Duration,
}

/// Gives the file its space, and returns how long that took.
pub(super) fn allocate(target: &impl ImageFile, bytes: u64) -> Result<Duration> {
    let start = Instant::now();
    target.allocate(bytes)?;
    Ok(start.elapsed())
}

/// Writes every block.
pub(super) fn write(target: &impl ImageFile, bytes: u64) -> Result<Times> {
    let block = Block([0x5A; BLOCK]);
    let (mut syncs, mut slowest) = (Duration::ZERO, Duration::ZERO);
    let start = Instant::now();
    for first in (0..STRIDE).step_by(BLOCK).rev() {
        for offset in (first as u64..bytes).step_by(STRIDE) {
            let begun = Instant::now();
            target.write(&block, offset)?;
            slowest = slowest.max(begun.elapsed());
        }
        let begun = Instant::now();
        target.sync()?;
        syncs += begun.elapsed();
    }
    Ok(Times {
        total: start.elapsed(),
        syncs,
        slowest,
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Offsets of the writes since the last sync; and before, pass by pass.
    #[derive(Default)]
    struct Noted {
        pass: RefCell<Vec<u64>>,
        passes: RefCell<Vec<Vec<u64>>>,
    }

    impl ImageFile for Noted {
        fn allocate(&self, _: u64) -> Result<()> {
            Ok(())
        }

        fn write(&self, _: &Block, offset: u64) -> Result<()> {
            self.pass.borrow_mut().push(offset);
            Ok(())
        }

        fn sync(&self) -> Result<()> {
            self.passes.borrow_mut().push(self.pass.take());
            Ok(())
        }
    }

    #[test]
    fn passes_begin_at_the_end_of_the_stride_and_write_every_block_once() {
        let noted = Noted::default();
        write(&noted, 2 * STRIDE as u64).unwrap();
        let passes = noted.passes.take();
        assert_eq!(passes.len(), 16);
        assert_eq!(passes[0], [61440, 61440 + 65536]);
        assert_eq!(passes[15], [0, 65536]);
        let mut all = passes.concat();
        all.sort_unstable();
        assert!(
            all.iter()
                .copied()
                .eq((0..2 * STRIDE as u64).step_by(BLOCK))
        );
    }
}
