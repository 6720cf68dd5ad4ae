//! Replays fast commits in one transaction.

use std::sync::Arc;
use std::time::Duration;

use extant_jbd2::{Client, Frozen, Journal, TransactionId, TransactionOptions, Transactions};
use extant_ondisk::ext4::fast_commit::{Tag, records};
use extant_space::{Error, ErrorKind, Result};

use super::Commits;
use super::apply::Apply;
use super::space::Space;
use crate::state::FsState;
use crate::transaction::Transaction;

/// Credits count every inode and bitmap, many of which share a block or repeat: so there are more
/// of them than blocks in a transaction. They bound the memory; the commit checks whether the
/// blocks fit the log.
const CREDITS_PER_BLOCK: u32 = 32;

/// Applies `commits` to a file system without other users; `journal` continues with their
/// transaction. Afterwards everything is checkpointed, and the journal is empty.
///
/// # Errors
/// `Corrupt` naming the record; `Unsupported` for unknown records, and for more than one
/// transaction can hold; errors of the device. The fast commits stay valid then, if their
/// transaction has not committed.
pub(crate) fn replay(fs: &Arc<FsState>, journal: Arc<Journal>, commits: &Commits) -> Result<()> {
    fs.find_orphans()?;
    let most = journal.transaction_blocks_max();
    let options = TransactionOptions {
        // Nothing is committed unasked.
        interval: Duration::from_secs(1 << 30),
        slots: Some(1),
        credits: Some(most.saturating_mul(CREDITS_PER_BLOCK)),
    };
    let transactions = Transactions::new(Arc::clone(&journal), Replaying(Arc::clone(fs)), options)?;
    let id = transactions.running();
    {
        let handle = transactions.start(1)?;
        let transaction = Transaction::new(&fs.running, handle);
        // After an error the transactions are dropped, which commits nothing.
        carry_out(fs, &transaction, &journal, commits)?;
    }
    transactions
        .commit(id)
        .map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => too_large(),
            _ => error,
        })?;
    transactions.empty()
}

fn carry_out(
    fs: &FsState,
    transaction: &Transaction<'_>,
    journal: &Journal,
    commits: &Commits,
) -> Result<()> {
    let mut apply = Apply::new(Space::new(fs, transaction, commits));
    let blocks = journal.read_fast_commits().take(commits.blocks());
    for (index, block) in blocks.enumerate() {
        let block = block?;
        for (number, record) in records(&block, &fs.layout).enumerate() {
            let done = record.and_then(|record| {
                if let Some(change) = record.change(&fs.layout)? {
                    apply.change(&change)?;
                }
                Ok(record.tag())
            });
            let tag = done.map_err(|error| at_record(&error, index, number))?;
            if tag == Tag::Tail {
                break;
            }
        }
    }
    apply.finish().map_err(|error| {
        let detail = format!("fast commits: {error}");
        advised(error.kind(), detail)
    })
}

fn at_record(error: &Error, block: usize, number: usize) -> Error {
    let detail = format!("fast commits: block {block}, record {number}: {error}");
    advised(error.kind(), detail)
}

fn advised(kind: ErrorKind, detail: String) -> Error {
    let error = Error::new(kind).detail(detail);
    match kind {
        ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::NoSpace => {
            error.advice("replay and check the file system with e2fsck -f")
        }
        _ => error,
    }
}

/// The records change more than one transaction can hold.
pub(super) fn too_large() -> Error {
    let detail = "the fast commits change more than the journal can take at a time";
    advised(ErrorKind::Unsupported, detail.into())
}

/// The state as the journal's client, which keep quiet about a replay that fails: nothing has
/// changed.
struct Replaying(Arc<FsState>);

impl Client for Replaying {
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen) {
        self.0.freeze(transaction, frozen);
    }

    fn committed(&self, transaction: TransactionId) {
        self.0.committed(transaction);
    }

    fn aborted(&self, _: &Error) {}
}
