//! Disk images: their options, creation.

use std::ffi::c_char;
use std::path::Path;

use extant_hostfs::{CopyOnWrite, CreateOptions, CreateReport, Existing, OnFailure};
use extant_image::detect::format_of_new;
use extant_image::format::{Compression, Version};
use extant_image::{
    BackingFile, DataFile, Format, ImageOptions, Preallocation, Qcow2Options, check_backing, create,
};
use extant_space::{Error, ErrorKind, Result};

use super::arguments::{
    OperationControl, Room, check_reserved, choice, flag, initialize, initialize_first,
    optional_path, options, pace, path, with_control,
};
use super::error::call;
use crate::outcome::{Failure, Status};

/// Format of a disk image.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// That of the name: qcow2 if it ends with .qcow2, else raw. An existing image is refused if
    /// name and contents contradict each other.
    Auto,
    /// The guest's bytes, and nothing else.
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
}

/// How much of a new image or volume is allocated, by QEMU's names.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePreallocation {
    /// Nothing: space is allocated when the guest writes.
    Off,
    /// qcow2: every cluster is mapped; the file is sparse.
    Metadata,
    /// Every cluster is mapped, and space is reserved, unwritten.
    Falloc,
    /// Every cluster is mapped, and space is written with zeros.
    Full,
}

/// Compression of clusters that other programs compress later.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageCompression {
    /// zlib.
    Zlib,
    /// Zstandard.
    Zstd,
}

/// How a new image is made. Fill it with `extant_image_options_init` first. Fields of qcow2 are
/// ignored for raw images.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NewImageOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_image_format`; by the name by default.
    pub format: u32,
    /// `extant_image_preallocation`; `UINT32_MAX`, the default: full, but off for a copy and for an
    /// image with a backing file.
    pub preallocation: u32,
    /// `extant_pace`; full by default.
    pub pace: u32,
    /// As in `extant_create_options`.
    pub background_basis_points: u32,
    /// Bytes written a second at most; 0, the default: no limit.
    pub rate_bytes: u64,
    /// The number of first bytes of the disk to allocate; `UINT64_MAX`, the default: all. Not for
    /// copies.
    pub allocation_bytes: u64,
    /// Permissions; `UINT32_MAX`, the default: 0666 without the umask's bits.
    pub mode: u32,
    /// 1: an existing file is replaced in one step when the image is complete, and a block device
    /// is overwritten; 0, the default: refused.
    pub replace: u32,
    /// As in `extant_create_options`.
    pub nocow: u32,
    /// As in `extant_create_options`; not for copies.
    pub keep_partial: u32,
    /// qcow2: bytes of a cluster, a power of two from 512 to 2 MiB; 0, the default: 64 KiB.
    pub cluster_bytes: u32,
    /// qcow2: bits of a refcount, a power of two from 1 to 64; 0, the default: 16.
    pub refcount_bits: u32,
    /// qcow2: version of the format, 2 or 3; 0, the default: 3.
    pub version: u32,
    /// qcow2: 1: refcounts may be written later; 0 by default.
    pub lazy_refcounts: u32,
    /// qcow2: `extant_image_compression`; zlib by default.
    pub compression: u32,
    /// qcow2: format of the backing file, which is never guessed: `EXTANT_IMAGE_FORMAT_RAW` or
    /// `_QCOW2`.
    pub backing_format: u32,
    /// qcow2: name of the backing file as it will be in the image; a relative one begins in the
    /// directory of the image. Null, the default: none.
    pub backing_file: *const c_char,
    /// qcow2: name of a file for the guest's data, which is made. Null, the default: the data is in
    /// the image.
    pub data_file: *const c_char,
    /// qcow2: 1: the data file reads as the guest's disk; 0 by default.
    pub data_file_raw: u32,
    /// qcow2: 1: the backing file need not exist; 0 by default.
    pub backing_unchecked: u32,
}

/// Report of `extant_image_create` and `extant_image_convert`. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct NewImageReport {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// Size of the guest's disk, bytes.
    pub capacity_bytes: u64,
    /// Size of the file, bytes.
    pub size_bytes: u64,
    /// Bytes of zeros written by this call.
    pub written_bytes: u64,
    /// Bytes that an earlier call had written.
    pub resumed_bytes: u64,
    /// Extents of the file.
    pub extents: u64,
}

