//! Copies of disk images.

use std::ffi::c_char;
use std::path::Path;

use extant_image::detect::{Purpose, format_of_existing};
use extant_image::hold::{refuse_export, refuse_same_file};
use extant_image::{
    CopyOptions, Format, Layer, Preallocation, ReferencedFiles, convert, hold_file, open_file,
    open_layer,
};
use extant_space::{CancelToken, Result};

use super::arguments::{
    OperationControl, check_reserved, choice, initialize, initialize_first, options, path,
    with_control,
};
use super::error::call;
use super::image::{NewImage, NewImageOptions, NewImageReport, format};
use crate::outcome::{Failure, Status};

/// How the source of a copy is read. Fill it with `extant_image_source_init` first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ImageSource {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_image_format`; by name and contents by default.
    pub format: u32,
    /// 1: the backing files and data files that the image names are opened: the creator of the
    /// image chooses which files of the host these are; 0, the default: an image that needs one is
    /// refused.
    pub open_named_files: u32,
    /// Threads that copy; 0, the default: by the number of processors. In the background: one.
    pub threads: u32,
    /// 0.
    pub reserved: u32,
    /// Size of the new disk, bytes, at least that of the source; 0, the default: that of the
    /// source.
    pub capacity_bytes: u64,
}

/// Bytes of `ImageSource` in `LIBEXTANT_2`; a fixed number, as programs were built with it.
const OPTIONS_BYTES: usize = 32;

const DEFAULT: ImageSource = ImageSource {
    struct_size: size_of::<ImageSource>(),
    format: 0,
    open_named_files: 0,
    threads: 0,
    reserved: 0,
    capacity_bytes: 0,
};

/// Sets the defaults in `source`, of which the caller knows `struct_size` bytes. The header's
/// `extant_image_source_init` calls it with `sizeof *source`.
///
/// # Safety
/// `source` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_source_init_sized(
    source: *mut ImageSource,
    struct_size: usize,
) {
    // SAFETY: as promised.
    unsafe { initialize(source, DEFAULT, struct_size) };
}

/// The same for programs that were built with a header of `LIBEXTANT_2`.
///
/// # Safety
/// `source` has as many bytes as it had in that header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_source_init(source: *mut ImageSource) {
    // SAFETY: as promised.
    unsafe { initialize_first(source, DEFAULT, OPTIONS_BYTES) };
}

/// Copies the disk in the image `source` into the new image `target`, which has its name when it is
/// complete. No process may write to the source meanwhile: `EXTANT_STATUS_IN_USE`. Holes and zeros
/// are not read. After an error or a cancel no file is left.
///
/// `how`, `options`, `control`, `report` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_convert(
    source: *const c_char,
    target: *const c_char,
    how: *const ImageSource,
    options: *const NewImageOptions,
    control: *const OperationControl,
    report: *mut NewImageReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let (source, target) = unsafe { (path(source)?, path(target)?) };
        // SAFETY: likewise.
        let room = unsafe { NewImageReport::room(report) }?;
        // SAFETY: likewise.
        let how = unsafe { self::options(how, DEFAULT, OPTIONS_BYTES) }?;
        check_reserved(how.reserved)?;
        refuse_export(target)?;
        refuse_same_file(source, target)?;
        let _held = hold_file(source)?;
        // SAFETY: likewise.
        let wanted = unsafe { NewImage::from_c(target, how.capacity_bytes, options) }?;
        wanted.check_copy()?;
        let mut image = wanted.image(Preallocation::Off)?;
        let follow = follow(how.open_named_files)?;
        let mut copy = CopyOptions {
            rate: wanted.file.pace.rate(),
            follow,
            ..CopyOptions::default()
        };
        if how.threads > 0 {
            copy.threads = how.threads as usize;
        }
        let copy = |control: extant_space::Control<'_>| {
            let format = format(how.format, "format")?;
            let layer = open_image(source, format, Purpose::Use, follow, control.cancel)?;
            if how.capacity_bytes == 0 {
                image.virtual_bytes = layer.virtual_bytes();
            }
            let made = convert(&layer, target, &image, &wanted.file, copy, control)?;
            Ok(NewImageReport::of(&image, &made))
        };
        // SAFETY: likewise.
        room.fill(unsafe { with_control(control, copy) }?);
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Whether the files that an image names are opened.
pub(super) fn follow(open_named_files: u32) -> Result<ReferencedFiles> {
    let all = [ReferencedFiles::Ignore, ReferencedFiles::Open];
    choice(open_named_files, &all, "open_named_files")
}

/// The image at `path`, for reading.
pub(super) fn open_image(
    path: &Path,
    said: Option<Format>,
    purpose: Purpose,
    follow: ReferencedFiles,
    cancel: &CancelToken,
) -> Result<Layer> {
    let file = open_file(path)?;
    let format = format_of_existing(path, said, &*file, purpose).map_err(|error| error.at(path))?;
    Ok(open_layer(file, path, format, follow)?.with_cancel(cancel))
}
