//! Ending a file system that is in use, as `FS_IOC_SHUTDOWN` does.
//!
//! Model: changes are refused first, so that a set of them is final. The freeze or the commit that
//! [`Shutdown`] names makes that set durable. Then the device is stopped: a write in flight has
//! completed or is refused, and nothing is written any more, by a commit, a checkpoint or a close
//! either.
//!
//! A change that was reported as done before a shutdown with `Default` or `LogFlush` returns is
//! durable: it had its handle before handles were refused, or it was an overwrite, which the flush
//! of the device covers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_jbd2::Transactions;
use extant_space::{Error, ErrorKind, Result};

use super::Filesystem;
use crate::engine::Engine;
use crate::state::FsState;

/// Changes that [`Filesystem::shut_down`] makes durable first, as the flags of `FS_IOC_SHUTDOWN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Everything, and the file system is marked clean, as when it is frozen
    /// (`FS_SHUTDOWN_FLAGS_DEFAULT`).
    Default,
    /// The running transaction (`FS_SHUTDOWN_FLAGS_LOGFLUSH`).
    LogFlush,
    /// Nothing (`FS_SHUTDOWN_FLAGS_NOLOGFLUSH`).
    NoLogFlush,
}

impl Filesystem {
    /// Ends the file system while it is in use. Nothing is written after that. Except with
    /// [`Shutdown::Default`] it is not marked clean: the next opening replays the journal. Changes
    /// fail from now on; reads of what is not cached may succeed. A second call does nothing.
    ///
    /// # Errors
    /// Those of the commit or the freeze: the file system is shut down all the same, and the error
    /// recorded in its superblock.
    pub fn shut_down(&self, shutdown: Shutdown) -> Result<()> {
        self.engine.shut_down(shutdown)
    }

    /// Whether it was shut down, or is about to be.
    pub fn is_shut_down(&self) -> bool {
        self.engine.fs.shut_down.load(Ordering::Acquire)
    }
}

impl Engine {
    fn shut_down(&self, shutdown: Shutdown) -> Result<()> {
        let fs = &*self.fs;
        if fs.shut_down.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let was_closed = fs.closed.swap(true, Ordering::Release);
        let (Some(journal), false) = (&self.journal, was_closed) else {
            // Nothing will be written.
            return Ok(());
        };
        let durable = self.make_durable(journal, shutdown);
        if let Err(error) = &durable {
            fs.record_error(error);
        }
        journal.abort(Error::new(ErrorKind::ReadOnly).detail("the file system was shut down"));
        let device = fs
            .stoppable
            .as_ref()
            .expect("what has a journal is written");
        match shutdown {
            Shutdown::Default | Shutdown::LogFlush => durable.and(device.flush_and_stop()),
            Shutdown::NoLogFlush => {
                device.stop();
                durable
            }
        }
    }

    fn make_durable(&self, journal: &Transactions<Arc<FsState>>, shutdown: Shutdown) -> Result<()> {
        match shutdown {
            Shutdown::Default => {
                journal.refuse_handles();
                self.leave(journal)
            }
            Shutdown::LogFlush => journal.commit(journal.refuse_handles()),
            Shutdown::NoLogFlush => Ok(()),
        }
    }
}
