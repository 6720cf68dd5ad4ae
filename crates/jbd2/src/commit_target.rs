//! Destination of transactions: to a log, or to their blocks at once.

use std::sync::Arc;

use extant_space::Result;

use crate::failure::Failure;
use crate::{Checkpoint, FastCommitSpace, Frozen, InPlace, Journal};

/// Destination of commits.
#[derive(Clone)]
pub enum CommitTarget {
    /// A log, from which they are checkpointed.
    Journal(Arc<Journal>),
    /// The blocks themselves.
    InPlace(Arc<InPlace>),
}

impl From<Journal> for CommitTarget {
    fn from(journal: Journal) -> Self {
        Self::Journal(Arc::new(journal))
    }
}

impl From<Arc<Journal>> for CommitTarget {
    fn from(journal: Arc<Journal>) -> Self {
        Self::Journal(journal)
    }
}

impl From<InPlace> for CommitTarget {
    fn from(in_place: InPlace) -> Self {
        Self::InPlace(Arc::new(in_place))
    }
}

impl CommitTarget {
    /// The error that stopped it, shared for frequent checks.
    pub(crate) fn failure(&self) -> Arc<Failure> {
        match self {
            Self::Journal(journal) => journal.shared_failure(),
            Self::InPlace(in_place) => Arc::clone(&in_place.failure),
        }
    }

    pub(crate) fn transaction_blocks_max(&self) -> u32 {
        match self {
            Self::Journal(journal) => journal.transaction_blocks_max(),
            Self::InPlace(in_place) => in_place.transaction_blocks_max(),
        }
    }

    pub(crate) fn commit(&self, transaction: Frozen) -> Result<()> {
        match self {
            Self::Journal(journal) => journal.commit(transaction),
            Self::InPlace(in_place) => in_place.commit(&transaction),
        }
    }

    /// The number that the next transaction has in the log, if there is one.
    pub(crate) fn next_tid(&self) -> Option<u32> {
        match self {
            Self::Journal(journal) => Some(journal.head().0),
            Self::InPlace(_) => None,
        }
    }

    /// Everything is where it belongs when this returns, after a commit.
    pub(crate) fn empty(&self) -> Result<()> {
        match self {
            Self::Journal(journal) => journal.empty(),
            Self::InPlace(_) => Ok(()),
        }
    }

    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        match self {
            Self::Journal(journal) => journal.checkpoint(),
            Self::InPlace(_) => Ok(Checkpoint::Done),
        }
    }

    pub(crate) fn fast_commit_space(&self) -> Option<FastCommitSpace> {
        match self {
            Self::Journal(journal) => journal.fast_commit_space(),
            Self::InPlace(_) => None,
        }
    }

    pub(crate) fn write_fast_commit(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Journal(journal) => journal.write_fast_commit(bytes),
            Self::InPlace(_) => unreachable!("fast commits have no space without a log"),
        }
    }
}
