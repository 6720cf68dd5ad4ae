//! Pools: definition, use, properties.

use std::ffi::{c_char, c_int, c_void};
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use extant_image::hold::is_export;
use extant_pool::{
    Definition, Definitions, InImage, Limits, Overcommit, Pool, PoolInfo, PoolKind, PoolName,
    is_path, state_for_disk,
};
use extant_space::{Error, ErrorKind, Result};

use super::arguments::{
    MESSAGE_BYTES, NAME_BYTES, PATH_BYTES, Room, characters, choice, flag, initialize,
    initialize_first, optional_path, options, path, path_characters, text,
};
use super::create::PreallocationMode;
use super::error::call;
use crate::outcome::{Failure, Status};

/// Kind of a pool's storage.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// A directory of the host.
    Dir,
    /// A directory in an ext4 image or on a disk, without a mount.
    Ext4,
    /// Partitions of a disk, or of the image of one.
    Disk,
    /// Logical volumes of an LVM volume group. Calls on it run the LVM tools: the one case in which
    /// this library starts processes.
    Lvm,
    /// Images of a pool of a Ceph cluster.
    Rbd,
    /// A kind of a later version.
    Other,
}

/// A pool, open. Calls may use it from several threads at a time.
pub struct OpenPool {
    pub(super) pool: Arc<Pool>,
}

/// How a pool is defined. Fill it with `extant_pool_options_init` first.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NewPoolOptions {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_pool_kind`: `_DIR`, the default, `_EXT4` or `_DISK`.
    pub kind: u32,
    /// Default preallocation of new volumes: `extant_preallocation`; full by default.
    pub preallocation: u32,
    /// Maximum space of all volumes together, bytes; 0, the default: the size of the file system.
    pub total_bytes: u64,
    /// Bytes a second that all jobs in the background write together; 0, the default: no limit.
    pub rate_bytes: u64,
    /// Capacity that may be promised for each byte of space, from 0.01 to 1000; 1 by default.
    pub overcommit: f64,
    /// Maximum number of running jobs, the others wait; 4 by default.
    pub jobs_max: u32,
    /// Disk: 1: an existing partition table is used, and its partitions are kept; 0, the default:
    /// refused.
    pub adopt: u32,
    /// ext4: the directory of the volumes, made if it does not exist. Null, the default: the root.
    pub directory: *const c_char,
    /// ext4, disk: the state directory. Null, the default: next to the image; for a disk in
    /// /var/lib/extant/pools, of users in `$XDG_STATE_HOME`.
    pub state: *const c_char,
}

/// A pool in a list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ListedPool {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_pool_kind`.
    pub kind: u32,
    /// 0, or for an unreadable definition the `extant_status` of its error.
    pub status: u32,
    /// Its name.
    pub name: [c_char; NAME_BYTES],
    /// Location of the volumes; empty for an unreadable definition.
    pub path: [c_char; PATH_BYTES],
    /// Cause for an unreadable definition, else empty.
    pub message: [c_char; MESSAGE_BYTES],
}

/// Takes one pool after the other; anything but 0 ends the visit, which is no error.
pub type PoolCallback =
    Option<unsafe extern "C" fn(pool: *const ListedPool, user: *mut c_void) -> c_int>;

/// Properties of a pool. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolFacts {
    /// Bytes of this structure.
    pub struct_size: usize,
    /// `extant_pool_kind`.
    pub kind: u32,
    /// Number of waiting and running jobs.
    pub jobs: u32,
    /// Size of the file system, within the pool's limit, bytes. Others may have files there.
    pub total_bytes: u64,
    /// Space of volumes and unfinished files, bytes.
    pub allocated_bytes: u64,
    /// Free on the file system, within the pool's limit, bytes.
    pub free_bytes: u64,
    /// Capacity of all volumes, and of those being made, bytes.
    pub promised_bytes: u64,
    /// Space that running jobs will still allocate, bytes.
    pub reserved_bytes: u64,
    /// Capacity that a new volume may have, bytes.
    pub available_bytes: u64,
    /// Number of volumes.
    pub volumes: u64,
    /// Its name; empty for a directory or an image without a definition.
    pub name: [c_char; NAME_BYTES],
    /// Location of the volumes.
    pub path: [c_char; PATH_BYTES],
}

/// Bytes of the first version of `PoolFacts`; a fixed number.
const INFO_BYTES: usize = 4424;

/// Bytes of `NewPoolOptions` in `LIBEXTANT_2`; a fixed number, as programs were built with it.
const OPTIONS_BYTES: usize = 64;

const DEFAULT: NewPoolOptions = NewPoolOptions {
    struct_size: size_of::<NewPoolOptions>(),
    kind: StorageKind::Dir as u32,
    preallocation: PreallocationMode::Full as u32,
    total_bytes: 0,
    rate_bytes: 0,
    overcommit: 1.0,
    jobs_max: 4,
    adopt: 0,
    directory: ptr::null(),
    state: ptr::null(),
};

