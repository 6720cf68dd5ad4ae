//! The encoding of directory listings.

use std::ops::ControlFlow;

use super::{Entry, Result};

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The name, also `.` and `..`.
    pub name: &'a [u8],
    /// The inode's number as programs see it.
    pub inode: u64,
    /// The type, as the upper bits of a mode; 0 when it is not known.
    pub file_type: u32,
    /// Position from which a later call continues. Never 0.
    pub cookie: u64,
}

/// Where names go.
pub trait DirectorySink {
    /// Takes a name, or breaks without taking it when there is no room.
    ///
    /// `look_up` is called at most once, and only when the name was taken and more than the name is
    /// wanted; its entry is then a use of the node. It is never called for `.` and `..`. When it
    /// fails, the name is listed without the rest.
    fn take(
        &mut self,
        listed: &Listed<'_>,
        look_up: &mut dyn FnMut() -> Result<Entry>,
    ) -> ControlFlow<()>;
}
