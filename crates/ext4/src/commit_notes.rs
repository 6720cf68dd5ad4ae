//! Contents of a possible fast commit of the running transaction.
//!
//! Model: since the last commit, full or fast, inodes, ranges of their blocks, and names were
//! changed. Inodes and names are listed here; ranges are kept with the inode
//! (`TouchedRanges`). A change
//! that no record can express makes the rest of the transaction *ineligible*. That is the default:
//! only operations reviewed for it begin with
//! `Engine::begin_recorded`.
//!
//! Lock order: the lock of a slot, and that of the names, are never held together with others.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam_utils::CachePadded;
use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::fast_commit::NameChange;

use crate::inode_cell::InodeCell;
use crate::sync::{lock, write};

/// Changed names that are kept; more need a full commit.
const NAMES_MAX: usize = 4096;
/// Slots for threads; more threads share some.
const SLOTS: usize = 32;

/// Whether there will be fast commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    On,
    Off,
}

pub(crate) struct Notes {
    writing: Writing,
    /// The transaction has changes that no record describes.
    is_ineligible: AtomicBool,
    /// Files of the transaction got blocks that the bitmaps on the disk have as free.
    has_new_blocks: AtomicBool,
    /// A fast commit of the transaction has changed a tree that has nodes.
    has_nodes: AtomicBool,
    names: Mutex<Vec<NameNote>>,
    inodes: Box<[CachePadded<Slot>]>,
}

/// Inodes that the threads of a slot have changed.
type Slot = Mutex<Vec<Arc<InodeCell>>>;

/// A change of a name.
pub(crate) struct NameNote {
    pub(crate) change: NameChange,
    pub(crate) parent: InodeNumber,
    pub(crate) inode: InodeNumber,
    pub(crate) name: Box<[u8]>,
}

/// The changes since the last commit.
pub(crate) struct Noted {
    pub(crate) names: Vec<NameNote>,
    /// Each once.
    pub(crate) inodes: Vec<Arc<InodeCell>>,
}

impl Notes {
    pub(crate) fn new(writing: Writing) -> Self {
        Self {
            writing,
            is_ineligible: AtomicBool::new(false),
            has_new_blocks: AtomicBool::new(false),
            has_nodes: AtomicBool::new(false),
            names: Mutex::default(),
            inodes: (0..SLOTS).map(|_| CachePadded::default()).collect(),
        }
    }

    pub(crate) fn writing(&self) -> Writing {
        self.writing
    }

    /// The running transaction has changes that no record describes.
    pub(crate) fn mark_ineligible(&self) {
        // Read first: the line is that of all threads.
        if self.writing == Writing::On && !self.is_ineligible.load(Ordering::Relaxed) {
            self.is_ineligible.store(true, Ordering::Relaxed);
        }
    }

    /// A file got blocks.
    pub(crate) fn new_blocks(&self) {
        if self.writing == Writing::On && !self.has_new_blocks.load(Ordering::Relaxed) {
            self.has_new_blocks.store(true, Ordering::Relaxed);
        }
    }

    /// A fast commit will change a tree that has nodes. No transaction is open.
    pub(crate) fn nodes(&self) {
        self.has_nodes.store(true, Ordering::Relaxed);
    }

    /// Whether there were both: e2fsck would take new blocks of one file for nodes of another, or
    /// the same.
    pub(crate) fn has_nodes_and_new_blocks(&self) -> bool {
        self.has_nodes.load(Ordering::Relaxed) && self.has_new_blocks.load(Ordering::Relaxed)
    }

    pub(crate) fn is_ineligible(&self) -> bool {
        self.is_ineligible.load(Ordering::Relaxed)
    }

    /// An inode is changed for the first time since the last commit, by a thread of `slot`.
    pub(crate) fn inode(&self, slot: usize, inode: &Arc<InodeCell>) {
        if self.writing == Writing::On {
            lock(&self.inodes[slot % SLOTS]).push(Arc::clone(inode));
        }
    }

    /// A name was changed. The caller holds the operation lock of the directory.
    pub(crate) fn name(
        &self,
        change: NameChange,
        parent: InodeNumber,
        inode: InodeNumber,
        name: &[u8],
    ) {
        if self.writing == Writing::Off || self.is_ineligible() {
            return;
        }
        let mut names = lock(&self.names);
        if names.len() == NAMES_MAX {
            return self.mark_ineligible();
        }
        names.push(NameNote {
            change,
            parent,
            inode,
            name: name.into(),
        });
    }

    /// Takes the notes for a fast commit. No transaction is open.
    pub(crate) fn take(&self) -> Noted {
        let mut inodes = Vec::new();
        for slot in &self.inodes {
            inodes.append(&mut lock(slot));
        }
        Noted {
            names: std::mem::take(&mut lock(&self.names)),
            inodes,
        }
    }

    /// A full commit contains everything. No transaction is open.
    pub(crate) fn clear(&self) {
        if self.writing == Writing::On {
            self.take().clear_ranges();
            for flag in [&self.is_ineligible, &self.has_new_blocks, &self.has_nodes] {
                flag.store(false, Ordering::Relaxed);
            }
        }
    }
}

impl Noted {
    pub(crate) fn clear_ranges(&self) {
        for cell in &self.inodes {
            write(&cell.state).touched.take();
        }
    }
}
