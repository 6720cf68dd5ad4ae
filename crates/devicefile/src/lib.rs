//! A block device as a regular file, through FUSE.
#![doc = include_str!("../README.md")]
//!
//! [`DeviceFile`] implements the operations of a file system with one file, whose bytes are those
//! of a device: of a disk image, for example. This crate knows no image formats; it is to FUSE what
//! `extant-export` is to NBD.
//!
//! | request | device |
//! |---|---|
//! | read, write | the same, by bytes: a part of a block is read, changed and written |
//! | fsync, and the close of a descriptor after writes | flush |
//! | fallocate, mode 0 | assign |
//! | fallocate, punch | write zeroes that may free space |
//! | fallocate, zero | write zeroes that leave space allocated |
//! | lseek, `st_blocks` | status |
//!
//! The file is opened with `DIRECT_IO`: the kernel keeps no copy of the data besides that of
//! mappings, which it keeps coherent itself. So a write that has returned is in the device, memory
//! is not used twice, and requests of one file are concurrent.
//!
//! Definitions: `docs/internals/fuse.md`, "A device as a file".
//!
//! Module layers, lowest first:
//!
//! 1. `options`: appearance of the file
//! 2. `bytes`, `attributes`: byte access to a device; the attributes that are kept here
//! 3. `space`: fallocate, data and holes, allocated space
//! 4. `operations`: the file system

#![forbid(unsafe_code)]

mod attributes;
mod bytes;
mod operations;
mod options;
mod space;

pub use operations::DeviceFile;
pub use options::{DeviceFileOptions, Growth, Owner};
