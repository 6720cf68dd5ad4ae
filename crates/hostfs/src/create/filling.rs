//! Contents of a new file other than zeros.
//!
//! The record of progress is the extent map, which does not show contents: a run adopts a partial
//! file because it holds nothing but zeros. So a file is renamed before the first byte is written
//! to it ([`Partial::begin_filling`](crate::partial::Partial::begin_filling)), and no run adopts
//! one of that name.

use extant_space::{Control, Result};

use crate::file::HostFile;

/// When contents are put into a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOrder {
    /// Into complete space: for small contents, because an interrupted run that was making space is
    /// resumed.
    AfterSpace,
    /// Into reserved space, before what is left becomes written: nothing is written twice. A run
    /// that was cut off begins again.
    BeforeZeros,
}

/// Puts contents into a new file that has its size and not its name yet.
pub struct Filling<'a> {
    /// When.
    pub order: FillOrder,
    /// Writes them, inside the file's size. It reports progress, and stops when it is cancelled.
    pub fill: &'a dyn Fn(&HostFile, Control<'_>) -> Result<()>,
}
