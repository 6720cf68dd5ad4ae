//! System calls that need `unsafe`, each behind a safe function.
//!
//! Everything else of the crate forbids `unsafe`. The files follow the kernel
//! interfaces: leases, io_uring. What other crates use as well is in `extant-sys`.

pub(crate) mod calls;
pub(crate) mod lease;
pub(crate) mod uring;
