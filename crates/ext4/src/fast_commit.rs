//! Fast commits: what a crash left of them at the end of the journal and how it becomes part of the file system, and
//! writing them.
//!
//! Model: a fast commit says in a few records what changed since the last transaction of the journal. They count
//! until that transaction commits, whose number they carry. Replaying them is one ordinary transaction of that
//! number, in which everything that the records change is: so at any moment either the records count or the
//! transaction does, and a crash in between only means to do it again.
//!
//! - [`Commits`] finds those that are whole;
//! - [`replay()`] carries them out on a file system that is opened for nothing else;
//! - [`ShadowDevice`] keeps what that writes in memory, for readers of a device that must not change.
//!
//! Of our own commits the running transaction keeps what they would have to say ([`Notes`]), and a sync says it where
//! it can be said (`write.rs`).
//!
//! Records are input like everything on the disk: what cannot be true is an error that names the record, and
//! nothing has changed then.
//!
//! Format: docs/formats/jbd2.md, "Fast commits".

mod apply;
mod names;
mod notes;
mod replay;
mod scan;
mod shadow;
mod space;
mod write;

pub(crate) use notes::{Notes, Ranges, Writing};
pub(crate) use replay::replay;
pub(crate) use scan::Commits;
pub(crate) use shadow::ShadowDevice;
