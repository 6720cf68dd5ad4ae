//! The journal of ext4 in the kernel's format (jbd2), without knowledge of ext4.
//!
//! Model: a block of metadata is changed in memory, in the *running* transaction. A commit writes
//! all its blocks and then a commit block to the log, a ring of blocks ([`Place`]); from then on
//! the transaction counts as a whole. Later a checkpoint writes the blocks to their place ("home"),
//! and the log goes round. After a crash, recovery copies what the log holds to its home.
//!
//! - [`Recovery`] reads the log that a crash left, replays it, or shows it to readers
//!   ([`Overlay`]);
//! - [`Journal`] writes committed transactions to an empty log, and checkpoints;
//! - [`Transactions`] gives handles to threads, and commits for all of them at a time;
//! - [`InPlace`] is what they commit to where there is no journal.
//!
//! Invariants:
//! - nothing comes home before its transaction is durable in the log;
//! - no block of the log is used again before its transaction is durable at home and the superblock
//!   says so;
//! - sequence numbers on the disk are never used twice, also not one whose transaction was never
//!   completed.
//!
//! Lock order: gates of the handles by number, state of the transactions; state of the journal,
//! shard of its table. The two pairs are never held together. Format: docs/formats/jbd2.md.

#![forbid(unsafe_code)]

mod checkpoint;
mod disk;
mod failure;
mod frozen;
mod in_place;
mod journal;
mod log;
mod place;
mod reader;
mod recover;
mod ring;
mod sync;
mod table;
mod target;
mod transactions;

pub use extant_ondisk::jbd2::Sequence;
pub use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};

pub use frozen::Frozen;
pub use in_place::InPlace;
pub use journal::{
    Checkpoint, FastCommitSpace, FastCommits, Journal, JournalOptions, LogFormat, LogUse,
};
pub use place::{Place, Run};
pub use recover::{FastCommitBlocks, Overlay, Recovery, RecoveryReport};
pub use target::Target;
pub use transactions::{
    Client, Epoch, Extension, Handle, TransactionId, TransactionOptions, Transactions,
};