/// Sets the defaults in `options`, of which the caller knows `struct_size` bytes. The header's
/// `extant_pool_options_init` calls it with `sizeof *options`.
///
/// # Safety
/// `options` is null or has `struct_size` bytes that can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_options_init_sized(
    options: *mut NewPoolOptions,
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
pub unsafe extern "C" fn extant_pool_options_init(options: *mut NewPoolOptions) {
    // SAFETY: as promised.
    unsafe { initialize_first(options, DEFAULT, OPTIONS_BYTES) };
}

/// Defines the pool `name` in the directory, ext4 image or disk `path`, and opens it as
/// `extant_pool_open` does. A directory is made if it does not exist. `definitions` is the
/// directory of definitions; null: /etc/extant/pools, of other users than root `extant/pools` in
/// their configuration directory.
///
/// `definitions`, `options`, `pool` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `pool` receives null, or an object for
/// `extant_pool_free`; `error` null, or one for `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_define(
    name: *const c_char,
    path: *const c_char,
    definitions: *const c_char,
    options: *const NewPoolOptions,
    pool: *mut *mut OpenPool,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let (name, path) = unsafe { (text(name, "name")?, self::path(path)?) };
        // SAFETY: likewise.
        let given = unsafe { self::options(options, DEFAULT, OPTIONS_BYTES) }?;
        // SAFETY: likewise.
        let definition = unsafe { definition(name.parse()?, path, &given) }?;
        // SAFETY: likewise.
        Pool::define(definition, &unsafe { self::definitions(definitions) }?)
    };
    // SAFETY: likewise.
    unsafe { give_pool(pool, error, work) }
}

/// Opens a pool by the name of its definition, or, with a slash, `.` or `..`, by the path of a
/// directory or an ext4 image. `definitions` is as in `extant_pool_define`.
///
/// `definitions` and `error` may be null.
///
/// # Safety
/// As of `extant_pool_define`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_open(
    place: *const c_char,
    definitions: *const c_char,
    pool: *mut *mut OpenPool,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let place = unsafe { path(place) }?;
        if is_path(place) {
            return Pool::open(Definition::of_path(&lasting(place)?));
        }
        // SAFETY: likewise.
        Pool::open(unsafe { self::definitions(definitions) }?.find(place)?)
    };
    // SAFETY: likewise.
    unsafe { give_pool(pool, error, work) }
}

/// Frees a pool. Jobs that were made with it stay valid.
///
/// # Safety
/// `pool` is null or from a call of this library, and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_free(pool: *mut OpenPool) {
    if !pool.is_null() {
        // SAFETY: as promised.
        drop(unsafe { Box::from_raw(pool) });
    }
}

/// Removes the definition `name`; the volumes are kept. `definitions` is as in
/// `extant_pool_define`.
///
/// `definitions` and `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_undefine(
    name: *const c_char,
    definitions: *const c_char,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let name = unsafe { text(name, "name") }?.parse()?;
        // SAFETY: likewise.
        unsafe { self::definitions(definitions) }?.remove(&name)
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Visits the definitions of pools, by name. An unreadable one is visited with its error.
/// `definitions` is as in `extant_pool_define`.
///
/// `definitions` and `error` may be null.
///
/// # Safety
/// `visit` takes `user`; pointers that are not null are valid for their type. `error` receives
/// null, or an object for `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_list(
    definitions: *const c_char,
    visit: PoolCallback,
    user: *mut c_void,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        let visit = visitor(visit)?;
        // SAFETY: the caller's promises, passed on.
        for (name, found) in unsafe { self::definitions(definitions) }?.list()? {
            // SAFETY: likewise.
            if unsafe { visit(&ListedPool::of(&name, found.as_ref())?, user) } != 0 {
                break;
            }
        }
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

/// Describes a pool.
///
/// `error` may be null.
///
/// # Safety
/// Pointers that are not null are valid for their type. `error` receives null, or an object for
/// `extant_error_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_pool_get_info(
    pool: *const OpenPool,
    info: *mut PoolFacts,
    error: *mut *mut Failure,
) -> Status {
    let work = || {
        // SAFETY: the caller's promises, passed on.
        let pool = unsafe { of_handle(pool) }?;
        // SAFETY: likewise.
        let room = unsafe { Room::of(info, INFO_BYTES) }?;
        room.fill(PoolFacts::of(&pool, &pool.info()?)?);
        Ok(())
    };
    // SAFETY: likewise.
    unsafe { call(error, work) }
}

impl ListedPool {
    fn of(name: &PoolName, found: std::result::Result<&Definition, &Error>) -> Result<Self> {
        Ok(Self {
            struct_size: size_of::<Self>(),
            kind: found.map_or(StorageKind::Other, |found| kind(found.kind())) as u32,
            status: found.map_or_else(|error| error.kind().into(), |_| Status::Ok) as u32,
            name: characters(name.as_str()),
            path: found.map_or(Ok([0; PATH_BYTES]), |found| path_characters(found.path()))?,
            message: found.map_or_else(|error| characters(&error.to_string()), |_| [0; _]),
        })
    }
}

