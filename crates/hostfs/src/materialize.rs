//! Holes and unwritten parts of an existing file become written; its data stays.
//!
//! Order: exclude other writers, refuse what cannot stay in place, make the range
//! written (`written.rs`), verify the result by the map.
//!
//! What keeps data safe:
//! - zeros go only where the map, read after a flush, says hole or unwritten;
//! - a write lease excludes all other processes (`exclusion.rs`), unless the caller guarantees that
//!   no process writes ([`Exclusion::Shared`]);
//! - a cancel or an error waits for every zero in flight.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use extant_space::{
    ByteRange, Control, Error, ErrorKind, FallocateMode, Remedy, Result, SpaceFile,
};
use rustix::fs::IFlags;
use serde::Serialize;

use crate::exclusion::{Exclusion, take_lease};
use crate::file::{Access, HostFile};
use crate::filesystem::FileSystem;
use crate::pace::Pace;
use crate::plan::Plan;
use crate::survey;
use crate::swap;
use crate::target::RangeTarget;
use crate::verify::{self, Contents, Verified};

/// Unshared in one request, which copies the data.
const UNSHARE_BYTES: u64 = 64 << 20;

/// What is done about parts shared with other files (reflinks).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shared {
    /// The file is refused: its next overwrite would allocate.
    #[default]
    Refuse,
    /// The parts get space of their own (`FALLOC_FL_UNSHARE_RANGE`), data preserved.
    Unshare,
}

/// Options of [`materialize`].
#[derive(Clone, Debug, Default)]
pub struct MaterializeOptions {
    /// The bytes to make real; `None`: the whole file. Cut at the end of the file.
    pub range: Option<ByteRange>,
    /// How other writers are kept out.
    pub exclusion: Exclusion,
    /// What is done about shared parts.
    pub shared: Shared,
    /// How the disk is used.
    pub pace: Pace,
}

/// What [`materialize`] did.
#[derive(Clone, Debug, Serialize)]
pub struct MaterializeReport {
    /// The bytes that are extant now.
    pub range: ByteRange,
    /// Bytes of it that were written before.
    pub already_written_bytes: u64,
    /// Bytes of zeros written, by the kernel or by us.
    pub zeroed_bytes: u64,
    /// Bytes that got space of their own.
    pub unshared_bytes: u64,
    /// The way taken; `None` when nothing was missing.
    pub plan: Option<Plan>,
    /// How the result was verified.
    pub verified: Verified,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

/// Makes the holes and unwritten parts of `path` written.
///
/// Fails with [`ErrorKind::InUse`] when another process has the file open,
/// [`ErrorKind::Unsupported`] where a lease does not exclude all clients (FUSE, some network file
/// systems), [`ErrorKind::CopyOnWrite`] when written space would not stay, [`ErrorKind::NoSpace`]
/// with what is missing, before anything is changed. After [`ErrorKind::Cancelled`] or an error of
/// the device the data is as before, and running again does what is left.
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
    let started = Instant::now();
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
    let size = file.size()?;
    let whole = ByteRange::new(0, size);
    let range = match options.range {
        None => whole,
        Some(range) => range.intersection(whole).unwrap_or_default(),
    };
    filesystem.check_written_stays(file).map_err(|error| {
        error
            .advice("NOCOW can be set on an empty file only")
            .remedy(Remedy::CreateWithoutCopyOnWrite)
    })?;
    let target = RangeTarget {
        file,
        filesystem: &filesystem,
        range,
        pace: &options.pace,
        control,
        lease: lease.as_ref(),
    };
    let before = survey::survey(&target)?;
    let unshared_bytes = match (before.shared_bytes, options.shared) {
        (0, _) => 0,
        (bytes, Shared::Unshare) => {
            unshare(&target)?;
            bytes
        }
        (bytes, Shared::Refuse) => {
            return Err(Error::new(ErrorKind::CopyOnWrite)
                .at(path)
                .detail(format!(
                    "{bytes} bytes are shared with other files (reflinks): their next overwrite would allocate"
                ))
                .remedy(Remedy::Unshare));
        }
    };
    target.check_space(before.hole_bytes)?;
    let made = target.make_written()?;
    let verified = verify::written(&target, Contents::Any)?;
    Ok(MaterializeReport {
        range,
        already_written_bytes: made.already_written_bytes,
        zeroed_bytes: made.zeroed_bytes,
        unshared_bytes,
        plan: made.plan,
        verified,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    })
}

fn unshare(target: &RangeTarget<'_>) -> Result<()> {
    for piece in target.range.chunks(UNSHARE_BYTES) {
        target.check_stop()?;
        target
            .file
            .fallocate(FallocateMode::UnshareRange, piece)
            .map_err(|error| match error.kind() {
                ErrorKind::Unsupported => error
                    .with_kind(ErrorKind::CopyOnWrite)
                    .detail("this file system cannot unshare; copy the file instead"),
                _ => error,
            })?;
    }
    Ok(())
}
