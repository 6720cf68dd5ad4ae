//! Opening, committing and closing a file system.

mod open;
mod recover;
mod trim;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_ondisk::ext4::Access;
use extant_space::{Error, ErrorKind, Result};

use crate::engine::Engine;
use crate::options::AllocatorPolicy;
use crate::state::{Counters, Statistics};

/// An ext4 file system.
///
/// Cheap to clone; all clones are equivalent. Dropping the last one closes it as
/// [`close`](Self::close) does, but discards errors.
#[derive(Clone)]
pub struct Filesystem {
    pub(crate) engine: Arc<Engine>,
}

/// Changes that [`Filesystem::shut_down`] makes durable first, as the flags of `FS_IOC_SHUTDOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything (`FS_SHUTDOWN_FLAGS_DEFAULT`).
    Default,
    /// The running transaction (`FS_SHUTDOWN_FLAGS_LOGFLUSH`).
    LogFlush,
    /// Nothing (`FS_SHUTDOWN_FLAGS_NOLOGFLUSH`).
    NoLogFlush,
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

    /// Stops the file system as a crash would, after the sync that `shutdown` names. Nothing is
    /// written after that, and the file system is not marked clean: the next opening replays the
    /// journal. Changes fail from now on.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync); the file system continues then.
    pub fn shut_down(&self, shutdown: Shutdown) -> Result<()> {
        match shutdown {
            Shutdown::Default | Shutdown::LogFlush => self.sync()?,
            Shutdown::NoLogFlush => {}
        }
        let fs = &self.engine.fs;
        fs.shut_down.store(true, Ordering::Relaxed);
        fs.closed.store(true, Ordering::Relaxed);
        if let Some(journal) = &self.engine.journal {
            journal.abort(Error::new(ErrorKind::ReadOnly).detail("the file system was shut down"));
        }
        Ok(())
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
