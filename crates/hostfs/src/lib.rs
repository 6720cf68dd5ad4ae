//! Written preallocation on any file system of the host.
//!
//! [`create`] creates a file with written space, [`materialize`] does the
//! same to an existing file without touching its data, [`write_zeroes`] zeroes a
//! range and leaves it written, and [`probe`] reports what a directory supports. All of
//! them follow one [`Plan`]: the first strategy the target supports, with the
//! reason for it. [`HostFile`] is the [`SpaceFile`](extant_space::SpaceFile) of
//! the host.
//!
//! Long operations take a [`Control`](extant_space::Control) (cancel token and
//! progress) and a [`Pace`] (full speed, a rate, or in the background).
//!
//! Module layers, lowest first:
//!
//! 1. `detached`, `disk`, `holders`, `mark`, `swap`, `sys`: system calls and facts of the host
//! 2. `file`, `removal`: an open file
//! 3. `dig`, `scratch`: holes of a file, and unnamed files
//! 4. `filesystem`: the file system of a file
//! 5. `destination`, `exclusion`, `pace`, `plan`: names, leases, rates and strategies
//! 6. `data_writer`, `partial`, `probe`, `target`: a range of a file as a target, and partial files
//! 7. `survey`, `timed_calls`, `verify`, `zero_writer`: steps of making a range written
//! 8. `materialize`, `write_zeroes`, `written`: operations on existing files
//! 9. `create`: creation of files

#![deny(unsafe_code)]

mod create;
mod data_writer;
mod destination;
mod detached;
mod dig;
mod disk;
mod exclusion;
mod file;
mod filesystem;
mod holders;
mod mark;
mod materialize;
mod pace;
mod partial;
mod plan;
mod probe;
mod removal;
mod scratch;
mod survey;
mod swap;
#[allow(unsafe_code)]
mod sys;
mod target;
mod timed_calls;
mod verify;
mod write_zeroes;
mod written;
mod zero_writer;

pub use create::{
    ContentOrder, ContentWriter, CopyOnWrite, CreateOptions, CreateReport, OnFailure, create,
    create_filled,
};
pub use data_writer::DataWriter;
pub use destination::{Durable, Existing};
pub use detached::{HELPER, help, use_helper};
pub use dig::{HoleReport, Span, SpanKind, dig_holes, dig_holes_in, report_holes, report_holes_in};
pub use disk::DiskLimits;
pub use exclusion::Exclusion;
pub use extant_sys::direct::DirectIo;
pub use extant_sys::extents::MapSource;
pub use file::{Access, HostFile};
pub use filesystem::{FileSystem, FileSystemKind};
pub use holders::{Holder, describe as describe_holders, holders};
pub use materialize::{
    MaterializeOptions, MaterializeReport, Shared, materialize, materialize_file,
};
pub use pace::{Pace, SharedRate};
pub use plan::{Plan, Rejected, Strategy};
pub use probe::{ModeResult, ProbeReport, probe};
pub use removal::remove_soon;
pub use verify::Verified;
pub use write_zeroes::{Fallback, WriteZeroesReport, write_zeroes};
