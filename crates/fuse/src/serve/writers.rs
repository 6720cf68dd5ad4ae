//! Files for which the kernel's cache may hold data that the server has not seen.
//!
//! With a writeback cache the kernel writes back dirty data before most requests; for `SEEK_HOLE`
//! and `SEEK_DATA` it does not (seen in Linux 6.18), and freshly written data would look like a
//! hole: `cp` would skip it. So such a request makes the kernel write back first. That drops the
//! file's cache, and is done only while the file is open for writing: a close writes back, also
//! data of a mapping.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;

use crate::operations::NodeId;

const SHARDS: usize = 16;

/// Number of handles open for writing, by node.
#[derive(Debug, Default)]
pub(super) struct Writers {
    shards: [Mutex<HashMap<NodeId, u64>>; SHARDS],
    /// The server works without handles, so the kernel does not report opens.
    are_unknown: AtomicBool,
}

impl Writers {
    /// A file was opened.
    pub fn opened(&self, node: NodeId, flags: OFlags) {
        if may_write(flags) {
            *self.shard(node).entry(node).or_default() += 1;
        }
    }

    /// A handle was released.
    pub fn released(&self, node: NodeId, flags: OFlags) {
        let mut shard = self.shard(node);
        if may_write(flags)
            && let Some(count) = shard.get_mut(&node)
        {
            *count -= 1;
            if *count == 0 {
                shard.remove(&node);
            }
        }
    }

    /// The server works without handles from now on.
    pub fn are_unknown(&self) {
        self.are_unknown.store(true, Ordering::Relaxed);
    }

    /// Whether the kernel may hold data of the file.
    pub fn may_have_written(&self, node: NodeId) -> bool {
        self.are_unknown.load(Ordering::Relaxed) || self.shard(node).contains_key(&node)
    }

    fn shard(&self, node: NodeId) -> MutexGuard<'_, HashMap<NodeId, u64>> {
        let shard = &self.shards[node.0 as usize % SHARDS];
        shard.lock()
    }
}

fn may_write(flags: OFlags) -> bool {
    flags & OFlags::RWMODE != OFlags::RDONLY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_counts_from_open_to_release_and_reader_never() {
        let writers = Writers::default();
        let (node, other) = (NodeId(7), NodeId(7 + SHARDS as u64));
        writers.opened(node, OFlags::RDONLY);
        assert!(!writers.may_have_written(node));
        writers.opened(node, OFlags::RDWR | OFlags::TRUNC);
        writers.opened(node, OFlags::WRONLY);
        writers.released(node, OFlags::RDONLY);
        writers.released(node, OFlags::RDWR);
        assert!(writers.may_have_written(node) && !writers.may_have_written(other));
        writers.released(node, OFlags::WRONLY);
        assert!(!writers.may_have_written(node));
        // A release without an open changes nothing.
        writers.released(node, OFlags::WRONLY);
        writers.are_unknown();
        assert!(writers.may_have_written(other));
    }
}
