//! The time for inodes: that of the kernel's last tick, as its file systems use.

use extant_ondisk::ext4::inode::Timestamp;
use rustix::time::{ClockId, clock_gettime};

pub(crate) fn now() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanoseconds: now.tv_nsec as u32,
    }
}
