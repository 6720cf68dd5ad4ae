//! Written preallocation on any file system of the host.
//!
//! [`create`] makes a file with allocated space, [`materialize`] does the same to an existing file
//! without changing its data, [`write_zeroes`] zeroes a range and leaves it written, and [`probe`]
//! reports what a place supports. All of them follow one [`Plan`]: the first strategy that the
//! target supports, with the reason for it. [`HostFile`] is the
//! [`SpaceFile`](extant_space::SpaceFile) of the host.
//!
//! Long operations take a [`Control`](extant_space::Control) (cancel token and progress) and a
//! [`Pace`] (full speed, a rate, or in the background).

#![deny(unsafe_code)]

mod calls;
mod create;
mod data_writer;
mod destination;
mod dig;
mod disk;
mod elsewhere;
mod exclusion;
mod file;
mod filesystem;
mod holders;
mod mark;
mod materialize;
mod missing;
mod pace;
mod partial;
mod plan;
mod probe;
mod removal;
mod scratch;
mod swap;
#[allow(unsafe_code)]
mod sys;
mod verify;
mod write_zeroes;
mod written;
mod zero_writer;

pub use create::{
    CopyOnWrite, CreateOptions, CreateReport, FillOrder, Filling, OnFailure, create, create_filled,
};
pub use data_writer::DataWriter;
pub use destination::{Durable, Existing};
pub use dig::{HoleReport, Span, SpanKind, dig_holes, dig_holes_in, report_holes, report_holes_in};
pub use disk::DiskLimits;
pub use elsewhere::{HELPER, help, use_helper};
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
