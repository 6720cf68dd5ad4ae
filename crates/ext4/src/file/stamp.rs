//! Effects of a data change on the inode besides its blocks: size and times; and the result of a
//! write.

use extant_ondisk::ext4::Inode;
use extant_ondisk::ext4::inode::{TimeField, Timestamp};
use extant_space::Result;

/// Further effects of a data change on the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The size is at least this.
    pub(crate) size_at_least: u64,
    pub(super) times: WriteTimes,
}

/// Effect of a write on the modification and change times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteTimes {
    /// They become the present time.
    Present,
    /// They are unchanged: a cache above sets them to those of its own writes.
    Kept,
}

/// Result of a write that may end before all of it is written.
#[derive(Debug)]
pub struct Written {
    /// Bytes from the start of the buffer that are in the file.
    pub bytes: usize,
    /// `Ok` if these are all bytes of the buffer.
    pub result: Result<()>,
}

impl Stamp {
    /// The present time alone.
    pub(crate) const SAME_SIZE: Self = Self::size_at_least(0);

    /// The present time, and a size.
    pub(crate) const fn size_at_least(bytes: u64) -> Self {
        Self {
            size_at_least: bytes,
            times: WriteTimes::Present,
        }
    }

    pub(super) const fn of_write(end: u64, times: WriteTimes) -> Self {
        Self {
            size_at_least: end,
            times,
        }
    }
}

/// Both times of a change are `now` already.
pub(super) fn is_stamped(inode: &Inode, now: Timestamp) -> bool {
    let now = Some(now);
    inode.time(TimeField::Modification) == now && inode.time(TimeField::Change) == now
}
