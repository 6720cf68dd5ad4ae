//! Control calls of a mount: what the kernel lets no FUSE file system answer otherwise.
//!
//! Numbers and structures are those that callers use; `volume` answers.
//!
//! Format and rules for callers: docs/formats/ioctl.md.

pub use extant_sys::mounted::{
    EXTENTS, EXTENTS_MAX, ExtentsPage, FALLOCATE, Fallocate, MAGIC, MappedExtent, PROBE, Probe,
    TYPE, UNWRITTEN, VERSION, fallocate_bits, fallocate_mode, probe_flags,
};
