//! The time for inodes.
//!
//! The kernel's file systems use its last tick, or the last exact time that any of them has stored
//! since (multigrain timestamps, Linux 6.13). Only the former has a clock for programs. The latter
//! is what the kernel stores in an inode, for which an anonymous pipe suffices.

use std::io;
use std::os::fd::OwnedFd;

use extant_ondisk::ext4::inode::Timestamp;
use rustix::fs::{Timespec, Timestamps, UTIME_NOW, fstat, futimens};
use rustix::time::{ClockId, clock_gettime};

/// The first kernel whose times may be later than its last tick.
const MULTIGRAIN: (u32, u32) = (6, 13);

/// The source of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The kernel's last tick.
    Tick,
    /// The kernel's file systems: for a mount in whose files the kernel stores times itself, so
    /// that the order of times is that of the changes. Two system calls (0.5 us) on Linux 6.13 and
    /// later.
    FileSystems,
}

/// A clock for inodes.
#[derive(Debug)]
pub(crate) struct Clock(Option<OwnedFd>);

impl Clock {
    pub(crate) fn new(source: ClockSource) -> Self {
        let differs = source == ClockSource::FileSystems && kernel() >= Some(MULTIGRAIN);
        let pipe = differs.then(rustix::pipe::pipe);
        Self(pipe.and_then(Result::ok).map(|(reader, _)| reader))
    }

    pub(crate) fn now(&self) -> Timestamp {
        let stored = self.0.as_ref().map(stored_by_kernel);
        stored.and_then(io::Result::ok).unwrap_or_else(last_tick)
    }
}

/// The kernel's last tick.
pub(crate) fn last_tick() -> Timestamp {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp {
        seconds: now.tv_sec,
        nanoseconds: now.tv_nsec as u32,
    }
}

fn stored_by_kernel(pipe: &OwnedFd) -> io::Result<Timestamp> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    futimens(pipe, &times)?;
    let stat = fstat(pipe)?;
    Ok(Timestamp {
        seconds: stat.st_mtime,
        nanoseconds: stat.st_mtime_nsec as u32,
    })
}

fn kernel() -> Option<(u32, u32)> {
    let uname = rustix::system::uname();
    let mut numbers = uname.release().to_str().ok()?.split(['.', '-']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn order_of_times_is_that_of_changes_here_and_by_the_kernel() {
        let mut file = tempfile::tempfile().unwrap();
        let clock = Clock::new(ClockSource::FileSystems);
        let mut last = (0, 0);
        let mut check = |time: (i64, u32), by: &str| {
            assert!(last <= time, "{last:?} before {time:?} by {by}");
            last = time;
        };
        for _ in 0..3000 {
            file.write_all(b"x").unwrap();
            let stat = file.metadata().unwrap();
            check((stat.mtime(), stat.mtime_nsec() as u32), "the kernel");
            let now = clock.now();
            check((now.seconds, now.nanoseconds), "the clock");
        }
    }
}
