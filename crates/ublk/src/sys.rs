//! The rings that carry commands to the driver, and the memory that the kernel uses meanwhile.

mod command_queue;
mod control_ring;

/// `linux/prctl.h`.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

pub(crate) use command_queue::{CommandQueue, Fetched};
pub(crate) use control_ring::ControlRing;

/// The thread serves a disk: memory that it needs is not freed by writes to that disk.
pub(crate) fn become_io_flusher() {
    // SAFETY: the call passes no memory. Without the privilege it changes nothing.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
}
