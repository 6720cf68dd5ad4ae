//! Existing images become fully allocated.

use std::ffi::c_char;

use extant_image::detect::{Purpose, format_of_existing};
use extant_image::{Format, ImageFile, ReferencedFiles, materialize};

use super::arguments::{
    OperationControl, Room, initialize, initialize_first, options, pace, path, with_control,
};
use super::error::call;
use super::image::format;
use super::image_convert::follow;
use crate::outcome::{Failure, Status};

/// How an image becomes full. Fill it with `extant_image_materialize_options_init` first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FullImageOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_image_format`; by name and contents by default.
    pub format: u32,
    /// 1: the data file that the image names is materialized as well, and its backing file is read:
    /// the creator of the image chooses which files of the host these are; 0, the default: an image
    /// that needs one is refused.
    pub open_named_files: u32,
    /// `extant_pace`; full by default. A block device has only that.
    pub pace: u32,
    /// As in `extant_create_options`.
    pub background_basis_points: u32,
    /// Bytes written a second at most; 0, the default: no limit. Not for block devices.
    pub rate_bytes: u64,
}

/// Report of `extant_image_materialize`. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FullImageReport {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// Size of the guest's disk, bytes, all of which is written now.
    pub capacity_bytes: u64,
    /// Bytes of the disk that were written before.
    pub already_written_bytes: u64,
    /// Size of the file, bytes.
    pub size_bytes: u64,
}

/// Bytes of the first version of `FullImageReport`; a fixed number.
const REPORT_BYTES: usize = 32;

/// Bytes of `FullImageOptions` in `LIBEXTANT_2`; a fixed number, as programs were built with it.
const OPTIONS_BYTES: usize = 32;

const DEFAULT: FullImageOptions = FullImageOptions {
    struct_size: size_of::<FullImageOptions>(),
    format: 0,
    open_named_files: 0,
    pace: 0,
    background_basis_points: 0,
    rate_bytes: 0,
};

/// Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
/// `extant_image_materialize_options_init` calls it with `sizeof *options`.
///
/// # Safety
/// `options` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_materialize_options_init_sized(
    options: *mut FullImageOptions,
    struct_size: usize,
) {
    // SAFETY: as promised.
    unsafe { initialize(options, DEFAULT, struct_size) };
}

/// The same for programs that were built with a header of `LIBEXTANT_2`.
///
/// # Safety
/// `options` has as many bytes as it had in that header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_materialize_options_init(options: *mut FullImageOptions) {
    // SAFETY: as promised.
    unsafe { initialize_first(options, DEFAULT, OPTIONS_BYTES) };
}

/// Makes the image `path` full in place: every cluster mapped and written, data preserved. No other
/// process may have it open: `EXTANT_STATUS_IN_USE`. Clusters shared with snapshots are copied,
/// compressed ones expanded. After an error or a cancel the data is as before, and another call
/// does the rest.
///
/// `options`, `control`, `report` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_materialize(
    path: *const c_char,
    options: *const FullImageOptions,
    control: *const OperationControl,
    report: *mut FullImageReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let path = unsafe { self::path(path) }?;
        // SAFETY: likewise.
        let room = unsafe { Room::of(report, REPORT_BYTES) }?;
        // SAFETY: likewise.
        let given = unsafe { self::options(options, DEFAULT, OPTIONS_BYTES) }?;
        let said = format(given.format, "format")?;
        let follow = follow(given.open_named_files)?;
        let pace = pace(given.pace, given.rate_bytes, given.background_basis_points)?;
        let fill_image = |control: extant_space::Control<'_>| {
            let image = ImageFile::host(path, pace)?;
            image.check_pace()?;
            let format = format_of_existing(path, said, &**image.file(), Purpose::Use)?;
            let image = match (format, follow) {
                (Format::Qcow2, ReferencedFiles::Open) => image.with_named_files()?,
                _ => image,
            };
            materialize(&image, format, control)
        };
        // SAFETY: likewise.
        let done = unsafe { with_control(control, fill_image) }.map_err(|error| error.at(path))?;
        room.fill(FullImageReport {
            struct_size: size_of::<FullImageReport>(),
            capacity_bytes: done.virtual_bytes,
            already_written_bytes: done.already_written_bytes,
            size_bytes: done.file_bytes,
        });
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}
