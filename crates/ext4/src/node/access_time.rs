//! The time of the last access, which reading alone does not change: the server that exposes files
//! to programs decides when it does.
//!
//! Model: it is changed in memory, without a transaction, so that reading waits for no commit. The
//! inode's next change writes it, otherwise the close of its last handle; a crash before that loses
//! it.

use std::sync::Arc;

use extant_ondisk::ext4::Inode;
use extant_ondisk::ext4::inode::{InodeFlags, TimeField, Timestamp};

use super::Node;
use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::sync::{read, write};
use crate::time;
use crate::transaction::INODE_CREDITS;

/// Seconds after which a relative access time moves on in any case: a day.
const RELATIVE_SECONDS: i64 = 24 * 60 * 60;

/// Policy for updates of the access time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTime {
    /// If it is not after the last change, or a day old: `relatime`, the kernel's default.
    Relative,
    /// With each access: `strictatime`.
    Strict,
    /// Not at all: `noatime`.
    Never,
}

impl Node {
    /// Records a read of data, names or the target of a link, as `policy` requires; nothing for a
    /// file with the flag NOATIME, or where nothing is written. Cheap: it is written with the next
    /// change, or when the last handle of this inode is dropped.
    pub fn touch_accessed(&self, policy: AccessTime) {
        if !self.engine.is_writable() {
            return;
        }
        if !is_due(&read(&self.cell.state).inode, policy, time::last_tick()) {
            return;
        }
        let now = self.engine.fs.clock.now();
        let mut state = write(&self.cell.state);
        state.inode.set_time(TimeField::Access, now);
        state.has_late_access = true;
    }
}

impl Engine {
    /// Has the next commit keep a time of access. The thread has no transaction open.
    pub(super) fn keep_late_access(&self, cell: &Arc<InodeCell>) {
        // If changes are impossible it is lost, and cannot be reported.
        if let Ok(transaction) = self.begin_recorded(INODE_CREDITS) {
            cell.change(&transaction, |_| ());
        }
    }
}

fn is_due(inode: &Inode, policy: AccessTime, now: Timestamp) -> bool {
    let time = |field| inode.time(field).unwrap_or_default();
    let accessed = time(TimeField::Access);
    if inode.flags().contains(InodeFlags::NOATIME) || accessed == now {
        return false;
    }
    match policy {
        AccessTime::Never => false,
        AccessTime::Strict => true,
        AccessTime::Relative => {
            let is_before = |field| {
                let other = time(field);
                (accessed.seconds, accessed.nanoseconds) <= (other.seconds, other.nanoseconds)
            };
            is_before(TimeField::Modification)
                || is_before(TimeField::Change)
                || now.seconds - accessed.seconds >= RELATIVE_SECONDS
        }
    }
}