/// Bytes of `NewImageOptions` in `LIBEXTANT_2`; a fixed number, as programs were built with it.
pub(super) const OPTIONS_BYTES: usize = 104;
/// Bytes of the first version of `NewImageReport`.
const REPORT_BYTES: usize = 48;

pub(super) const DEFAULT: NewImageOptions = NewImageOptions {
    struct_size: size_of::<NewImageOptions>(),
    format: ImageFormat::Auto as u32,
    preallocation: u32::MAX,
    pace: 0,
    background_basis_points: 0,
    rate_bytes: 0,
    allocation_bytes: u64::MAX,
    mode: u32::MAX,
    replace: 0,
    nocow: 0,
    keep_partial: 0,
    cluster_bytes: 0,
    refcount_bits: 0,
    version: 0,
    lazy_refcounts: 0,
    compression: ImageCompression::Zlib as u32,
    backing_format: ImageFormat::Auto as u32,
    backing_file: std::ptr::null(),
    data_file: std::ptr::null(),
    data_file_raw: 0,
    backing_unchecked: 0,
};

/// Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
/// `extant_image_options_init` calls it with `sizeof *options`.
///
/// # Safety
/// `options` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_options_init_sized(
    options: *mut NewImageOptions,
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
pub unsafe extern "C" fn extant_image_options_init(options: *mut NewImageOptions) {
    // SAFETY: as promised.
    unsafe { initialize_first(options, DEFAULT, OPTIONS_BYTES) };
}

/// Makes the disk image `path` with a disk of `capacity_bytes`, with the guarantees of
/// `extant_create`: durable and verified, and without its name until it is complete. On a block
/// device a qcow2 image overwrites the contents.
///
/// `options`, `control`, `report` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_create(
    path: *const c_char,
    capacity_bytes: u64,
    options: *const NewImageOptions,
    control: *const OperationControl,
    report: *mut NewImageReport,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let path = unsafe { self::path(path) }?;
        // SAFETY: likewise.
        let wanted = unsafe { NewImage::from_c(path, capacity_bytes, options) }?;
        // SAFETY: likewise.
        let room = unsafe { NewImageReport::room(report) }?;
        let image = wanted.image(Preallocation::Full)?;
        if !wanted.is_backing_unchecked {
            check_backing(path, &image)?;
        }
        // SAFETY: likewise.
        let made = unsafe {
            with_control(control, |control| {
                create(path, &image, &wanted.file, control)
            })
        }?;
        room.fill(NewImageReport::of(&image, &made));
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// The image that a caller wants.
pub(super) struct NewImage {
    image: ImageOptions,
    preallocation: Option<Preallocation>,
    pub(super) file: CreateOptions,
    is_backing_unchecked: bool,
}

impl NewImage {
    /// # Safety
    /// `options` is null or valid for its type.
    pub(super) unsafe fn from_c(
        path: &Path,
        capacity_bytes: u64,
        options: *const NewImageOptions,
    ) -> Result<Self> {
        // SAFETY: as promised.
        let given = unsafe { self::options(options, DEFAULT, OPTIONS_BYTES) }?;
        let format = match format(given.format, "format")? {
            Some(format) => format,
            None => format_of_new(path).map_err(|error| error.at(path))?,
        };
        let mut image = ImageOptions::new(format, capacity_bytes);
        if format == Format::Qcow2 {
            // SAFETY: likewise.
            image.qcow2 = unsafe { qcow2(&given) }?;
        }
        image.allocation_bytes =
            (given.allocation_bytes != u64::MAX).then_some(given.allocation_bytes);
        let file = CreateOptions {
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
            ..CreateOptions::new(capacity_bytes)
        };
        Ok(Self {
            image,
            preallocation: preallocation(given.preallocation)?,
            file,
            is_backing_unchecked: flag(given.backing_unchecked, "backing_unchecked")?,
        })
    }

