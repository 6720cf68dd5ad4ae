//! Disk images, raw and qcow2: creation, inspection, change, conversion, block devices.
#![doc = include_str!("../README.md")]
//!
//! An image is a [`SpaceFile`](extant_space::SpaceFile), on the host or inside an ext4 file system.
//! A name that an image holds (backing file, data file) is opened only if the caller permits it.
//!
//! [`format`](mod@format) has the on-disk structures of qcow2, [`device`] presents an image as a
//! block device, and [`hold`] opens image files and block devices exclusively.
//!
//! Module layers, lowest first:
//!
//! 1. `data_bitmap`, `format`, `image_format`, `lock`, `preallocation`: values, locks
//! 2. `cluster_map`, `compressed`, `detect`, `hold`, `layout`, `options`, `store`: detection,
//!    options, storage
//! 3. `header_probe`, `new_image`, `qcow2`, `referenced_file`: headers, and files they name
//! 4. `check`, `layer`: metadata checks; an image and its backing chain
//! 5. `device`, `info`: access as a block device; descriptions
//! 6. `on_disk`: qcow2 images directly on block devices
//! 7. `create`, `image_file`: files that an image is written to
//! 8. `convert`, `offline_edit`: copies between formats; offline edits
//! 9. `materialize`, `measure`, `reclaim`, `resize`: operations on whole images
//! 10. `growing_image`: access as a block device that can be resized

#![forbid(unsafe_code)]

mod check;
mod cluster_map;
mod compressed;
mod convert;
mod create;
mod data_bitmap;
pub mod detect;
pub mod device;
pub mod format;
mod growing_image;
mod header_probe;
pub mod hold;
mod image_file;
mod image_format;
mod info;
mod layer;
mod layout;
mod lock;
mod materialize;
mod measure;
mod new_image;
mod offline_edit;
mod on_disk;
mod options;
mod preallocation;
mod qcow2;
mod reclaim;
mod referenced_file;
mod resize;
mod store;

pub use check::{CheckReport, Finding, FindingKind, check, rebuild_refcounts, repair_leaks};
pub use convert::{Conversion, CopyOptions, convert, convert_to_cluster};
pub use create::create;
pub use growing_image::GrowingImage;
pub use header_probe::HeaderProbe;
pub use image_file::ImageFile;
pub use image_format::Format;
pub use info::{BitmapInfo, ImageInfo, Qcow2Info, SnapshotInfo, StateBytes};
pub use layer::{
    ImageExtent, Layer, ReferencedFiles, hold_export, hold_file, open_file, open_layer, open_path,
};
pub use lock::{LockAccess, lock, unlock};
pub use materialize::{MaterializeReport, materialize};
pub use measure::{
    Measurement, bitmap_bytes, data_bytes, full_file_bytes, measure, resize_bytes_max,
};
pub use new_image::NewImage;
pub use options::{BackingFile, DataFile, ImageOptions, Qcow2Options};
pub use preallocation::Preallocation;
pub use reclaim::reclaim;
pub use referenced_file::{backing_of, check_backing};
pub use resize::{ResizeOptions, ResizeReport, resize};
