//! Telling the kernel about changes that did not go through it.
//!
//! The kernel believes for good what it was told of a file. A command that it does not know (an ioctl) can change that, and
//! then says so here, before it is answered.

use std::fmt;
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::operations::NodeId;
use crate::protocol::notices::InvalidateInode;
use crate::serve::crew::Crew;

/// Tells the kernel about changes that did not go through it. Clones tell the same kernel.
#[derive(Clone, Default)]
pub struct Notifier(Weak<Crew>);

impl Notifier {
    pub(crate) fn new(crew: &Arc<Crew>) -> Self {
        Self(Arc::downgrade(crew))
    }

    /// One that tells nobody, for operations without a mount.
    pub fn silent() -> Self {
        Self::default()
    }

    /// The attributes of a file are no longer what the kernel was told, and neither is its data from `offset` on, for
    /// `length` bytes (`None`: all that follow). What the kernel has to write back there it writes back first: no lock that a write or read needs
    /// may be held.
    ///
    /// With a writeback cache the kernel keeps to its own idea of the size of a regular file.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn data_changed(
        &self,
        node: NodeId,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(), Errno> {
        self.send(InvalidateInode::data(node.0, offset, length))
    }

    /// The attributes of a file are no longer what the kernel was told.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn attributes_changed(&self, node: NodeId) -> Result<(), Errno> {
        self.send(InvalidateInode::attributes(node.0))
    }

    fn send(&self, notice: InvalidateInode) -> Result<(), Errno> {
        let Some(crew) = self.0.upgrade() else {
            return Ok(());
        };
        match crew.notify(notice.as_bytes()) {
            // It has forgotten the file, or is gone itself.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => Ok(()),
            told => told,
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_connected = self.0.strong_count() > 0;
        write!(
            f,
            "Notifier({})",
            if is_connected { "connected" } else { "silent" }
        )
    }
}
