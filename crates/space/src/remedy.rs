//! What a caller could ask for instead, when something is refused.
//!
//! A library does not know the words of its callers: the same request is an option of the command, a field of a C structure
//! and an argument in Python. An [`Error`](crate::Error) names the request, and each interface has its own words.

use serde::{Deserialize, Serialize};

/// A request that would not have been refused for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Remedy {
    /// Do not exclude other writers: for callers who know that nobody writes to the holes.
    ShareAccess,
    /// Replace what has the name.
    Replace,
    /// Make the holes of the existing file written.
    Materialize,
    /// Make a part of the file real.
    AllocateLess,
    /// Turn copy-on-write off for the new file.
    DisableCopyOnWrite,
    /// Make a new file without copy-on-write.
    CreateWithoutCopyOnWrite,
    /// Only reserve space.
    ReserveOnly,
    /// Write zeros instead of reserving space.
    WriteZeros,
    /// Give shared parts space of their own.
    Unshare,
}
