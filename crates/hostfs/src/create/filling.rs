//! What a new file holds beside zeros.
//!
//! The record of progress is the extent map, which tells nothing of contents: a run takes up a partial file because all that is
//! written there are zeros. So a file gets another name before the first byte is put into it
//! ([`Partial::begin_filling`](crate::partial::Partial::begin_filling)), and nobody takes up one of that name.

use extant_space::{Control, Result};

use crate::file::HostFile;

/// When contents are put into a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOrder {
    /// Into space that is complete: for a little, as a run that was cut off while it made space goes on.
    AfterSpace,
    /// Into reserved space, before what is left becomes written: nothing is written twice. A run that
    /// was cut off begins again.
    BeforeZeros,
}

/// Puts contents into a new file that has its size and not its name yet.
pub struct Filling<'a> {
    /// When.
    pub order: FillOrder,
    /// Writes them, inside the file's size. It reports progress, and stops when it is cancelled.
    pub fill: &'a dyn Fn(&HostFile, Control<'_>) -> Result<()>,
}
