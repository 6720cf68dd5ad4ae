//! `FS_IOC_SHUTDOWN`: ends the file system as a crash would, for tests of crash recovery.
//!
//! The command number encodes an output (`_IOR`), but its flags are an input: the kernel does not
//! copy them, so they are read from the caller's memory. For root only.
//!
//! | flags | durable before |
//! |---|---|
//! | `DEFAULT` | all data, including the kernel's dirty data, and all metadata |
//! | `LOGFLUSH` | the data that the server has; data in the kernel's cache is lost |
//! | `NOLOGFLUSH` | data already durable |
//!
//! Afterwards changes and reads of data fail with `IO`, until the next mount. The kernel continues
//! to answer from its caches.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use extant_ext4::Shutdown;
use rustix::io::Errno;
use rustix::ioctl::opcode;

use super::Volume;
use super::caller::is_privileged;
use extant_fuse::operations::{Caller, Result};

pub(super) const SHUTDOWN: u32 = opcode::read::<u32>(b'X', 125) as u32;

impl Volume {
    /// Shuts down with the flags at `address` in the caller's memory, and returns those.
    pub(super) fn shut_down(&self, caller: Caller, address: u64) -> Result<u32> {
        if !is_privileged(caller) {
            return Err(Errno::PERM);
        }
        let flags = flags_at(caller, address).ok_or(Errno::FAULT)?;
        let shutdown = match flags {
            0 => Shutdown::Default,
            1 => Shutdown::LogFlush,
            2 => Shutdown::NoLogFlush,
            _ => return Err(Errno::INVAL),
        };
        if self.is_shut_down() {
            return Ok(flags);
        }
        if shutdown == Shutdown::Default {
            for node in self.nodes.with_writers() {
                self.flush_cache(node, 0, None)?;
            }
        }
        self.reply_errno(self.filesystem.shut_down(shutdown))?;
        self.shut_down.store(true, Ordering::Release);
        Ok(flags)
    }

    pub(super) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// # Errors
    /// `IO` after a shutdown.
    pub(super) fn check_running(&self) -> Result<()> {
        if self.is_shut_down() {
            Err(Errno::IO)
        } else {
            Ok(())
        }
    }
}

fn flags_at(caller: Caller, address: u64) -> Option<u32> {
    let memory = File::open(format!("/proc/{}/mem", caller.pid)).ok()?;
    let mut flags = [0; 4];
    memory.read_exact_at(&mut flags, address).ok()?;
    Some(u32::from_ne_bytes(flags))
}
