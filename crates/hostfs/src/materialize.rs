//! Holes and unwritten parts of an existing file become written; its data is preserved.
//!
//! Order: exclude other writers, refuse copy-on-write files, then the work of
//! [`Provisioner::materialize`].
//!
//! Safety of data:
//! - zeros are written only to ranges that the map, read after a flush, reports as hole or
//!   unwritten;
//! - a write lease excludes all other processes (`exclusion.rs`), unless the caller guarantees that
//!   no process writes ([`Exclusion::Shared`]);
//! - a cancel or an error waits for every zero in flight.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use extant_provision::{MaterializeReport, Pace, Provisioner, Shared};
use extant_space::{ByteRange, Control, Error, ErrorKind, Remedy, Result, SpaceFile};
use rustix::fs::IFlags;

use crate::assign::{Reach, assign_below, write_through};
use crate::exclusion::{Exclusion, check_lease, take_lease};
use crate::file::{Access, HostFile};
use crate::filesystem::FileSystem;
use crate::swap;

/// Options of [`materialize`].
#[derive(Clone, Debug, Default)]
pub struct MaterializeOptions {
    /// The bytes to materialize; `None`: the whole file. Cut at the end of the file.
    pub range: Option<ByteRange>,
    /// Exclusion of other writers.
    pub exclusion: Exclusion,
    /// Treatment of shared extents.
    pub shared: Shared,
    /// How the disk is used.
    pub pace: Pace,
    /// Lowest layer.
    pub reach: Reach,
}

/// Makes the holes and unwritten parts of `path` written.
///
/// Fails with [`ErrorKind::InUse`] when another process has the file open,
/// [`ErrorKind::Unsupported`] where a lease does not exclude all clients (FUSE, some network file
/// systems), [`ErrorKind::CopyOnWrite`] when written space would not stay, [`ErrorKind::NoSpace`]
/// with the missing bytes, before any change. After [`ErrorKind::Cancelled`] or an error of the
/// device the data is unchanged, and running again does the rest.
pub fn materialize(
    path: &Path,
    options: &MaterializeOptions,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    HostFile::open(path, Access::ReadWrite)
        .and_then(|file| materialize_file(&file, options, control))
        .map_err(|error| error.at(path))
}

/// [`materialize`] for a file that only the caller has open, for reading and writing.
pub fn materialize_file(
    file: &HostFile,
    options: &MaterializeOptions,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    let path = file.path();
    let metadata = file.metadata()?;
    if !metadata.file_type().is_file() {
        return Err(crate::file::wrong_type(path));
    }
    swap::check_is_none(path, metadata.dev(), metadata.ino())?;
    let attributes = file.attributes();
    if attributes.intersects(IFlags::IMMUTABLE | IFlags::APPEND) {
        return Err(Error::new(ErrorKind::Immutable)
            .at(path)
            .advice("chattr -i -a lifts it"));
    }
    let filesystem = FileSystem::under(file)?;
    let lease = match options.exclusion {
        Exclusion::Lease => Some(take_lease(file, &filesystem)?),
        Exclusion::Shared => None,
    };
    file.check_written_stays().map_err(|error| {
        error
            .advice("NOCOW can be set on an empty file only")
            .remedy(Remedy::CreateWithoutCopyOnWrite)
    })?;
    let stack = options.reach.stack(file)?;
    let whole = ByteRange::new(0, file.size()?);
    let range = options.range.unwrap_or(whole).intersection(whole);
    let range = range.unwrap_or_default();
    let guard = || check_lease(file, lease.as_ref());
    let target = Provisioner::new(file, range, control)
        .at_pace(&options.pace)
        .guarded(&guard);
    let place = |error: Error| error.at(path);
    if let Some(stack) = &stack {
        // The layers below get the space at once, not in the order of the writes.
        assign_below(stack, file, &target).map_err(place)?;
    }
    let report = target.materialize(options.shared).map_err(place)?;
    match &stack {
        None => Ok(report),
        Some(stack) => {
            let below = write_through(stack, file, &target).map_err(place)?;
            Ok(MaterializeReport {
                zeroed_below_bytes: below.zeroed_bytes,
                layers: below.layers,
                ..report
            })
        }
    }
}
