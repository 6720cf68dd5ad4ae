//! Directory listings.

use std::ops::ControlFlow;

use super::{LookupEntry, Result};

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The name, also `.` and `..`.
    pub name: &'a [u8],
    /// The inode's number as programs see it.
    pub inode: u64,
    /// The type, as the upper bits of a mode; 0 if unknown.
    pub file_type: u32,
    /// Position from which a later call continues. Never 0.
    pub cookie: u64,
}

/// The receiver of a listing.
pub trait DirectorySink {
    /// Takes a name, or breaks without taking it if there is no room.
    ///
    /// `look_up` is called at most once, and only if the name was taken and attributes are wanted;
    /// the entry that it returns counts as a reference to the node. It is never called for `.` and
    /// `..`. If it fails, the name is listed without attributes.
    fn take(
        &mut self,
        listed: &Listed<'_>,
        look_up: &mut dyn FnMut() -> Result<LookupEntry>,
    ) -> ControlFlow<()>;
}
