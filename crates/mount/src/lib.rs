//! An ext4 file system as a FUSE mount: the engine behind [`extant_fuse::Operations`].
#![doc = include_str!("../README.md")]
//!
//! `docs/semantics.md` lists what each system call does on such a mount.
//!
//! Module layers, lowest first:
//!
//! 1. `options`, `ioctl`: mount options; the ABI of the mount's ioctls
//! 2. `volume`: the engine as operations of FUSE

#![forbid(unsafe_code)]

pub mod ioctl;
mod options;
pub mod volume;

pub use options::{AllocatorOptions, IdMapping, MountOptions};
