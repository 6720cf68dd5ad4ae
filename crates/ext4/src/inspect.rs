//! Looking at a file system as a whole: what tools print that do not go by names.
//!
//! Model: everything is told as of the last commit. Of a file system that is open read-only that is all there is,
//! with what its journal has; one that is being changed is committed first, and what changes meanwhile may be seen or not.
//!
//! Nothing here keeps what it has read: a pass over all inodes costs one read of the tables that are in use, and
//! as much memory as a piece of a table.

mod free;
mod inodes;
mod journal;
mod nodes;

use std::sync::Arc;

use extant_blockdev::Device;
use extant_ondisk::ext4::{GroupDescriptor, GroupNumber, Inode, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::filesystem::Filesystem;
use crate::node::Node;
use crate::sync::{lock, read};

pub use inodes::FoundInode;
pub use journal::JournalLook;
pub use nodes::{TreeEntry, TreeNode};

impl Filesystem {
    /// The superblock. Free blocks and inodes are those of the last commit.
    pub fn superblock(&self) -> Superblock {
        lock(&self.core.parts.superblock).clone()
    }

    /// The device as the file system sees it: one that is open read-only sees what its journal has as if it were
    /// replayed. Nobody else may write to it.
    pub fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.core.parts.device)
    }

    /// A descriptor.
    ///
    /// # Errors
    /// `InvalidArgument` when there is no such group; `Corrupt`; those of the device.
    pub fn group_descriptor(&self, group: GroupNumber) -> Result<GroupDescriptor> {
        let parts = &self.core.parts;
        if group.0 >= parts.layout.groups() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(format!(
                "there is no group {group}, only {}",
                parts.layout.groups()
            )));
        }
        self.core.judged(parts.groups.descriptor(group))
    }
}

impl Node {
    /// The fields of the inode.
    pub fn inode(&self) -> Inode {
        read(&self.cell.state).inode
    }
}
