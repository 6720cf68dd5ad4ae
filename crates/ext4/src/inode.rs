//! Changes of inodes, and the inode tables.
//!
//! The model, the locks and the lock order: `inode_cell.rs`.

mod table;

use std::ops::Range;
use std::sync::Arc;

use extant_space::Result;

use crate::cache::Changing;
use crate::groups::Groups;
use crate::inode_cell::{InodeCell, InodeState};
use crate::sync::write;
use crate::transaction::Transaction;

pub(crate) use table::InodeTable;

impl InodeCell {
    /// Sets the deferred bitmap bits of its blocks when the transaction is frozen; before the
    /// groups are.
    ///
    /// # Errors
    /// As those of [`Groups::use_blocks`].
    pub(crate) fn set_deferred_bits(&self, groups: &Groups) -> Result<()> {
        match write(&self.state).deferred.take() {
            Some(deferred) => groups.use_joined(&deferred.blocks),
            None => Ok(()),
        }
    }

    /// The state in memory, to be changed by `transaction`.
    pub(crate) fn change<T>(
        self: &Arc<Self>,
        transaction: &Transaction<'_>,
        change: impl FnOnce(&mut InodeState) -> T,
    ) -> T {
        let mut state = write(&self.state);
        state.join(self, transaction);
        change(&mut state)
    }
}

impl InodeState {
    /// Notes the inode in the running transaction; before it is changed.
    pub(crate) fn join(&mut self, cell: &Arc<InodeCell>, transaction: &Transaction<'_>) {
        self.has_late_access = false;
        if self.changed_in != Some(transaction.id()) {
            self.changed_in = Some(transaction.id());
            transaction.joined_inode(cell);
        }
        if self.changed != Some(transaction.epoch()) {
            self.changed = Some(transaction.epoch());
            transaction.note_inode(cell);
        }
    }

    /// Notes that the blocks of `range` are others now.
    pub(crate) fn touch(&mut self, transaction: &Transaction<'_>, range: Range<u64>) {
        if transaction.notes_ranges() {
            self.touched.add(range);
        }
    }
}
