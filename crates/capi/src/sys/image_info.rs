//! Properties of disk images.

use std::ffi::c_char;

use extant_image::detect::Purpose;
use extant_image::{Format, ImageInfo, Qcow2Info, ReferencedFiles};
use extant_space::Result;

use super::arguments::{
    OperationControl, PATH_BYTES, Room, characters, path, path_characters, with_control,
};
use super::error::call;
use super::image::{ImageCompression, format, format_to_c, preallocation_to_c};
use super::image_convert::open_image;
use crate::outcome::{Failure, Status};

/// Properties of an image. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ImageFacts {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_image_format`.
    pub format: u32,
    /// `extant_image_preallocation`: the least mode that holds for the whole disk, as found.
    pub preallocation: u32,
    /// Size of the guest's disk, bytes.
    pub capacity_bytes: u64,
    /// Size of the file, bytes.
    pub size_bytes: u64,
    /// Bytes of the file that have space.
    pub allocated_bytes: u64,
    /// Bytes of the disk without space, in the image or on the host.
    pub hole_bytes: u64,
    /// Bytes of the disk whose space is not written yet.
    pub unwritten_bytes: u64,
    /// Bytes of the disk that are written.
    pub written_bytes: u64,
    /// Of all these, bytes that the image maps: all of a raw one.
    pub mapped_bytes: u64,
    /// qcow2: bytes of a cluster; the following fields are 0 for raw images.
    pub cluster_bytes: u64,
    /// qcow2: bits of a refcount.
    pub refcount_bits: u32,
    /// qcow2: version of the format, 2 or 3.
    pub version: u32,
    /// qcow2: `extant_image_compression`.
    pub compression: u32,
    /// qcow2: 1: refcounts may be written later.
    pub lazy_refcounts: u32,
    /// qcow2: 1: refcounts may be wrong.
    pub is_dirty: u32,
    /// qcow2: 1: structures are damaged.
    pub is_corrupt: u32,
    /// qcow2: internal snapshots.
    pub snapshots: u32,
    /// qcow2: 1: the data file reads as the guest's disk.
    pub data_file_raw: u32,
    /// qcow2: format of the backing file as the image names it; empty: none.
    pub backing_format: [c_char; 32],
    /// qcow2: name of the backing file in the image; empty: none.
    pub backing_file: [c_char; PATH_BYTES],
    /// qcow2: name of the data file in the image; empty: none.
    pub data_file: [c_char; PATH_BYTES],
}

/// Bytes of the first version of `ImageFacts`; a fixed number.
const INFO_BYTES: usize = 8336;

/// Describes the image `path` in `format` (`extant_image_format`). It is read only, and others may
/// use it meanwhile. The files that it names are not opened.
///
/// `control` and `error` may be null. `control` has a cancel; there is no progress.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_image_get_info(
    path: *const c_char,
    format: u32,
    control: *const OperationControl,
    info: *mut ImageFacts,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let path = unsafe { self::path(path) }?;
        // SAFETY: likewise.
        let room = unsafe { Room::of(info, INFO_BYTES) }?;
        let format = self::format(format, "format")?;
        let look = |control: extant_space::Control<'_>| {
            let (purpose, follow) = (Purpose::Look, ReferencedFiles::Ignore);
            let layer = open_image(path, format, purpose, follow, control.cancel)?;
            layer.info()
        };
        // SAFETY: likewise.
        let found = unsafe { with_control(control, look) };
        let found = found.and_then(|found| ImageFacts::of(&found));
        room.fill(found.map_err(|error| error.at(path))?);
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

impl ImageFacts {
    fn of(info: &ImageInfo) -> Result<Self> {
        let mut facts = Self {
            struct_size: size_of::<Self>(),
            format: format_to_c(info.format) as u32,
            preallocation: preallocation_to_c(info.preallocation) as u32,
            capacity_bytes: info.virtual_bytes,
            size_bytes: info.file_bytes,
            allocated_bytes: info.allocated_bytes,
            hole_bytes: info.states.hole,
            unwritten_bytes: info.states.unwritten,
            written_bytes: info.states.written,
            mapped_bytes: info.states.mapped,
            cluster_bytes: 0,
            refcount_bits: 0,
            version: 0,
            compression: 0,
            lazy_refcounts: 0,
            is_dirty: 0,
            is_corrupt: 0,
            snapshots: 0,
            data_file_raw: 0,
            backing_format: [0; 32],
            backing_file: [0; PATH_BYTES],
            data_file: [0; PATH_BYTES],
        };
        if info.format == Format::Qcow2
            && let Some(qcow2) = &info.qcow2
        {
            facts.add_qcow2(qcow2)?;
        }
        Ok(facts)
    }

    fn add_qcow2(&mut self, qcow2: &Qcow2Info) -> Result<()> {
        self.cluster_bytes = qcow2.cluster_bytes;
        self.refcount_bits = qcow2.refcount_bits;
        self.version = if qcow2.compat == "0.10" { 2 } else { 3 };
        self.compression = match qcow2.compression {
            "zstd" => ImageCompression::Zstd,
            _ => ImageCompression::Zlib,
        } as u32;
        self.lazy_refcounts = qcow2.lazy_refcounts.into();
        self.is_dirty = qcow2.is_dirty.into();
        self.is_corrupt = qcow2.is_corrupt.into();
        self.snapshots = qcow2.snapshot_count;
        self.data_file_raw = qcow2.data_file_raw.into();
        self.backing_format = characters(qcow2.backing_format.as_deref().unwrap_or_default());
        if let Some(name) = &qcow2.backing_file {
            self.backing_file = path_characters(name)?;
        }
        if let Some(name) = &qcow2.data_file {
            self.data_file = path_characters(name)?;
        }
        Ok(())
    }
}
