//! Disk images, raw and qcow2: their contents, and how much of their space is allocated.
//!
//! An image is a [`SpaceFile`](extant_space::SpaceFile), on the host or inside an ext4 file system.
//! Names in an image (backing file, data file) are followed only on request.
//!
//! [`format`](mod@format) has the on-disk structures of qcow2, [`device`] an image as a block
//! device, [`hold`] exclusive access to images.

#![forbid(unsafe_code)]

mod check;
mod companion;
mod compressed;
mod convert;
mod create;
pub mod detect;
pub mod device;
mod editor;
pub mod format;
mod glance;
pub mod hold;
mod info;
mod layer;
mod layout;
mod lock;
mod materialize;
mod measure;
mod new_image;
mod occupied;
mod on_disk;
mod options;
mod pieces;
mod placed;
mod preallocation;
mod qcow2;
mod reclaim;
mod resize;
mod target;

pub use check::{CheckReport, Finding, FindingKind, check, rebuild_refcounts, repair_leaks};
pub use companion::{backing_of, check_backing};
pub use convert::{Conversion, CopyOptions, convert};
pub use create::create;
pub use glance::Glance;
pub use info::{BitmapInfo, ImageInfo, Qcow2Info, SnapshotInfo, StateBytes};
pub use layer::{Follow, ImageExtent, Layer, open_path};
pub use lock::{Use, lock, unlock};
pub use materialize::{MaterializeReport, materialize};
pub use measure::{
    Measurement, bitmap_bytes, data_bytes, full_file_bytes, measure, resize_bytes_max,
};
pub use new_image::NewImage;
pub use options::{BackingFile, DataFile, Format, ImageOptions, Qcow2Options};
pub use pieces::{Missing, Pieces, verify_state};
pub use preallocation::Preallocation;
pub use reclaim::reclaim;
pub use resize::{ResizeOptions, ResizeReport, resize};
pub use target::{SpaceWriter, Target};
