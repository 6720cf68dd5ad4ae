//! What an owner was given in the running transaction.
//!
//! No committed state refers to these blocks, so when the same transaction frees them they can be
//! used at once. Forgetting some is safe: they wait for the commit as all others.

use smallvec::SmallVec;

use crate::{BlockRange, TransactionId};

/// More runs are not remembered.
const RUNS_MAX: usize = 32;

#[derive(Debug, Default)]
pub(super) struct Fresh {
    transaction: Option<TransactionId>,
    runs: SmallVec<[BlockRange; 4]>,
}

pub(super) type Runs = SmallVec<[BlockRange; 4]>;

impl Fresh {
    pub(super) fn add(&mut self, range: BlockRange, transaction: TransactionId) {
        if self.transaction != Some(transaction) {
            self.transaction = Some(transaction);
            self.runs.clear();
        }
        if let Some(last) = self.runs.last_mut()
            && last.can_join(range)
        {
            *last = last.joined(range);
            return;
        }
        if self.runs.len() == RUNS_MAX {
            self.runs.remove(0);
        }
        self.runs.push(range);
    }

    /// Forgets the parts of `range` that were given, and returns them in order when it was
    /// `transaction` that gave them.
    pub(super) fn remove(&mut self, range: BlockRange, transaction: Option<TransactionId>) -> Runs {
        let mut removed = Runs::new();
        if transaction.is_some() && self.transaction != transaction {
            return removed;
        }
        if !self.runs.iter().any(|run| run.overlaps(range)) {
            return removed;
        }
        let mut kept = Runs::new();
        for run in self.runs.drain(..) {
            let (before, rest) = run.split_at(range.start());
            let (inside, after) = rest.map_or((None, None), |rest| rest.split_at(range.end()));
            kept.extend(before);
            removed.extend(inside);
            kept.extend(after);
        }
        self.runs = kept;
        removed.sort_unstable();
        removed
    }
}
