//! Ioctls of a mount, for operations that the kernel does not forward to FUSE file systems.
//!
//! Numbers and structures are those of the client side in `extant-sys`; `volume` implements them.
//!
//! Format and rules for callers: docs/formats/ioctl.md.

pub use extant_sys::mounted::{
    EXTENTS, EXTENTS_MAX, ExtentsPage, FALLOCATE, Fallocate, MAGIC, MappedExtent, PROBE, Probe,
    TYPE, UNWRITTEN, VERSION, fallocate_bits, fallocate_mode, probe_flags,
};
