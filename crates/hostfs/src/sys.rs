//! System calls that need `unsafe`, each behind a safe function.
//!
//! Everything else of the crate forbids `unsafe`. The files follow the kernel
//! interfaces: extent maps, leases, the zero buffer, io_uring, processes.

pub(crate) mod buffer;
pub(crate) mod calls;
pub(crate) mod elsewhere;
pub(crate) mod fiemap;
pub(crate) mod lease;
pub(crate) mod uring;
