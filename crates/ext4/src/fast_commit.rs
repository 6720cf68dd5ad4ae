//! Fast commits: recovery of those that a crash left at the end of the journal, and writing them.
//!
//! Model: a fast commit describes in a few records the changes since the last transaction of the
//! journal. The records are valid until the transaction whose number they carry commits. Replaying
//! them is one ordinary transaction of that number which contains all their changes. So at any
//! moment either the records or the transaction are valid, and a crash in between repeats the
//! replay.
//!
//! - [`Commits`] finds the complete ones;
//! - [`replay()`] applies them to a file system that is opened for nothing else;
//! - [`ShadowDevice`] keeps the resulting writes in memory, for readers of a device that must not
//!   change.
//!
//! For our own commits the running transaction collects what the records would contain
//! (`commit_notes.rs`), and a sync writes them if the transaction is eligible (`write.rs`).
//!
//! Records are untrusted input: an impossible value is an error that names the record, and nothing
//! has changed then.
//!
//! Format: docs/formats/jbd2.md, "Fast commits".

mod apply;
mod names;
mod replay;
mod scan;
mod shadow;
mod space;
mod write;

pub(crate) use replay::replay;
pub(crate) use scan::Commits;
pub(crate) use shadow::ShadowDevice;