impl PoolFacts {
    fn of(pool: &Pool, info: &PoolInfo) -> Result<Self> {
        Ok(Self {
            struct_size: size_of::<Self>(),
            kind: kind(info.kind) as u32,
            jobs: info.jobs.try_into().unwrap_or(u32::MAX),
            total_bytes: info.space.total_bytes,
            allocated_bytes: info.space.allocated_bytes,
            free_bytes: info.space.free_bytes,
            promised_bytes: info.space.promised_bytes,
            reserved_bytes: info.space.reserved_bytes,
            available_bytes: info.space.available_bytes,
            volumes: info.space.volumes,
            name: characters(info.name.as_ref().map_or("", PoolName::as_str)),
            path: path_characters(pool.definition().path())?,
        })
    }
}

/// The pool of a handle: the call's own, whatever is done with the handle meanwhile.
///
/// # Safety
/// `pool` is null or valid.
pub(super) unsafe fn of_handle(pool: *const OpenPool) -> Result<Arc<Pool>> {
    // SAFETY: as promised.
    match unsafe { pool.as_ref() } {
        Some(open) => Ok(Arc::clone(&open.pool)),
        None => Err(Error::new(ErrorKind::InvalidArgument).detail("pool is null")),
    }
}

/// The callback of a visit.
pub(super) fn visitor<T>(visit: Option<T>) -> Result<T> {
    visit.ok_or_else(|| Error::new(ErrorKind::InvalidArgument).detail("visit is null"))
}

/// Runs a call that gives out a pool.
///
/// # Safety
/// `pool` and `error` are null or can be written to.
unsafe fn give_pool(
    pool: *mut *mut OpenPool,
    error: *mut *mut Failure,
    work: impl FnOnce() -> Result<Pool>,
) -> Status {
    if !pool.is_null() {
        // SAFETY: as promised.
        unsafe { pool.write(ptr::null_mut()) };
    }
    let work = || {
        let opened = Arc::new(work()?);
        if !pool.is_null() {
            // SAFETY: as promised.
            unsafe { pool.write(Box::into_raw(Box::new(OpenPool { pool: opened }))) };
        }
        Ok(())
    };
    // SAFETY: as promised.
    unsafe { call(error, work) }
}

/// # Safety
/// As of [`path`].
unsafe fn definitions(directory: *const c_char) -> Result<Definitions> {
    // SAFETY: as promised.
    match unsafe { optional_path(directory) }? {
        Some(directory) => Ok(Definitions::in_directory(directory)),
        None => Definitions::of_user(),
    }
}

/// # Safety
/// The paths in `given` are null or strings.
unsafe fn definition(name: PoolName, path: &Path, given: &NewPoolOptions) -> Result<Definition> {
    let invalid = |detail: &str| Error::new(ErrorKind::InvalidArgument).detail(detail);
    // SAFETY: as promised.
    let (directory, state) =
        unsafe { (optional_path(given.directory)?, optional_path(given.state)?) };
    let limits = Limits {
        total_bytes: (given.total_bytes != 0).then_some(given.total_bytes),
        overcommit: Overcommit::try_from(given.overcommit)?,
        rate: NonZeroU64::new(given.rate_bytes),
        jobs_max: NonZeroU32::new(given.jobs_max).ok_or_else(|| invalid("jobs_max is 0"))?,
        preallocation: super::create::preallocation(given.preallocation)?,
    };
    let kinds = [StorageKind::Dir, StorageKind::Ext4, StorageKind::Disk];
    let kind = choice(given.kind, &kinds, "kind of a new pool")?;
    let adopt = flag(given.adopt, "adopt")?;
    if directory.is_some() && kind != StorageKind::Ext4 {
        return Err(invalid("directory is for EXTANT_POOL_KIND_EXT4"));
    }
    if state.is_some() && kind == StorageKind::Dir {
        return Err(invalid("state is not for EXTANT_POOL_KIND_DIR"));
    }
    if adopt && kind != StorageKind::Disk {
        return Err(invalid("adopt is for EXTANT_POOL_KIND_DISK"));
    }
    if kind == StorageKind::Dir {
        return Definition::named(name, path, limits);
    }
    let of_disk = match state {
        None => state_for_disk(&name, path)?,
        Some(_) => None,
    };
    let state = state.or(of_disk.as_deref());
    match kind {
        StorageKind::Disk => Definition::on_disk(name, path, state, adopt, limits),
        _ => Definition::in_image(name, path, &InImage { directory, state }, limits),
    }
}

/// The same path after a change of the current directory.
fn lasting(path: &Path) -> Result<PathBuf> {
    if is_export(path) {
        return Ok(path.to_owned());
    }
    std::path::absolute(path).map_err(|source| Error::from(source).at(path))
}

fn kind(kind: PoolKind) -> StorageKind {
    match kind {
        PoolKind::Dir => StorageKind::Dir,
        PoolKind::Ext4 => StorageKind::Ext4,
        PoolKind::Disk => StorageKind::Disk,
        PoolKind::Lvm => StorageKind::Lvm,
        PoolKind::Rbd => StorageKind::Rbd,
        _ => StorageKind::Other,
    }
}
