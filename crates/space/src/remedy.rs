//! Alternative requests after a refusal.
//!
//! The same request is an option of the command, a field of a C structure and an argument in
//! Python. An [`Error`](crate::Error) identifies the request; each interface translates it to its
//! own name.

use serde::{Deserialize, Serialize};

/// A request that would not have been refused for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Remedy {
    /// Do not exclude other writers: for callers that know that no process writes to the holes.
    ShareAccess,
    /// Replace the existing file.
    Replace,
    /// Make the holes of the existing file written.
    Materialize,
    /// Allocate only a part of the file.
    AllocateLess,
    /// Turn copy-on-write off for the new file.
    DisableCopyOnWrite,
    /// Make a new file without copy-on-write.
    CreateWithoutCopyOnWrite,
    /// Only reserve space.
    ReserveOnly,
    /// Write zeros instead of reserving space.
    WriteZeros,
    /// Copy shared extents to private ones.
    Unshare,
    /// Continue the job, which kept its work, or cancel it.
    ResumeJob,
    /// Leave the zeros to the metadata of the layers below.
    MetadataZeroes,
}
