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
    /// Free the clusters that interrupted changes have leaked.
    RepairLeaks,
    /// Unmount the image.
    Unmount,
    /// Repair the image first.
    RepairImage,
    /// Check the image.
    CheckImage,
    /// Copy the image and its backing file into one full image.
    MergeBacking,
    /// Read the backing file, and copy the part that belongs to the disk.
    ReadBacking,
    /// Permit a smaller size, which loses the data past it.
    Shrink,
    /// Open the files that the image names: for callers that trust its creator.
    OpenNamedFiles,
    /// Name the mode of preallocation.
    NamePreallocation,
    /// Define the pool.
    DefinePool,
    /// Permit a backing file: for callers that trust the creator of the image.
    AllowBacking,
    /// Set the format of the volume.
    SetFormat,
    /// Name the format of the content.
    NameFormat,
    /// Name the directory of definitions.
    NameDefinitions,
    /// Remove the definition of this name first.
    DeleteDefinition,
    /// Use the existing partition table, and keep its partitions.
    AdoptTable,
    /// Refresh the pool, which removes what dead processes have left.
    RefreshPool,
    /// Give the clones space of their own.
    MaterializeClones,
    /// List the jobs of the pool.
    ListJobs,
    /// Do it although a process has the volume open.
    IgnoreUsers,
}
