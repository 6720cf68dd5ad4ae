//! A gate that holds up reads for the kernel's cache while it is closed, each with its page locked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_fuse::operations::NodeId;
use parking_lot::{Condvar, Mutex};

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
        *self.is_closed.lock() = is_closed;
        self.opened.notify_all();
    }

    pub fn node(&self) -> NodeId {
        NodeId(self.node.load(Ordering::SeqCst))
    }

    pub fn is_closed(&self) -> bool {
        *self.is_closed.lock()
    }

    pub fn wait(&self, node: NodeId) {
        self.node.store(node.0, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let deadline = Duration::from_secs(40);
        let mut is_closed = self.is_closed.lock();
        self.opened
            .wait_while_for(&mut is_closed, |closed| *closed, deadline);
        drop(is_closed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}