    /// With `default` as the preallocation unless the caller has named one.
    pub(super) fn image(&self, default: Preallocation) -> Result<ImageOptions> {
        let mut image = self.image.clone();
        let default = match &image.qcow2.backing {
            Some(_) => Preallocation::Off,
            None => default,
        };
        image.preallocation = self.preallocation.unwrap_or(default);
        image.check()?;
        Ok(image)
    }

    /// Refuses the options that a copy does not have.
    pub(super) fn check_copy(&self) -> Result<()> {
        if self.image.allocation_bytes.is_some() || self.file.on_failure != OnFailure::Remove {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("allocation_bytes and keep_partial are not for copies"));
        }
        Ok(())
    }
}

impl NewImageReport {
    pub(super) fn of(image: &ImageOptions, made: &CreateReport) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            capacity_bytes: image.disk_bytes(),
            size_bytes: made.size_bytes,
            written_bytes: made.written_bytes,
            resumed_bytes: made.resumed_bytes,
            extents: made.map.extents(),
        }
    }

    /// # Safety
    /// `report` is null or valid for its type, until the call returns.
    pub(super) unsafe fn room(report: *mut Self) -> Result<Room<Self>> {
        // SAFETY: as promised.
        unsafe { Room::of(report, REPORT_BYTES) }
    }
}

/// An `extant_image_format`; `None`: by name and contents.
pub(super) fn format(number: u32, name: &str) -> Result<Option<Format>> {
    let all = [None, Some(Format::Raw), Some(Format::Qcow2)];
    choice(number, &all, name)
}

/// As C has it.
pub(super) fn format_to_c(format: Format) -> ImageFormat {
    match format {
        Format::Raw => ImageFormat::Raw,
        Format::Qcow2 => ImageFormat::Qcow2,
    }
}

/// An `extant_image_preallocation`; `None`: the default.
pub(super) fn preallocation(number: u32) -> Result<Option<Preallocation>> {
    match number {
        u32::MAX => Ok(None),
        number => choice(number, &Preallocation::ALL, "preallocation").map(Some),
    }
}

/// As C has it.
pub(super) fn preallocation_to_c(preallocation: Preallocation) -> ImagePreallocation {
    match preallocation {
        Preallocation::Off => ImagePreallocation::Off,
        Preallocation::Metadata => ImagePreallocation::Metadata,
        Preallocation::Falloc => ImagePreallocation::Falloc,
        Preallocation::Full => ImagePreallocation::Full,
    }
}

/// # Safety
/// The names in `given` are null or strings.
pub(super) unsafe fn qcow2(given: &NewImageOptions) -> Result<Qcow2Options> {
    let default = Qcow2Options::default();
    // SAFETY: as promised.
    let (backing, data) = unsafe {
        (
            optional_path(given.backing_file)?,
            optional_path(given.data_file)?,
        )
    };
    let backing_format = format(given.backing_format, "backing_format")?;
    let backing = match (backing, backing_format) {
        (None, None) => None,
        (Some(name), Some(format)) => Some(BackingFile {
            name: name.to_owned(),
            format: format.to_string(),
        }),
        (Some(_), None) | (None, Some(_)) => {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("backing_file and backing_format need each other"));
        }
    };
    let is_raw = flag(given.data_file_raw, "data_file_raw")?;
    if data.is_none() {
        check_reserved(given.data_file_raw)?;
    }
    Ok(Qcow2Options {
        cluster_bytes: match given.cluster_bytes {
            0 => default.cluster_bytes,
            bytes => bytes.into(),
        },
        refcount_bits: match given.refcount_bits {
            0 => default.refcount_bits,
            bits => bits,
        },
        version: match given.version {
            0 | 3 => Version::V3,
            2 => Version::V2,
            other => {
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .detail(format!("version {other} of qcow2 is not known")));
            }
        },
        lazy_refcounts: flag(given.lazy_refcounts, "lazy_refcounts")?,
        compression: choice(
            given.compression,
            &[Compression::Zlib, Compression::Zstd],
            "compression",
        )?,
        backing,
        data_file: data.map(|name| DataFile {
            name: name.to_owned(),
            is_raw,
        }),
    })
}
