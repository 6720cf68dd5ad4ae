//! jbd2, the journal of ext3 and ext4: one module per structure.
//!
//! Model: a journal is a sequence of blocks. The first holds the [`superblock`]; the others are a
//! ring of transactions, and with `fast_commit` the last ones are reserved for fast commits
//! ([`crate::ext4::fast_commit`]). A transaction is a series of
//! - [`descriptor`] blocks, each followed by copies of the blocks that it names,
//! - [`revoke`] blocks, which name blocks whose older copies must not be replayed, and
//! - one [`commit`] block, without which the transaction is void.
//!
//! Each of those begins with the same [`header`]. A copy that would begin with its magic number has
//! zeros there instead ([`escape`](mod@escape)). The features determine the length of tags and the
//! position of checksums: a [`Format`], which the superblock provides.
//!
//! Integers are big-endian, unlike in the rest of the file system.
//!
//! Format: docs/formats/jbd2.md.

pub mod address;
pub mod commit;
pub mod descriptor;
pub mod escape;
pub mod features;
pub mod format;
pub mod header;
pub mod revoke;
pub mod superblock;
mod tail;

pub use address::{JournalBlock, Sequence};
pub use escape::{Escaped, escape, unescape};
pub use features::{JournalCompat, JournalFeatures, JournalIncompat, JournalRoCompat};
pub use format::Format;
pub use header::{BlockType, Header};
pub use superblock::JournalSuperblock;
