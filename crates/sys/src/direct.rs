//! Direct I/O: past the page cache, between the disk and aligned memory.

use std::fs::File;

use rustix::fs::{AtFlags, OFlags, StatxFlags};
use serde::Serialize;

/// The default if the kernel reports no alignment: before Linux 6.1, and on file systems without
/// `STATX_DIOALIGN`.
const USUAL: DirectIo = DirectIo {
    memory_bytes: 4096,
    offset_bytes: 4096,
};

/// How direct I/O must be aligned (statx `STATX_DIOALIGN`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DirectIo {
    /// Alignment of memory, bytes.
    pub memory_bytes: u32,
    /// Alignment of offset and length, bytes.
    pub offset_bytes: u32,
}

impl DirectIo {
    /// The alignment for `file`; `None` where there is no direct I/O, and a page where the kernel
    /// does not say. Direct I/O is off afterwards.
    pub fn of(file: &File) -> Option<Self> {
        let direct = Self::reported(file)?;
        // Accepting the flag is the second half of the answer.
        set(file, true).ok()?;
        set(file, false).ok()?;
        Some(direct)
    }

    fn reported(file: &File) -> Option<Self> {
        let answer = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
            .ok()
            .filter(|answer| answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0);
        let Some(answer) = answer else {
            return Some(USUAL);
        };
        (answer.stx_dio_offset_align != 0).then_some(Self {
            memory_bytes: answer.stx_dio_mem_align,
            offset_bytes: answer.stx_dio_offset_align,
        })
    }
}

/// Turns direct I/O on or off; `EINVAL` where the file system has none.
pub fn set(file: &File, on: bool) -> rustix::io::Result<()> {
    set_status_flags(file, OFlags::DIRECT, on)
}

/// Turns flags of the open file on or off.
pub fn set_status_flags(file: &File, flags: OFlags, on: bool) -> rustix::io::Result<()> {
    let mut now = rustix::fs::fcntl_getfl(file)?;
    now.set(flags, on);
    rustix::fs::fcntl_setfl(file, now)
}
