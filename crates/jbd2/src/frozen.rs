//! Changes of a transaction, as they are committed.

use std::collections::HashSet;
use std::sync::Arc;

use extant_ondisk::ext4::PhysicalBlock;

/// The blocks of one transaction, with the contents they have at its end.
#[derive(Clone, Debug, Default)]
pub struct Frozen {
    blocks: Vec<(PhysicalBlock, Arc<[u8]>)>,
    revoked: Vec<PhysicalBlock>,
    /// Number of blocks before each barrier.
    barriers: Vec<usize>,
}

impl Frozen {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A changed block with its contents, a whole block. Each block once.
    pub fn block(&mut self, block: PhysicalBlock, contents: Arc<[u8]>) {
        self.blocks.push((block, contents));
    }

    /// Without a log, the blocks that follow are written when those before are durable.
    pub fn barrier(&mut self) {
        self.barriers.push(self.blocks.len());
    }

    /// The blocks between barriers, in order.
    pub(crate) fn stages(&self) -> impl Iterator<Item = &[(PhysicalBlock, Arc<[u8]>)]> {
        let mut start = 0;
        let ends = self.barriers.iter().copied().chain([self.blocks.len()]);
        ends.map(move |end| &self.blocks[std::mem::replace(&mut start, end)..end])
    }

    /// A block that was metadata and no longer is: its copies in the log, up to this transaction,
    /// are not replayed over its later content. A block that is also among the changed ones became
    /// metadata again; it is not revoked.
    pub fn revoke(&mut self, block: PhysicalBlock) {
        self.revoked.push(block);
    }

    /// Number of changed blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revoked.is_empty()
    }

    /// Blocks for the log.
    pub(crate) fn settle(self) -> Settled {
        let mut revoked = self.revoked;
        if !revoked.is_empty() {
            let changed: HashSet<_> = self.blocks.iter().map(|(block, _)| *block).collect();
            revoked.retain(|block| !changed.contains(block));
            revoked.sort_unstable();
            revoked.dedup();
        }
        Settled {
            blocks: self.blocks,
            revoked,
        }
    }
}

/// The same with every revoked block once, and without the changed ones.
pub(crate) struct Settled {
    pub(crate) blocks: Vec<(PhysicalBlock, Arc<[u8]>)>,
    pub(crate) revoked: Vec<PhysicalBlock>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settled_transaction_revokes_each_block_once_and_no_changed_one() {
        let mut frozen = Frozen::new();
        for block in [9, 4, 9, 7] {
            frozen.revoke(PhysicalBlock(block));
        }
        frozen.block(PhysicalBlock(7), Arc::new([0; 1024]));
        let settled = frozen.settle();
        assert_eq!(settled.revoked, [4, 9].map(PhysicalBlock));
        assert_eq!(settled.blocks.len(), 1);
    }
}
