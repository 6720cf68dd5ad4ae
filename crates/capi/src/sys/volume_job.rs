//! Operations on volumes: each makes a job, with its space reserved.

use std::ffi::c_char;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use extant_image::detect::format_of_new;
use extant_pool::{
    CloneMethod, CloneVolume, CreateVolume, Download, Format, JobOptions, Materialize, Operation,
    Priority, Resize, Upload, Verification,
};
use extant_space::{Error, Result};

use super::arguments::{choice, flag, initialize, initialize_first, options, pace, path};
use super::image::{self, NewImageOptions, format, preallocation, qcow2};
use super::job::{OwnJob, give_job};
use super::pool::OpenPool;
use super::volume::volume;
use crate::outcome::{Failure, Status};

/// The order of jobs, and their shares of the pool's rate.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobPriority {
    /// As most.
    Normal,
    /// Behind the others.
    Low,
    /// Before the others.
    High,
}

/// Options of the calls that make jobs. Fill it with `extant_volume_options_init` first. A call
/// ignores fields that are not its own.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VolumeOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// All: `extant_job_priority`; normal by default.
    pub priority: u32,
    /// All: `extant_pace`; full by default. In the background the job uses its share of the pool's
    /// rate.
    pub pace: u32,
    /// All: bytes a second at most; 0, the default: no limit.
    pub rate_bytes: u64,
    /// All: as in `extant_create_options`.
    pub background_basis_points: u32,
    /// Create, clone, upload: permissions; 0600 by default.
    pub mode: u32,
    /// Create, resize: `extant_image_preallocation` of the new part; `UINT32_MAX`, the default:
    /// that of the pool, but off for an image with a backing file.
    pub preallocation: u32,
    /// Resize: 1: the capacity may become smaller, which loses the data past it; 0 by default.
    pub shrink: u32,
    /// Create: the number of first bytes to allocate; `UINT64_MAX`, the default: all.
    pub allocation_bytes: u64,
    /// Create, upload: `extant_image_format`; by the name by default, and of an upload refused if
    /// the content contradicts it.
    pub format: u32,
    /// Create: as in `extant_create_options`.
    pub nocow: u32,
    /// Create: 1: all of the new volume is read back before it has its name; 0, the default:
    /// samples.
    pub verify_all: u32,
    /// Clone: 1: data is copied, 2: space is shared (reflink) or it fails; 0, the default: shared
    /// where the file system can.
    pub clone_method: u32,
    /// Materialize: 1: parts shared with other volumes get space of their own; 0 by default.
    pub unshare: u32,
    /// Upload, download: 1: an existing volume or file is replaced; 0, the default: refused.
    pub replace: u32,
    /// Upload: 1: an image may name a backing file, which every user of the volume reads; 0, the
    /// default: refused.
    pub allow_backing: u32,
    /// 0.
    pub reserved: u32,
    /// Create, qcow2: the fields of qcow2 of these options are used; null, the default: QEMU's
    /// defaults.
    pub qcow2: *const NewImageOptions,
}

/// Bytes of `VolumeOptions` in `LIBEXTANT_2`; a fixed number, as programs were built with it.
const OPTIONS_BYTES: usize = 88;

const DEFAULT: VolumeOptions = VolumeOptions {
    struct_size: size_of::<VolumeOptions>(),
    priority: JobPriority::Normal as u32,
    pace: 0,
    rate_bytes: 0,
    background_basis_points: 0,
    mode: 0o600,
    preallocation: u32::MAX,
    shrink: 0,
    allocation_bytes: u64::MAX,
    format: 0,
    nocow: 0,
    verify_all: 0,
    clone_method: 0,
    unshare: 0,
    replace: 0,
    allow_backing: 0,
    reserved: 0,
    qcow2: std::ptr::null(),
};

/// Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
/// `extant_volume_options_init` calls it with `sizeof *options`.
///
/// # Safety
/// `options` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_options_init_sized(
    options: *mut VolumeOptions,
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
pub unsafe extern "C" fn extant_volume_options_init(options: *mut VolumeOptions) {
    // SAFETY: as promised.
    unsafe { initialize_first(options, DEFAULT, OPTIONS_BYTES) };
}

/// Makes a job that creates the volume `volume` of `capacity_bytes`, and reserves its space: of two
/// jobs that do not both fit, one is refused here (`EXTANT_STATUS_NO_SPACE`). `extant_job_run` does
/// the work. An interrupted job of the same operation is resumed instead.
///
/// `options` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `job` receives null, or an object for
/// `extant_job_free`; `error` null, or one for `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_create(
    pool: *const OpenPool,
    volume: *const c_char,
    capacity_bytes: u64,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        submit(pool, volume, options, job, error, |wanted| {
            let of_pool = wanted.pool.definition().limits().preallocation.into();
            let given = &wanted.given;
            let format = match format(given.format, "format")? {
                Some(format) => format,
                None => format_of_new(Path::new(wanted.volume.as_str()))?,
            };
            let mut create = CreateVolume::new(wanted.volume.clone(), capacity_bytes, of_pool);
            create.format = format;
            if format == Format::Qcow2 {
                // SAFETY: likewise.
                let image = self::options(given.qcow2, image::DEFAULT, image::OPTIONS_BYTES)?;
                create.qcow2 = Some(qcow2(&image)?);
            }
            let allocation = (given.allocation_bytes != u64::MAX).then_some(given.allocation_bytes);
            create.set_space(preallocation(given.preallocation)?, of_pool, allocation)?;
            create.mode = given.mode;
            create.nocow = flag(given.nocow, "nocow")?;
            create.verification = choice(
                given.verify_all,
                &[Verification::Sample, Verification::Full],
                "verify_all",
            )?;
            Ok(Operation::Create(create))
        })
    }
}

