//! Allocated and written space in a range of any file.
#![doc = include_str!("../README.md")]
//!
//! A [`Provisioner`] works on a range of a [`SpaceFile`](extant_space::SpaceFile): a file of the
//! host, a file inside an ext4 file system, a disk image. Its steps are the same for all of them:
//!
//! 1. survey: read the extent map;
//! 2. allocate the holes, in requests as large as a cancel allows;
//! 3. choose a [`Plan`]: the first strategy that the file supports, with the reason;
//! 4. write zeros over the extents that are not written, at the [`Pace`];
//! 5. sync, and verify the result by the map.
//!
//! | operation | existing data | |
//! |---|---|---|
//! | [`Provisioner::allocate`] | kept | holes get space |
//! | [`Provisioner::materialize`] | kept | holes and unwritten parts become written |
//! | [`Provisioner::provision_new`] | none | a new file gets size, space and contents |
//! | [`write_zeroes`] | lost | the range is zeroed and written, as by `fallocate -w` |
//! | [`Provisioner::prepare`] | erased | a range of a disk gets a new owner |
//! | [`Provisioner::overwrite`] | erased | zeros are written as data |
//! | [`DataWriter`] | overwritten | contents are written at the pace |
//!
//! The crate opens no files and takes no locks: the caller excludes other writers.
//!
//! Module layers, lowest first:
//!
//! 1. `pace`, `plan`: rates and strategies
//! 2. `data_writer`, `provisioner`: contents, and the range that an operation works on
//! 3. `survey`, `timed_calls`, `verify`, `zero_writer`: steps
//! 4. `through`: the layers below
//! 5. `make_written`: their order
//! 6. `materialize`, `new_file`, `write_zeroes`: operations
//! 7. `prepare`: the same for a disk that may not zero

#![forbid(unsafe_code)]

mod data_writer;
mod make_written;
mod materialize;
mod new_file;
mod pace;
mod plan;
mod prepare;
mod provisioner;
mod survey;
#[cfg(test)]
mod test_file;
mod through;
mod timed_calls;
mod verify;
mod write_zeroes;
mod zero_writer;

pub use data_writer::DataWriter;
pub use extant_space::SharedRate;
pub use make_written::Provisioned;
pub use materialize::{MaterializeReport, Shared};
pub use new_file::{ContentOrder, ContentWriter, NewFile, NewFileReport};
pub use pace::{Pace, Pacer};
pub use plan::{Plan, Rejected, Strategy, refusal};
pub use prepare::Prepared;
pub use provisioner::{Provisioner, no_guard};
pub use survey::Survey;
pub use verify::{Contents, Verified};
pub use write_zeroes::{Fallback, WriteZeroesReport, write_zeroes};
