//! The owner of each block, as the threads of a test see it.

use std::sync::atomic::{AtomicBool, Ordering};

use extant_mballoc::{Block, BlockRange};

pub struct Claims {
    taken: Vec<AtomicBool>,
}

impl Claims {
    /// For blocks below `end`.
    pub fn new(end: Block) -> Self {
        Self {
            taken: (0..end.0).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// Blocks that a thread got: no other thread has them.
    pub fn take(&self, range: BlockRange) {
        for block in range.start().0..range.end().0 {
            let before = self.taken[block as usize].swap(true, Ordering::Relaxed);
            assert!(!before, "{block} of {range} is taken");
        }
    }

    /// Blocks that a thread is about to free: it has them.
    pub fn give(&self, range: BlockRange) {
        for block in range.start().0..range.end().0 {
            let before = self.taken[block as usize].swap(false, Ordering::Relaxed);
            assert!(before, "{block} of {range} is free");
        }
    }
}
