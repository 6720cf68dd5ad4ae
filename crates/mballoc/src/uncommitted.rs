//! Blocks that an owner allocated in the running transaction.
//!
//! No committed state refers to these blocks, so they can be reused at once when the same
//! transaction frees them. Forgetting some is safe: they then wait for the commit like all others.

use smallvec::SmallVec;

use crate::{BlockRange, TransactionId};

/// Runs remembered at most.
const RUNS_MAX: usize = 32;

pub(crate) type Runs = SmallVec<[BlockRange; 4]>;

#[derive(Debug, Default)]
pub(crate) struct UncommittedRuns {
    transaction: Option<TransactionId>,
    runs: Runs,
}

impl UncommittedRuns {
    pub(crate) fn add(&mut self, range: BlockRange, transaction: TransactionId) {
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

    /// Forgets the parts of `range` that were allocated in the transaction, and returns them in
    /// order. With `transaction`, only runs of that transaction count.
    pub(crate) fn remove(&mut self, range: BlockRange, transaction: Option<TransactionId>) -> Runs {
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
