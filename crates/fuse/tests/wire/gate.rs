//! A gate that holds up reads for the kernel's cache while it is closed, each with its page locked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use extant_fuse::operations::NodeId;

/// The gate; open at first.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    /// Reads that wait.
    pub waiting: AtomicU64,
    /// The file that is read.
    node: AtomicU64,
    /// Reads and writes past the cache that have begun.
    pub direct: AtomicU64,
}

impl Gate {
    pub fn set_closed(&self, is_closed: bool) {
        *lock(&self.is_closed) = is_closed;
        self.opened.notify_all();
    }

    pub fn node(&self) -> NodeId {
        NodeId(self.node.load(Ordering::SeqCst))
    }

    pub fn is_closed(&self) -> bool {
        *lock(&self.is_closed)
    }

    pub fn wait(&self, node: NodeId) {
        self.node.store(node.0, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let deadline = Duration::from_secs(40);
        drop(
            self.opened
                .wait_timeout_while(lock(&self.is_closed), deadline, |closed| *closed),
        );
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// What is guarded stays usable whatever a thread that held it did.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
