//! Committed blocks that are not checkpointed, with their latest contents.
//!
//! Readers look up from any thread; only the holder of the journal's state changes the table. A
//! block is removed after it was written in place: a reader that misses here reads the device.

use std::collections::HashMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use extant_ondisk::ext4::PhysicalBlock;

use crate::sync::{RwLock, read, write};

/// A power of two.
const SHARDS: usize = 16;

/// Counts transactions since the journal was opened.
pub(crate) type Ordinal = u64;

#[derive(Clone)]
pub(crate) struct Uncheckpointed {
    pub(crate) contents: Arc<[u8]>,
    /// The transaction that they are of.
    pub(crate) ordinal: Ordinal,
}

type Shard = HashMap<PhysicalBlock, Uncheckpointed>;

pub(crate) struct Table {
    shards: Box<[CachePadded<RwLock<Shard>>]>,
}

impl Table {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| CachePadded::new(RwLock::new(HashMap::new())));
        Self {
            shards: shards.collect(),
        }
    }

    fn shard(&self, block: PhysicalBlock) -> &RwLock<Shard> {
        // Neighbours are asked for together.
        &self.shards[(block.0 >> 4) as usize % SHARDS]
    }

    pub(crate) fn get(&self, block: PhysicalBlock) -> Option<Uncheckpointed> {
        read(self.shard(block)).get(&block).cloned()
    }

    /// Puts in newer contents, and returns the transaction that the older ones were of.
    pub(crate) fn insert(
        &self,
        block: PhysicalBlock,
        uncheckpointed: Uncheckpointed,
    ) -> Option<Ordinal> {
        let before = write(self.shard(block)).insert(block, uncheckpointed);
        before.map(|before| before.ordinal)
    }

    /// Takes a block out, and returns the transaction that its contents were of.
    pub(crate) fn remove(&self, block: PhysicalBlock) -> Option<Ordinal> {
        let removed = write(self.shard(block)).remove(&block);
        removed.map(|removed| removed.ordinal)
    }

    /// The blocks of all transactions up to `last`, sorted.
    pub(crate) fn up_to(&self, last: Ordinal) -> Vec<PhysicalBlock> {
        let mut blocks = Vec::new();
        for shard in &self.shards {
            let shard = read(shard);
            let old = shard.iter().filter(|(_, entry)| entry.ordinal <= last);
            blocks.extend(old.map(|(block, _)| *block));
        }
        blocks.sort_unstable();
        blocks
    }
}
