//! Existing files become written, data preserved.

use std::ffi::{c_char, c_int};

use extant_hostfs::{Access, Exclusion, HostFile, MaterializeOptions, Shared, materialize_file};
use extant_space::{ByteRange, Error, ErrorKind, Result};

use super::arguments::{
    OpenFile, OperationControl, choice, initialize, initialize_first, options, pace, path,
    with_control, with_file,
};
use super::error::call;
use crate::outcome::{Failure, Status};

/// How holes and unwritten parts become written. Fill it with `extant_materialize_options_init`
/// first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RangeOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// The first byte; 0 by default.
    pub offset: u64,
    /// Bytes, cut at the end of the file; `UINT64_MAX`, the default: all that follow.
    pub length: u64,
    /// `extant_pace`; full by default.
    pub pace: u32,
    /// 1: the caller guarantees that no process writes to the range meanwhile, though others have
    /// the file open; 0, the default: refused then, and stopped when another process opens it.
    pub shared_access: u32,
    /// Bytes written a second at most; 0, the default: no limit.
    pub rate_bytes: u64,
    /// 1: parts shared with other files (reflinks) get space of their own; 0, the default: refused.
    pub unshare: u32,
    /// In the background: the share of the disk beside other users, in hundredths of a percent,
    /// from 10 (0.1 %) to 10 000; 0, the default: 4 % of the time or 0.4 % of the bytes.
    pub background_basis_points: u32,
}

/// Report of `extant_materialize`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RangeReport {
    /// Bytes that were written before.
    pub already_written_bytes: u64,
    /// Bytes of zeros written.
    pub zeroed_bytes: u64,
    /// Bytes that got space of their own.
    pub unshared_bytes: u64,
}

/// Bytes of `RangeOptions` in `LIBEXTANT_1`; a fixed number, as programs were built with it.
const OPTIONS_BYTES: usize = 48;

const DEFAULT: RangeOptions = RangeOptions {
    struct_size: size_of::<RangeOptions>(),
    offset: 0,
    length: u64::MAX,
    pace: 0,
    shared_access: 0,
    rate_bytes: 0,
    unshare: 0,
    background_basis_points: 0,
};

/// Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
/// `extant_materialize_options_init` calls it with `sizeof *options`.
///
/// # Safety
/// `options` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_materialize_options_init_sized(
    options: *mut RangeOptions,
    struct_size: usize,
) {
    // SAFETY: as promised.
    unsafe { initialize(options, DEFAULT, struct_size) };
}

/// The same for programs that were built with a header of `LIBEXTANT_1`.
///
/// # Safety
/// `options` has as many bytes as it had in that header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_materialize_options_init(options: *mut RangeOptions) {
    // SAFETY: as promised.
    unsafe { initialize_first(options, DEFAULT, OPTIONS_BYTES) };
}

/// Makes the holes and unwritten parts of the file `path` written zeros; its data stays. Called
/// again after a cancel or a crash it writes only the missing part.
///
/// `options`, `control`, `report` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_materialize(
    path: *const c_char,
    options: *const RangeOptions,
    control: *const OperationControl,
    report: *mut RangeReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let file = HostFile::open(unsafe { self::path(path) }?, Access::ReadWrite)?;
        // SAFETY: likewise.
        unsafe { materialize(&file, &understood(options)?, control, report) }
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// The same for a file that is open for reading and writing. With `shared_access` 0 no other
/// process may have it open.
///
/// # Safety
/// As of `extant_materialize`; the descriptor stays open during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_materialize_fd(
    fd: c_int,
    options: *const RangeOptions,
    control: *const OperationControl,
    report: *mut RangeReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let options = unsafe { understood(options) }?;
        let open = match options.exclusion {
            Exclusion::Lease => OpenFile::Same,
            Exclusion::Shared => OpenFile::Another,
        };
        // SAFETY: likewise.
        unsafe {
            with_file(fd, open, |file| {
                materialize(file, &options, control, report)
            })
        }
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// # Safety
/// As of `extant_materialize`.
unsafe fn materialize(
    file: &HostFile,
    options: &MaterializeOptions,
    control: *const OperationControl,
    report: *mut RangeReport,
) -> Result<()> {
    // SAFETY: as promised.
    let done = unsafe { with_control(control, |control| materialize_file(file, options, control)) };
    let done = done.map_err(|error| error.at(file.path()))?;
    if !report.is_null() {
        let found = RangeReport {
            already_written_bytes: done.already_written_bytes,
            zeroed_bytes: done.zeroed_bytes,
            unshared_bytes: done.unshared_bytes,
        };
        // SAFETY: as promised.
        unsafe { report.write(found) };
    }
    Ok(())
}

/// # Safety
/// As of `extant_materialize`.
unsafe fn understood(options: *const RangeOptions) -> Result<MaterializeOptions> {
    // SAFETY: as promised.
    let given = unsafe { self::options(options, DEFAULT, 24) }?;
    Ok(MaterializeOptions {
        range: range(given.offset, given.length)?,
        exclusion: choice(
            given.shared_access,
            &[Exclusion::Lease, Exclusion::Shared],
            "shared_access",
        )?,
        shared: choice(given.unshare, &[Shared::Refuse, Shared::Unshare], "unshare")?,
        pace: pace(given.pace, given.rate_bytes, given.background_basis_points)?,
        ..MaterializeOptions::default()
    })
}

fn range(offset: u64, length: u64) -> Result<Option<ByteRange>> {
    match (offset, length) {
        (0, u64::MAX) => Ok(None),
        (offset, length) => {
            let end = match length {
                u64::MAX => Some(u64::MAX),
                length => offset.checked_add(length),
            };
            let end = end.ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument)
                    .detail(format!("{length} bytes from {offset} are past all files"))
            })?;
            Ok(Some(ByteRange::new(offset, end)))
        }
    }
}
