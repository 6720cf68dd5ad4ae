//! Changes of the running transaction, and their encoding when it is frozen.
//!
//! Model: every change runs inside a [`Transaction`], which holds the journal's running transaction
//! open. Bytes of blocks are changed in the cache at once. Inodes and groups are changed in memory
//! and written into their blocks when the transaction is frozen: a thousand changes of one inode
//! cost one encoding and one checksum.
//!
//! A changed object is recorded once per transaction, in the slot of the thread, so that threads do
//! not contend.
//!
//! Lock order: a slot's lock is never held with others.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_utils::CachePadded;
use extant_jbd2::{Extension, Handle};
use extant_ondisk::ext4::fast_commit::NameChange;
use extant_ondisk::ext4::{GroupNumber, InodeNumber, PhysicalBlock};

use crate::cache::{Block, Changing};
use crate::commit_notes::{Notes, Writing};
use crate::inode_cell::InodeCell;
use crate::sync::lock;

pub(crate) use extant_jbd2::{Epoch, TransactionId};

/// Blocks of metadata that a change of an inode touches: its slot.
pub(crate) const INODE_CREDITS: u32 = 1;

/// Slots for threads; more threads share some.
const SLOTS: usize = 32;

/// The changes of the running transaction so far.
pub(crate) struct Running {
    slots: Box<[CachePadded<Mutex<Changes>>]>,
    /// Blocks of metadata that were freed.
    revoked: Mutex<BTreeSet<PhysicalBlock>>,
    /// For fast commits.
    pub(crate) notes: Notes,
}

/// Changed things, each once. Holding them keeps them in memory.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) blocks: Vec<Arc<Block>>,
    pub(crate) inodes: Vec<Arc<InodeCell>>,
    pub(crate) groups: Vec<GroupNumber>,
}

impl Running {
    pub(crate) fn new(writing: Writing) -> Self {
        Self {
            notes: Notes::new(writing),
            slots: (0..SLOTS).map(|_| CachePadded::default()).collect(),
            revoked: Mutex::default(),
        }
    }

    /// Takes everything out. No transaction is open meanwhile.
    pub(crate) fn take(&self) -> (Changes, BTreeSet<PhysicalBlock>) {
        self.notes.clear();
        let mut all = Changes::default();
        for slot in &self.slots {
            let mut changes = lock(slot);
            all.blocks.append(&mut changes.blocks);
            all.inodes.append(&mut changes.inodes);
            all.groups.append(&mut changes.groups);
        }
        (all, std::mem::take(&mut *lock(&self.revoked)))
    }
}

/// A change of the file system, on its way: all of it becomes durable, or nothing.
pub(crate) struct Transaction<'a> {
    running: &'a Running,
    handle: Handle<'a>,
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(running: &'a Running, handle: Handle<'a>) -> Self {
        Self { running, handle }
    }

    /// Notes an inode that the transaction did not have.
    pub(crate) fn joined_inode(&self, inode: &Arc<InodeCell>) {
        self.handle.joined(1);
        lock(self.slot()).inodes.push(Arc::clone(inode));
    }

    /// The epoch with which its changes become durable.
    pub(crate) fn epoch(&self) -> Epoch {
        self.handle.epoch()
    }

    /// Notes an inode that was not changed since the last commit, full or fast.
    pub(crate) fn note_inode(&self, inode: &Arc<InodeCell>) {
        self.running.notes.inode(thread_slot(), inode);
    }

    /// Notes a change of a name.
    pub(crate) fn note_name(
        &self,
        change: NameChange,
        parent: InodeNumber,
        inode: InodeNumber,
        name: &[u8],
    ) {
        self.running.notes.name(change, parent, inode, name);
    }

    /// Records that a file gets new blocks.
    pub(crate) fn note_new_blocks(&self) {
        self.running.notes.new_blocks();
    }

    /// Marks the running transaction ineligible for a fast commit: no record expresses the change.
    pub(crate) fn mark_ineligible(&self) {
        self.running.notes.mark_ineligible();
    }

    /// Whether changed ranges are to be noted.
    pub(crate) fn notes_ranges(&self) -> bool {
        self.running.notes.writing() == Writing::On
    }

    /// Notes that `blocks` more blocks of a group's bitmaps and descriptor will change; `first`
    /// when it had none of them.
    pub(crate) fn joined_group(&self, group: GroupNumber, blocks: u32, first: First) {
        self.handle.joined(blocks);
        if first == First::Yes {
            lock(self.slot()).groups.push(group);
        }
    }

    /// Makes sure that `blocks` more blocks can join. `Refused`: end this transaction where that
    /// makes sense, and begin another.
    pub(crate) fn reserve(&self, blocks: u32) -> Extension {
        match blocks.checked_sub(self.handle.credits()) {
            None | Some(0) => Extension::Granted,
            Some(missing) => self.handle.extend(missing),
        }
    }

    /// Revokes a block, so that older writes to it are not replayed: it is no metadata any more.
    pub(crate) fn revoke(&self, block: PhysicalBlock) {
        if lock(&self.running.revoked).insert(block) {
            self.handle.joined(1);
        }
    }

    /// The block is metadata again.
    pub(crate) fn cancel_revoke(&self, block: PhysicalBlock) {
        lock(&self.running.revoked).remove(&block);
    }

    fn slot(&self) -> &Mutex<Changes> {
        &self.running.slots[thread_slot()]
    }
}

/// Whether it is the first time in this transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum First {
    Yes,
    No,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.inodes.is_empty() && self.groups.is_empty()
    }
}

fn thread_slot() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SLOT.with(|slot| {
        let number = slot
            .get()
            .unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        slot.set(Some(number));
        number % SLOTS
    })
}

impl Changing for Transaction<'_> {
    fn id(&self) -> TransactionId {
        self.handle.transaction()
    }

    fn joined(&self, block: &Arc<Block>) {
        self.handle.joined(1);
        lock(self.slot()).blocks.push(Arc::clone(block));
    }
}
