//! Written preallocation on any file system of the host.
#![doc = include_str!("../README.md")]
//!
//! [`create`] creates a file with written space, [`materialize`] does the same to an existing file
//! without touching its data, [`write_zeroes`] zeroes a range and leaves it written, and [`probe`]
//! reports what a directory supports. `extant-provision` allocates and writes the space, by one
//! [`Plan`]: the first strategy the target supports, with the reason for it. This crate opens the
//! files, excludes other writers and publishes the names. [`HostFile`] is the
//! [`SpaceFile`](extant_space::SpaceFile) of the host.
//!
//! Long operations take a [`Control`](extant_space::Control) (cancel token and
//! progress) and a [`Pace`] (full speed, a rate, or in the background).
//!
//! Module layers, lowest first:
//!
//! 1. `detached`, `directory`, `disk`, `holders`, `mark`, `swap`, `sys`: system
//!    calls and facts of the host
//! 2. `file`, `removal`: an open file
//! 3. `dig`, `scratch`: holes of a file, and unnamed files
//! 4. `filesystem`: the file system of a file
//! 5. `destination`, `devices`, `exclusion`, `fast_zeroing`, `space_file`: names, devices below a
//!    file, leases, capabilities of a disk, and an open file as a `SpaceFile`
//! 6. `assign`, `partial`, `probe`: layers below existing files, partial files, and
//!    capabilities of a file system
//! 7. `materialize`: existing files
//! 8. `create`: creation of files

#![deny(unsafe_code)]

mod assign;
mod create;
mod destination;
mod detached;
mod devices;
mod dig;
mod directory;
mod disk;
mod exclusion;
mod fast_zeroing;
mod file;
mod filesystem;
mod holders;
mod mark;
mod materialize;
mod partial;
mod probe;
mod removal;
mod scratch;
mod space_file;
mod swap;
#[allow(unsafe_code)]
mod sys;

pub use assign::{AssignReport, Reach, assign, assign_file, zero_through};
pub use create::{CopyOnWrite, CreateOptions, CreateReport, OnFailure, create, create_filled};
pub use destination::Durable;
pub use detached::{HELPER, help, use_helper};
pub use devices::{DeviceBelow, devices_below};
pub use dig::{HoleReport, Span, SpanKind, dig_holes, dig_holes_in, report_holes, report_holes_in};
pub use directory::{Directory, Existing, path_of_open};
pub use disk::DiskLimits;
pub use exclusion::Exclusion;
pub use extant_provision::{
    ContentOrder, ContentWriter, DataWriter, Fallback, MaterializeReport, Pace, Plan, Rejected,
    Shared, Strategy, Verified, WriteZeroesReport, write_zeroes,
};
pub use extant_space::SharedRate;
pub use extant_sys::direct::DirectIo;
pub use extant_sys::extents::MapSource;
pub use fast_zeroing::{FastZeroing, VirtioBlk};
pub use file::{Access, HostFile};
pub use filesystem::{FileSystem, FileSystemKind};
pub use holders::{
    Holder, describe as describe_holders, describe_below as describe_users_below,
    describe_or_other as describe_holders_or_other, holders,
};
pub use materialize::{MaterializeOptions, materialize, materialize_file};
pub use probe::{
    DeviceProbe, FileProbe, LayerProbes, ModeResult, ProbeReport, probe, probe_through,
};
pub use removal::remove_soon;
