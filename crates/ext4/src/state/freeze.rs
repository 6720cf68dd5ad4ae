//! Freezing for the journal: all changes of a transaction.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use extant_jbd2::{Client, FastCommitSpace, Frozen};
use extant_ondisk::ext4::extent::{DEPTH_MAX, ENTRY_BYTES, MAGIC};
use extant_space::Error;

use super::FsState;
use crate::cache::{Block, Changing};
use crate::options::Discard;
use crate::sync::lock;
use crate::transaction::TransactionId;

/// Collects the blocks that the freeze itself changes.
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

impl Client for FsState {
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen) {
        let (changes, revoked) = self.running.take();
        if changes.is_empty() && revoked.is_empty() {
            return;
        }
        let nodes = changes.blocks.len();
        let by = Freezing {
            id: transaction,
            blocks: RefCell::new(changes.blocks),
        };
        for inode in changes.inodes {
            if let Err(error) = inode.set_deferred_bits(&self.groups) {
                self.note_error(&error);
            }
            // Its number may have been given to another one since.
            if !self.inodes.is_current(&inode) {
                continue;
            }
            inode.freeze(&self.cache, &by, &self.layout, self.seed);
        }
        let inodes = by.blocks.borrow().len();
        for group in changes.groups {
            self.groups.freeze(&by, group);
        }
        self.freeze_superblock(&by);
        let blocks = by.blocks.into_inner();
        if self.has_log {
            add(frozen, &blocks)
        } else {
            add_in_order(frozen, transaction, &blocks, nodes..inodes)
        }
        revoked.into_iter().for_each(|block| frozen.revoke(block));
        lock(&self.frozen).push((transaction, blocks));
    }

    fn fast_commit(&self, _: TransactionId, space: &FastCommitSpace) -> Option<Vec<u8>> {
        FsState::fast_commit(self, space)
    }

    fn committed(&self, transaction: TransactionId) {
        lock(&self.frozen).retain(|(id, _)| *id != transaction);
        let freed = self.allocator.committed(allocator_id(transaction));
        if self.options.discard == Discard::OnCommit {
            // A hint: the blocks are free even if the device refuses the discard.
            let _ = self.discard(freed.ranges());
        }
    }

    fn aborted(&self, error: &Error) {
        self.note_error(error);
    }
}

fn add<'a>(frozen: &mut Frozen, blocks: impl IntoIterator<Item = &'a Arc<Block>>) {
    for (number, bytes) in blocks.into_iter().filter_map(|block| block.freeze()) {
        frozen.block(number, bytes);
    }
}

/// Adds the blocks in the order in which they are written without a log. After a cut at any point,
/// unchanged data is still reachable: a node is written before references to it, and a split
/// removes moved entries from the old node last. Blocks and inodes are in use before anything
/// refers to them: e2fsck searches inodes only up to the bound in the descriptor. Freed blocks are
/// reused by the next transaction at the earliest.
///
/// `blocks` are nodes, directories and attributes, from `inodes.start` on blocks of inode tables,
/// from `inodes.end` on groups and the superblock.
fn add_in_order(
    frozen: &mut Frozen,
    transaction: TransactionId,
    blocks: &[Arc<Block>],
    inodes: Range<usize>,
) {
    let nodes = &blocks[..inodes.start];
    let (new, old): (Vec<_>, Vec<_>) = nodes.iter().partition(|block| block.is_new_in(transaction));
    let (indexes, others): (Vec<_>, Vec<_>) = old.into_iter().partition(|block| {
        let frozen = block.freeze();
        frozen.is_some_and(|(_, bytes)| is_index_node(&bytes))
    });
    add(frozen, new);
    frozen.barrier();
    add(frozen, indexes);
    frozen.barrier();
    add(frozen, &blocks[inodes.end..]);
    frozen.barrier();
    add(frozen, &blocks[inodes]);
    frozen.barrier();
    add(frozen, others);
}

/// Whether the block looks like an index node of an extent tree: `eh_magic`, `eh_max`, `eh_depth`.
fn is_index_node(bytes: &[u8]) -> bool {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let entries_max = bytes.len() / ENTRY_BYTES - 1;
    word(0) == MAGIC && usize::from(word(4)) == entries_max && (1..=DEPTH_MAX).contains(&word(6))
}

/// The journal's number of a transaction, for the allocator.
pub(crate) fn allocator_id(transaction: TransactionId) -> extant_mballoc::TransactionId {
    // Only few are alive at a time.
    extant_mballoc::TransactionId(transaction.number() as u32)
}
