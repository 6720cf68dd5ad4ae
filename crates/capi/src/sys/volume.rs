//! Volumes: list, properties, removal.

use std::ffi::{c_char, c_int, c_void};

use extant_pool::{Format, ListedVolume, VolumeInfo, VolumeName};
use extant_space::Result;

use super::arguments::{NAME_BYTES, PATH_BYTES, Room, characters, flag, path_characters, text};
use super::error::call;
use super::image::{ImageFormat, format_to_c, preallocation_to_c};
use super::pool::{OpenPool, of_handle, visitor};
use crate::outcome::{Failure, Status};

/// A volume in a list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VolumeSummary {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_image_format`; `_AUTO` if none is set and the content looks like qcow2.
    pub format: u32,
    /// 0.
    pub reserved: u32,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// Its space on the file system, bytes.
    pub allocated_bytes: u64,
    /// Its name.
    pub name: [c_char; NAME_BYTES],
}

/// Takes one volume after the other; anything but 0 ends the visit, which is no error.
pub type VolumeCallback =
    Option<unsafe extern "C" fn(volume: *const VolumeSummary, user: *mut c_void) -> c_int>;

/// Properties of a volume. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VolumeFacts {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_image_format`; `_AUTO` if none is set and the content looks like qcow2.
    pub format: u32,
    /// qcow2: `extant_image_preallocation`, as found; 0 for others.
    pub preallocation: u32,
    /// Its logical size, bytes.
    pub capacity_bytes: u64,
    /// Size of its file, bytes.
    pub size_bytes: u64,
    /// Its space on the file system, bytes.
    pub allocated_bytes: u64,
    /// Bytes of the disk whose overwrite changes no metadata, of the file system or of the image.
    pub written_bytes: u64,
    /// Extents of the file, without holes.
    pub extents: u64,
    /// 1: a write into the volume may fail because the file system is full.
    pub may_run_out_of_space: u32,
    /// Permissions of the file.
    pub mode: u32,
    /// Number of its owner.
    pub uid: u32,
    /// Number of its group.
    pub gid: u32,
    /// Its name.
    pub name: [c_char; NAME_BYTES],
    /// Its file: of the host; in an ext4 image the image and the name; of a Ceph cluster its name
    /// there.
    pub path: [c_char; PATH_BYTES],
}

/// Bytes of the first version of `VolumeFacts`; a fixed number.
const INFO_BYTES: usize = 4424;

/// Visits the volumes of a pool, by name.
///
/// `error` may be null.
///
/// # Safety
/// `visit` takes `user`; pointers that are not null are valid for their type. `error` receives
/// null, or an object for `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_list(
    pool: *const OpenPool,
    visit: VolumeCallback,
    user: *mut c_void,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        let visit = visitor(visit)?;
        // SAFETY: the caller's promises, passed on.
        for volume in unsafe { of_handle(pool) }?.volumes()? {
            // SAFETY: likewise.
            if unsafe { visit(&VolumeSummary::of(&volume), user) } != 0 {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Describes a volume.
///
/// `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_get_info(
    pool: *const OpenPool,
    volume: *const c_char,
    info: *mut VolumeFacts,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let (pool, volume) = unsafe { (of_handle(pool)?, self::volume(volume)?) };
        // SAFETY: likewise.
        let room = unsafe { Room::of(info, INFO_BYTES) }?;
        room.fill(VolumeFacts::of(&pool.volume(&volume)?)?);
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Removes a volume. With `force` 0 a volume that another process has open is refused
/// (`EXTANT_STATUS_IN_USE`); with 1 its data is lost when that process ends. Descriptors of this
/// process do not count.
///
/// `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_delete(
    pool: *const OpenPool,
    volume: *const c_char,
    force: u32,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let (pool, volume) = unsafe { (of_handle(pool)?, self::volume(volume)?) };
        pool.delete(&volume, flag(force, "force")?)
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// The name of a volume.
///
/// # Safety
/// `name` is null or a string.
pub(super) unsafe fn volume(name: *const c_char) -> Result<VolumeName> {
    // SAFETY: as promised.
    unsafe { text(name, "volume") }?.parse()
}

fn format_number(format: Option<Format>) -> u32 {
    format.map_or(ImageFormat::Auto, format_to_c) as u32
}

impl VolumeSummary {
    fn of(volume: &ListedVolume) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            format: format_number(volume.format),
            reserved: 0,
            capacity_bytes: volume.capacity_bytes,
            allocated_bytes: volume.allocation_bytes,
            name: characters(volume.name.as_str()),
        }
    }
}

impl VolumeFacts {
    fn of(info: &VolumeInfo) -> Result<Self> {
        let image = info.image.as_ref();
        Ok(Self {
            struct_size: size_of::<Self>(),
            format: format_number(info.format),
            preallocation: image.map_or(0, |image| preallocation_to_c(image.preallocation) as u32),
            capacity_bytes: info.capacity_bytes,
            size_bytes: info.file_bytes,
            allocated_bytes: info.allocation_bytes,
            written_bytes: info.written_bytes,
            extents: info.extents,
            may_run_out_of_space: info.may_run_out_of_space.into(),
            mode: info.mode,
            uid: info.uid,
            gid: info.gid,
            name: characters(info.name.as_str()),
            path: path_characters(&info.path)?,
        })
    }
}
