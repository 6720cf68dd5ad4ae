//! The journal of ext4 in the kernel's format (jbd2), without knowledge of ext4.
#![doc = include_str!("../README.md")]
//!
//! Model: a block of metadata is changed in memory, in the *running* transaction. A commit writes
//! all its blocks and then a commit block to the log, a ring of blocks ([`JournalLocation`]); from
//! then on the transaction is valid as a whole. Later a checkpoint writes the blocks in place,
//! which frees their log space. After a crash, recovery replays the log.
//!
//! - [`Recovery`] reads the log that a crash left, replays it, or shows it to readers
//!   ([`Overlay`]);
//! - [`Journal`] writes committed transactions to an empty log, and checkpoints;
//! - [`Transactions`] opens handles for threads, and commits for all of them at once;
//! - [`InPlace`] replaces the journal for file systems without one.
//!
//! Invariants:
//! - no block is checkpointed before its transaction is durable in the log;
//! - no block of the log is reused before its transaction is durable in place and the superblock
//!   records that;
//! - sequence numbers on the disk are never used twice, also not one whose transaction was never
//!   completed.
//!
//! Lock order: barriers of the handles by number, state of the transactions; state of the journal,
//! shard of its table. The two pairs are never held together. Format: docs/formats/jbd2.md;
//! mechanisms: docs/internals/jbd2.md.
//!
//! Module layers, lowest first:
//!
//! 1. `failure`, `frozen`, `location`, `ring`, `sync`: values and locks
//! 2. `disk`, `table`: blocks of the journal; committed blocks that are not checkpointed
//! 3. `fast_commit_blocks`, `in_place`, `reader`: reading the log; operation without a journal
//! 4. `log`: the end of the log that grows
//! 5. `checkpoint`: freeing log space
//! 6. `journal`: log and checkpoint together
//! 7. `recover`: recovery after a crash
//! 8. `commit_target`: a journal or none
//! 9. `transactions`: handles and commits

#![forbid(unsafe_code)]

mod checkpoint;
mod commit_target;
mod disk;
mod failure;
mod fast_commit_blocks;
mod frozen;
mod in_place;
mod journal;
mod location;
mod log;
mod reader;
mod recover;
mod ring;
mod sync;
mod table;
mod transactions;

pub use extant_ondisk::jbd2::Sequence;
pub use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};

pub use commit_target::CommitTarget;
pub use fast_commit_blocks::FastCommitBlocks;
pub use frozen::Frozen;
pub use in_place::InPlace;
pub use journal::{
    Checkpoint, FastCommitSpace, FastCommits, Journal, JournalOptions, LogFormat, LogUse,
};
pub use location::{JournalLocation, Run};
pub use recover::{Overlay, Recovery, RecoveryReport};
pub use transactions::{
    Client, Epoch, Extension, Handle, Statistics, TransactionId, TransactionOptions, Transactions,
};
