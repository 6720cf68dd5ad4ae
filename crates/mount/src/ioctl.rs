//! Ioctls of a mount, for operations that the kernel does not forward to FUSE file systems.
//!
//! Numbers and structures are those of the client side in `extant-sys`; `volume` implements them.
//!
//! Format and rules for callers: docs/formats/ioctl.md.

pub use extant_sys::mounted::{
    ALLOCATOR, Allocator, AllocatorCounters, CacheCounters, EXTENTS, EXTENTS_MAX, ExtentsPage,
    FALLOCATE, Fallocate, JournalCounters, MAGIC, MappedExtent, PROBE, Probe, STATISTICS,
    Statistics, TYPE, UNWRITTEN, VERSION, allocator_bits, fallocate_bits, fallocate_mode,
    probe_flags, statistics_flags,
};
