//! What the journal asks for: everything that a transaction has changed.

use std::cell::RefCell;
use std::sync::Arc;

use extant_jbd2::{Client, FastCommitSpace, Frozen};
use extant_space::Error;

use super::Parts;
use crate::cache::{Block, Changing};
use crate::options::Discard;
use crate::sync::lock;
use crate::transaction::TransactionId;

/// Collects what the freeze itself changes.
struct Freezing {
    id: TransactionId,
    blocks: RefCell<Vec<Arc<Block>>>,
}

impl Changing for Freezing {
    fn id(&self) -> TransactionId {
        self.id
    }

    fn joined(&self, block: &Arc<Block>) {
        self.blocks.borrow_mut().push(Arc::clone(block));
    }
}

impl Client for Parts {
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen) {
        let (changes, revoked) = self.running.take();
        if changes.is_empty() && revoked.is_empty() {
            return;
        }
        let by = Freezing {
            id: transaction,
            blocks: RefCell::new(changes.blocks),
        };
        for inode in changes.inodes {
            if let Err(error) = inode.mark_blocks(&self.groups) {
                self.note_error(&error);
            }
            // Its number may have been given to another one since.
            if !self.inodes.is_current(&inode) {
                continue;
            }
            inode.freeze(&self.cache, &by, &self.layout, self.seed);
        }
        for group in changes.groups {
            self.groups.freeze(&by, group);
        }
        self.freeze_superblock(&by);
        let blocks = by.blocks.into_inner();
        for (number, bytes) in blocks.iter().filter_map(|block| block.freeze()) {
            frozen.block(number, bytes);
        }
        revoked.into_iter().for_each(|block| frozen.revoke(block));
        lock(&self.frozen).push((transaction, blocks));
    }

    fn fast_commit(&self, _: TransactionId, space: &FastCommitSpace) -> Option<Vec<u8>> {
        Parts::fast_commit(self, space)
    }

    fn committed(&self, transaction: TransactionId) {
        lock(&self.frozen).retain(|(id, _)| *id != transaction);
        let freed = self.allocator.committed(allocator_id(transaction));
        if self.options.discard == Discard::OnCommit {
            // A hint: the blocks are free whatever the device says.
            let _ = self.discard(freed.ranges());
        }
    }

    fn aborted(&self, error: &Error) {
        self.note_error(error);
    }
}

/// The journal's number of a transaction, for the allocator.
pub(crate) fn allocator_id(transaction: TransactionId) -> extant_mballoc::TransactionId {
    // Only few are alive at a time.
    extant_mballoc::TransactionId(transaction.number() as u32)
}
