//! Images of Ceph RBD: clusters and pools, images with their snapshots, and a block device.
#![doc = include_str!("../README.md")]
//!
//! Module layers, lowest first:
//!
//! 1. `sys`: the calls of the libraries, and all `unsafe` code
//! 2. `options`: options of a client
//! 3. `cluster`, `name`: clients, names of images
//! 4. `pool`: images by name
//! 5. `image`: open images, snapshots, watchers, locks
//! 6. `cancellable`, `device`: requests that a cancel leaves alone; the driver
//! 7. `materialize`, `writer`: thick images, copies into an image
//!
//! Threads, locks, limits, and why it is written here: docs/internals/rbd.md.

mod cancellable;
mod cluster;
mod device;
mod image;
mod materialize;
mod name;
mod options;
mod pool;
mod sys;
mod writer;

pub use cluster::Cluster;
pub use device::RbdDevice;
pub use image::{Image, ObjectDetail, RbdAccess, Snapshot, Watcher};
pub use materialize::{
    MaterializeOptions, MaterializeReport, VerifiedObjects, ZeroMethod, materialize, overwrite,
};
pub use name::RbdName;
pub use options::{ClusterOptions, RbdCache, RbdTimeouts};
pub use pool::{ImageFeatures, ImageLayout, Pool, PoolStatistics};
pub use sys::availability;
pub use writer::ImageWriter;
