//! Notifications to the kernel: cached data or attributes of a file are stale.
//!
//! The kernel caches attributes and data. Changes that bypass it (an ioctl, a direct write that
//! ends asynchronously) are notified here, before the request is answered.
//!
//! A notification about data waits for every page of the range: the kernel holds the lock of a page
//! from the READ or WRITE that it sends until the reply, and writes back dirty pages, which sends
//! WRITEs. Two rules follow:
//! - a request that itself holds locked pages
//!   ([`ReadOrigin::Cache`](crate::operations::ReadOrigin), and all writes but
//!   [`WriteOrigin::Direct`](crate::operations::WriteOrigin)) must not wait in a notification about
//!   data: it would wait for its own reply, and only an abort of the connection would end that;
//! - a background request of the kernel (direct I/O may be asynchronous) waits in one only with a
//!   permit (`serve/deferred.rs`): [`Notifier::written_directly`] and
//!   [`Notifier::write_back_for_direct_read`].
//!
//! Notifications about attributes do not wait. If data changes while a page is being read, no more
//! is needed: the notification waits for the reply with the old data, and drops it.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rustix::io::Errno;

use super::NodeId;

/// How long a direct read waits for a permit to make the kernel write back.
const DIRECT_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The kernel's caches of a connection.
pub(crate) trait KernelCache: Send + Sync {
    /// Invalidates attributes.
    fn invalidate_attributes(&self, node: NodeId) -> Result<(), Errno>;

    /// Writes back and invalidates data from `offset` on for `length` bytes (`None`: to the end),
    /// and invalidates attributes.
    fn invalidate_data(&self, node: NodeId, offset: u64, length: Option<u64>) -> Result<(), Errno>;

    /// As above for all data, on behalf of a request that may be one of the kernel's background.
    /// `None` if too many of those wait for `timeout`.
    fn write_back_from_background(
        &self,
        node: NodeId,
        timeout: Duration,
    ) -> Option<Result<(), Errno>>;

    /// Invalidates a range that was written directly: before this returns, or soon after if too
    /// many requests wait already.
    fn invalidate_written(self: Arc<Self>, node: NodeId, range: Range<u64>);
}

/// Notifies the kernel of changes that bypassed it. Clones notify the same kernel.
#[derive(Clone, Default)]
pub struct Notifier(Option<Weak<dyn KernelCache>>);

impl Notifier {
    pub(crate) fn new(cache: Weak<dyn KernelCache>) -> Self {
        Self(Some(cache))
    }

    /// A notifier without effect, for operations without a mount.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Invalidates the attributes of a file, and its data from `offset` on, for `length` bytes
    /// (`None`: to the end). The kernel first writes back its dirty data there: no lock that a
    /// write or read needs may be held.
    ///
    /// With a writeback cache the kernel keeps its own size of a regular file.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn data_changed(
        &self,
        node: NodeId,
        offset: u64,
        length: Option<u64>,
    ) -> Result<(), Errno> {
        self.notify(|cache| cache.invalidate_data(node, offset, length))
    }

    /// Invalidates the attributes of a file.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn attributes_changed(&self, node: NodeId) -> Result<(), Errno> {
        self.notify(|cache| cache.invalidate_attributes(node))
    }

    /// Invalidates a range that a direct write has changed, before the reply. The kernel does that
    /// itself for synchronous direct writes, but not for asynchronous ones.
    pub fn written_directly(&self, node: NodeId, range: Range<u64>) {
        if let Some(cache) = self.cache() {
            cache.invalidate_written(node, range);
        }
    }

    /// Makes the kernel write back dirty data of a file, before the reply to a direct read.
    ///
    /// # Errors
    /// `AGAIN` if too many requests wait for the kernel; those of the kernel.
    pub fn write_back_for_direct_read(&self, node: NodeId) -> Result<(), Errno> {
        self.notify(|cache| {
            let sent = cache.write_back_from_background(node, DIRECT_READ_TIMEOUT);
            sent.unwrap_or(Err(Errno::AGAIN))
        })
    }

    fn notify(
        &self,
        send: impl FnOnce(&dyn KernelCache) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(cache) = self.cache() else {
            return Ok(());
        };
        match send(&*cache) {
            // A kernel that has forgotten the file, or an ended connection, needs no notification.
            Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => Ok(()),
            sent => sent,
        }
    }

    fn cache(&self) -> Option<Arc<dyn KernelCache>> {
        self.0.as_ref()?.upgrade()
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_connected = self.cache().is_some();
        write!(
            f,
            "Notifier({})",
            if is_connected { "connected" } else { "silent" }
        )
    }
}
