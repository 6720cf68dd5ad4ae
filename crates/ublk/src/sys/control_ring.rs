//! Commands to the control device, one at a time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode, squeue};
use zerocopy::IntoBytes;

use crate::protocol::{ControlCommand, ControlOperation};

/// The control device and a ring for its commands.
pub(crate) struct ControlRing {
    device: File,
    ring: IoUring<squeue::Entry128>,
}

impl ControlRing {
    /// # Errors
    /// Those of making an io_uring.
    pub(crate) fn new(device: File) -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build(1)?;
        Ok(Self { device, ring })
    }

    /// Runs a command, whose `addr` and `len` become those of `memory`. Returns its result.
    ///
    /// # Errors
    /// Those of the driver and of io_uring.
    pub(crate) fn run(
        &mut self,
        operation: ControlOperation,
        mut command: ControlCommand,
        memory: &mut [u8],
    ) -> io::Result<u32> {
        command.len = u16::try_from(memory.len()).expect("short structures");
        command.addr = memory.as_mut_ptr() as u64;
        let mut bytes = [0; 80];
        bytes[..size_of::<ControlCommand>()].copy_from_slice(command.as_bytes());
        let entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), operation as u32)
            .cmd(bytes)
            .build();
        // SAFETY: the entry names `memory`, which is borrowed until the completion has arrived, and
        // the device, which `self` keeps open.
        unsafe { self.ring.submission().push(&entry) }.expect("one command at a time");
        let result = loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                // The kernel may still use `memory`.
                Err(error) => panic!("a command to the ublk driver cannot be waited for: {error}"),
            }
            if let Some(completion) = self.ring.completion().next() {
                break completion.result();
            }
        };
        u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
    }
}
