//! `FS_IOC_SHUTDOWN`: ends the file system while it is in use, for tests of crash recovery.
//!
//! The command number encodes an output (`_IOR`), but its flags are an input: FUSE does not copy
//! them, so they are read from the caller's memory. The caller needs `CAP_SYS_ADMIN`.
//!
//! | flags | durable before |
//! |---|---|
//! | `DEFAULT` | all data, including the kernel's dirty data, and all metadata; the image is clean |
//! | `LOGFLUSH` | the data that the server has; dirty data in the kernel's cache is lost |
//! | `NOLOGFLUSH` | data already durable |
//!
//! Afterwards changes, syncs and reads of data fail with `IO`, until the next mount. So that reads
//! are not answered from the kernel's cache, it is dropped; dirty data in it fails to be written
//! back. Names and attributes stay readable, as in the kernel's ext4.

use std::fs::File;
use std::os::unix::fs::FileExt;

use extant_ext4::Shutdown;
use rustix::io::Errno;
use rustix::ioctl::opcode;

use super::Volume;
use super::caller::may_administer;
use extant_fuse::operations::{Caller, Result};

pub(super) const SHUTDOWN: u32 = opcode::read::<u32>(b'X', 125) as u32;

impl Volume {
    /// Shuts down with the flags at `address` in the caller's memory.
    pub(super) fn shut_down(&self, caller: Caller, address: u64) -> Result<()> {
        if !may_administer(caller) {
            return Err(Errno::PERM);
        }
        let shutdown = match flags_at(caller, address).ok_or(Errno::FAULT)? {
            0 => Shutdown::Default,
            1 => Shutdown::LogFlush,
            2 => Shutdown::NoLogFlush,
            _ => return Err(Errno::INVAL),
        };
        if self.filesystem.is_shut_down() {
            return Ok(());
        }
        if shutdown == Shutdown::Default {
            for node in self.nodes.with_writers() {
                // A file that has no space for its data gets the error at its own sync.
                let _ = self.flush_cache(node, 0, None);
            }
        }
        let done = self.filesystem.shut_down(shutdown);
        for node in self.nodes.cached() {
            // Write-back fails from now on.
            let _ = self.flush_cache(node, 0, None);
        }
        done.map_err(|error| {
            (self.report)(&error);
            Errno::IO
        })
    }

    /// # Errors
    /// `IO` after a shutdown.
    pub(super) fn check_running(&self) -> Result<()> {
        if self.filesystem.is_shut_down() {
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
