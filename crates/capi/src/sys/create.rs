//! New files.

use std::ffi::c_char;

use extant_hostfs::{CopyOnWrite, CreateOptions, Existing, OnFailure, create};
use extant_space::{Preallocation, Result};

use super::arguments::{
    OperationControl, check_reserved, choice, initialize, initialize_first, options, pace, path,
    with_control,
};
use super::error::call;
use crate::outcome::{Failure, Status};

/// How much space a new file gets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreallocationMode {
    /// Nothing: the file is sparse.
    Off,
    /// Space is reserved, unwritten.
    Falloc,
    /// Space is written with zeros: later writes change no metadata of the file system.
    Full,
}

/// How a file is made. Fill it with `extant_create_options_init` first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_preallocation`; full by default.
    pub preallocation: u32,
    /// `extant_pace`; full by default.
    pub pace: u32,
    /// Bytes written a second at most; 0, the default: no limit.
    pub rate_bytes: u64,
    /// The number of first bytes to allocate; `UINT64_MAX`, the default: all.
    pub allocation_bytes: u64,
    /// Permissions; `UINT32_MAX`, the default: 0666 without the umask's bits.
    pub mode: u32,
    /// 1: an existing regular file is replaced in one step when the new one is complete; 0, the
    /// default: refused.
    pub replace: u32,
    /// 1: on btrfs and its like, copy-on-write is turned off for the file, and with it checksums
    /// and compression; 0, the default: refused there.
    pub nocow: u32,
    /// 1: after a cancel or an error the partial file stays, and the next call resumes it; 0, the
    /// default: removed.
    pub keep_partial: u32,
    /// In the background: the share of the disk beside other users, in hundredths of a percent,
    /// from 10 (0.1 %) to 10 000; 0, the default: 4 % of the time or 0.4 % of the bytes.
    pub background_basis_points: u32,
    /// 0.
    pub reserved: u32,
}

/// Report of `extant_create`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct FileReport {
    /// The number of allocated first bytes.
    pub allocation_bytes: u64,
    /// Bytes of zeros written by this call.
    pub written_bytes: u64,
    /// Bytes that an earlier call had written.
    pub resumed_bytes: u64,
    /// Extents of the file.
    pub extents: u64,
}

/// Bytes of `FileOptions` in `LIBEXTANT_1`; a fixed number, as programs were built with it.
const OPTIONS_BYTES: usize = 56;

const DEFAULT: FileOptions = FileOptions {
    struct_size: size_of::<FileOptions>(),
    preallocation: PreallocationMode::Full as u32,
    pace: 0,
    rate_bytes: 0,
    allocation_bytes: u64::MAX,
    mode: u32::MAX,
    replace: 0,
    nocow: 0,
    keep_partial: 0,
    background_basis_points: 0,
    reserved: 0,
};

/// Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
/// `extant_create_options_init` calls it with `sizeof *options`.
///
/// # Safety
/// `options` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_create_options_init_sized(
    options: *mut FileOptions,
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
pub unsafe extern "C" fn extant_create_options_init(options: *mut FileOptions) {
    // SAFETY: as promised.
    unsafe { initialize_first(options, DEFAULT, OPTIONS_BYTES) };
}

/// Makes the file `path` of `size_bytes`, whose space is allocated when this returns
/// `EXTANT_STATUS_OK`: durable and verified with the extent map. It appears under its name when it
/// is complete, and not before.
///
/// `options`, `control`, `report` and `error` may be null.
///
/// # Safety
/// Every non-null pointer is valid for its type. `error` gets null, or what `extant_error_free`
/// frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_create(
    path: *const c_char,
    size_bytes: u64,
    options: *const FileOptions,
    control: *const OperationControl,
    report: *mut FileReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let (path, given) = unsafe { (self::path(path)?, self::options(options, DEFAULT, 24)?) };
        let options = understood(size_bytes, &given)?;
        // SAFETY: likewise.
        let made = unsafe { with_control(control, |control| create(path, &options, control)) }?;
        if !report.is_null() {
            let found = FileReport {
                allocation_bytes: made.allocation_bytes,
                written_bytes: made.written_bytes,
                resumed_bytes: made.resumed_bytes,
                extents: made.map.extents(),
            };
            // SAFETY: likewise.
            unsafe { report.write(found) };
        }
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

fn understood(size_bytes: u64, given: &FileOptions) -> Result<CreateOptions> {
    check_reserved(given.reserved)?;
    Ok(CreateOptions {
        preallocation: preallocation(given.preallocation)?,
        allocation_bytes: (given.allocation_bytes != u64::MAX).then_some(given.allocation_bytes),
        pace: pace(given.pace, given.rate_bytes, given.background_basis_points)?,
        existing: choice(
            given.replace,
            &[Existing::Refuse, Existing::Replace],
            "replace",
        )?,
        copy_on_write: choice(
            given.nocow,
            &[CopyOnWrite::Refuse, CopyOnWrite::Disable],
            "nocow",
        )?,
        on_failure: choice(
            given.keep_partial,
            &[OnFailure::Remove, OnFailure::KeepPartial],
            "keep_partial",
        )?,
        mode: (given.mode != u32::MAX).then_some(given.mode),
        ..CreateOptions::new(size_bytes)
    })
}

/// An `extant_preallocation`.
pub(super) fn preallocation(mode: u32) -> Result<Preallocation> {
    let modes = [
        PreallocationMode::Off,
        PreallocationMode::Falloc,
        PreallocationMode::Full,
    ];
    Ok(match choice(mode, &modes, "preallocation")? {
        PreallocationMode::Off => Preallocation::Off,
        PreallocationMode::Falloc => Preallocation::Falloc,
        PreallocationMode::Full => Preallocation::Full,
    })
}
