//! The writer of the contents of a new file.
//!
//! The record of progress is the extent map, which shows nothing of contents: a run resumes a
//! partial file because its written part is all zeros. A file therefore gets another name before
//! its first byte of contents ([`Partial::begin_filling`](crate::partial::Partial::begin_filling)),
//! and no run resumes a file of that name.

use extant_space::{Control, Result};

use crate::file::HostFile;

/// The order of writing contents and allocating space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentOrder {
    /// After the space is complete. For small contents: an interrupted run resumes the allocation.
    AfterSpace,
    /// Into reserved space, before the rest becomes written: nothing is written twice. An
    /// interrupted run starts again.
    BeforeZeros,
}

/// Writes contents into a new file that has its size, but not its name yet.
pub struct ContentWriter<'a> {
    /// When it runs.
    pub order: ContentOrder,
    /// Writes them, inside the file's size. It reports progress, and stops when it is cancelled.
    pub fill: &'a dyn Fn(&HostFile, Control<'_>) -> Result<()>,
}