/// Makes a job that creates the volume `volume` with the content of `source`; otherwise as
/// `extant_volume_create`.
///
/// # Safety
/// As of `extant_volume_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_clone(
    pool: *const OpenPool,
    source: *const c_char,
    volume: *const c_char,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        submit(pool, volume, options, job, error, |wanted| {
            let methods = [CloneMethod::Auto, CloneMethod::Copy, CloneMethod::Reflink];
            Ok(Operation::Clone(CloneVolume {
                source: self::volume(source)?,
                volume: wanted.volume.clone(),
                method: choice(wanted.given.clone_method, &methods, "clone_method")?,
                mode: wanted.given.mode,
            }))
        })
    }
}

/// Makes a job that gives the volume `volume` another capacity; otherwise as
/// `extant_volume_create`.
///
/// # Safety
/// As of `extant_volume_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_resize(
    pool: *const OpenPool,
    volume: *const c_char,
    capacity_bytes: u64,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        submit(pool, volume, options, job, error, |wanted| {
            let preallocation = match preallocation(wanted.given.preallocation)? {
                Some(preallocation) => preallocation,
                None => wanted.pool.preallocation_of(&wanted.volume)?,
            };
            Ok(Operation::Resize(Resize {
                volume: wanted.volume.clone(),
                capacity_bytes,
                preallocation,
                shrink: flag(wanted.given.shrink, "shrink")?,
            }))
        })
    }
}

/// Makes a job that makes the holes and unwritten parts of the volume `volume` written, data
/// preserved; otherwise as `extant_volume_create`.
///
/// # Safety
/// As of `extant_volume_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_materialize(
    pool: *const OpenPool,
    volume: *const c_char,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        submit(pool, volume, options, job, error, |wanted| {
            Ok(Operation::Materialize(Materialize {
                volume: wanted.volume.clone(),
                unshare: flag(wanted.given.unshare, "unshare")?,
            }))
        })
    }
}

/// Makes a job that creates the volume `volume` with the content of the file `path`; otherwise as
/// `extant_volume_create`.
///
/// # Safety
/// As of `extant_volume_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_upload(
    pool: *const OpenPool,
    volume: *const c_char,
    path: *const c_char,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        submit(pool, volume, options, job, error, |wanted| {
            Ok(Operation::Upload(Upload {
                volume: wanted.volume.clone(),
                source: absolute(path)?,
                format: format(wanted.given.format, "format")?,
                allow_backing: flag(wanted.given.allow_backing, "allow_backing")?,
                replace: flag(wanted.given.replace, "replace")?,
                mode: wanted.given.mode,
            }))
        })
    }
}

/// Makes a job that creates the file `path` with the content of the volume `volume`; otherwise as
/// `extant_volume_create`.
///
/// # Safety
/// As of `extant_volume_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_volume_download(
    pool: *const OpenPool,
    volume: *const c_char,
    path: *const c_char,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        submit(pool, volume, options, job, error, |wanted| {
            Ok(Operation::Download(Download {
                volume: wanted.volume.clone(),
                target: absolute(path)?,
                replace: flag(wanted.given.replace, "replace")?,
            }))
        })
    }
}

/// The request of a call.
struct Wanted<'a> {
    pool: &'a extant_pool::Pool,
    volume: extant_pool::VolumeName,
    given: VolumeOptions,
}

/// # Safety
/// As of `extant_volume_create`.
unsafe fn submit(
    pool: *const OpenPool,
    volume: *const c_char,
    options: *const VolumeOptions,
    job: *mut *mut OwnJob,
    error: *mut *mut Failure,
    operation: impl FnOnce(&Wanted<'_>) -> Result<Operation>,
) -> Status {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        give_job(pool, job, error, |pool| {
            let given = self::options(options, DEFAULT, OPTIONS_BYTES)?;
            super::arguments::check_reserved(given.reserved)?;
            let wanted = Wanted {
                pool,
                volume: self::volume(volume)?,
                given,
            };
            let operation = operation(&wanted)?;
            pool.submit(operation, job_options(&given)?)
        })
    }
}

fn job_options(given: &VolumeOptions) -> Result<JobOptions> {
    let priorities = [JobPriority::Normal, JobPriority::Low, JobPriority::High];
    let pace = pace(given.pace, given.rate_bytes, given.background_basis_points)?;
    Ok(JobOptions {
        priority: match choice(given.priority, &priorities, "priority")? {
            JobPriority::Normal => Priority::Normal,
            JobPriority::Low => Priority::Low,
            JobPriority::High => Priority::High,
        },
        background: pace.is_background(),
        background_share: pace.share(),
        rate: NonZeroU64::new(given.rate_bytes),
    })
}

/// # Safety
/// As of [`path`].
unsafe fn absolute(path: *const c_char) -> Result<PathBuf> {
    // SAFETY: as promised.
    let path = unsafe { self::path(path) }?;
    std::path::absolute(path).map_err(|source| Error::from(source).at(path))
}
