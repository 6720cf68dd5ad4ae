//! Opening, committing and closing a file system.

mod open;
mod recover;
mod shutdown;
mod trim;

use std::fmt;
use std::sync::Arc;

use extant_ondisk::ext4::Access;
use extant_space::Result;

use extant_ondisk::ext4::inode::Timestamp;

use crate::engine::Engine;
use crate::options::AllocatorPolicy;
use crate::state::{Counters, Statistics};

pub use shutdown::Shutdown;

/// An ext4 file system.
///
/// Cheap to clone; all clones are equivalent. Dropping the last one closes it as
/// [`close`](Self::close) does, but discards errors.
#[derive(Clone)]
pub struct Filesystem {
    pub(crate) engine: Arc<Engine>,
}

impl Filesystem {
    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// Errors of the device, including unreported ones of earlier writes.
    pub fn sync(&self) -> Result<()> {
        let Some(journal) = &self.engine.journal else {
            return Ok(());
        };
        journal.commit(journal.running())?;
        // A transaction that changed nothing has no flush, and data may have been written without
        // one.
        self.engine.fs.device.flush()
    }

    /// Checkpoints everything and marks the file system clean. Remaining clones, nodes and files
    /// become read-only; the next opening processes their orphans.
    ///
    /// # Errors
    /// Errors of the device; the journal then still has the blocks that are not checkpointed. The
    /// first error of freeing the blocks of a removed file; everything is checkpointed then.
    pub fn close(self) -> Result<()> {
        self.engine.close()
    }

    /// The time of a change at this moment.
    pub fn now(&self) -> Timestamp {
        self.engine.fs.clock.now()
    }

    /// How full it is.
    pub fn statistics(&self) -> Statistics {
        self.engine.fs.statistics()
    }

    /// Counters of its work since it was opened.
    pub fn counters(&self) -> Counters {
        let journal = self.engine.journal.as_ref();
        self.engine
            .fs
            .counters(journal.map(|journal| journal.statistics()))
    }

    /// How blocks are searched for.
    pub fn allocator_policy(&self) -> AllocatorPolicy {
        self.engine.fs.allocator_policy()
    }

    /// Changes how blocks are searched for from now on. Without
    /// [`Reservation::Windows`](crate::Reservation::Windows) the windows of all files are freed.
    pub fn set_allocator_policy(&self, policy: AllocatorPolicy) {
        self.engine.fs.set_allocator_policy(policy);
    }

    /// Whether it can be changed.
    pub fn access(&self) -> Access {
        self.engine.fs.options.access
    }

    /// Whether changes are taken now: not if it is open read-only, was closed, or is damaged and
    /// stopped by its error policy.
    ///
    /// # Errors
    /// `ReadOnly`.
    pub fn check_changeable(&self) -> Result<()> {
        self.engine.changeable().map(drop)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.engine.fs.layout.block_bytes()
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filesystem")
            .field("options", &self.engine.fs.options)
            .finish_non_exhaustive()
    }
}
