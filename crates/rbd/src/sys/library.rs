//! librados and librbd, opened once with `dlopen` and never closed.
//!
//! The declarations are those of `rados/librados.h` and `rbd/librbd.h` of Ceph 16.2; later releases
//! keep them. Both libraries start threads and register functions for the end of the process, so
//! that unloading them would leave calls into unmapped code.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use extant_space::{Error, ErrorKind, Result};
use libc::{iovec, size_t, ssize_t};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `rados_t`, `rados_ioctx_t`, `rados_write_op_t`, `rbd_image_t`, `rbd_completion_t` and
/// `rbd_image_options_t`.
pub(super) type Handle = *mut c_void;
/// `librbd_progress_fn_t`.
pub(super) type ProgressFn = unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int;
/// `rbd_callback_t`.
pub(super) type CompletionFn = unsafe extern "C" fn(Handle, *mut c_void);
/// The callback of `rbd_diff_iterate2`.
pub(super) type DiffFn = unsafe extern "C" fn(u64, size_t, c_int, *mut c_void) -> c_int;

/// `rbd_image_info_t`.
#[repr(C)]
pub(super) struct ImageInfo {
    pub(super) size: u64,
    pub(super) obj_size: u64,
    pub(super) num_objs: u64,
    pub(super) order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

/// `rbd_image_spec_t`.
#[repr(C)]
#[derive(Clone)]
pub(super) struct ImageSpec {
    pub(super) id: *mut c_char,
    pub(super) name: *mut c_char,
}

/// `rbd_trash_image_info_t`.
#[repr(C)]
#[derive(Clone)]
pub(super) struct TrashInfo {
    pub(super) id: *mut c_char,
    pub(super) name: *mut c_char,
    pub(super) source: c_int,
    pub(super) deletion_time: libc::time_t,
    pub(super) deferment_end_time: libc::time_t,
}

/// `rbd_snap_info_t`.
#[repr(C)]
#[derive(Clone)]
pub(super) struct SnapInfo {
    pub(super) id: u64,
    pub(super) size: u64,
    pub(super) name: *const c_char,
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone)]
pub(super) struct ImageWatcher {
    pub(super) addr: *mut c_char,
    pub(super) id: i64,
    pub(super) cookie: u64,
}

macro_rules! functions {
    ($name:ident { $(fn $function:ident($($argument:ty),*) $(-> $result:ty)?;)* }) => {
        pub(super) struct $name {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $name {
            fn of(library: &Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: the type is that of the function's declaration in the header, and the
                    // library is never closed.
                    $($function: *unsafe { library.get(concat!(stringify!($function), "\0").as_bytes())? },)*
                })
            }
        }
    };
}

functions!(Rados {
    fn rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    fn rados_conf_read_file(Handle, *const c_char) -> c_int;
    fn rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rados_conf_get(Handle, *const c_char, *mut c_char, size_t) -> c_int;
    fn rados_connect(Handle) -> c_int;
    fn rados_shutdown(Handle);
    fn rados_cluster_fsid(Handle, *mut c_char, size_t) -> c_int;
    fn rados_get_instance_id(Handle) -> u64;
    fn rados_mon_command(
        Handle, *mut *const c_char, size_t, *const c_char, size_t,
        *mut *mut c_char, *mut size_t, *mut *mut c_char, *mut size_t
    ) -> c_int;
    fn rados_buffer_free(*mut c_char);
    fn rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    fn rados_ioctx_destroy(Handle);
    fn rados_ioctx_set_namespace(Handle, *const c_char);
    fn rados_set_pool_full_try(Handle);
    fn rados_write(Handle, *const c_char, *const c_char, size_t, u64) -> c_int;
    fn rados_create_write_op() -> Handle;
    fn rados_release_write_op(Handle);
    fn rados_write_op_cmpext(Handle, *const c_char, size_t, u64, *mut c_int);
    fn rados_write_op_remove(Handle);
    fn rados_write_op_operate(Handle, Handle, *const c_char, *mut libc::time_t, c_int) -> c_int;
});

functions!(Rbd {
    fn rbd_list2(Handle, *mut ImageSpec, *mut size_t) -> c_int;
    fn rbd_image_spec_list_cleanup(*mut ImageSpec, size_t);
    fn rbd_trash_list(Handle, *mut TrashInfo, *mut size_t) -> c_int;
    fn rbd_trash_list_cleanup(*mut TrashInfo, size_t);
    fn rbd_image_options_create(*mut Handle);
    fn rbd_image_options_destroy(Handle);
    fn rbd_image_options_set_string(Handle, c_int, *const c_char) -> c_int;
    fn rbd_image_options_set_uint64(Handle, c_int, u64) -> c_int;
    fn rbd_create4(Handle, *const c_char, u64, Handle) -> c_int;
    fn rbd_clone3(
        Handle, *const c_char, *const c_char, Handle, *const c_char, Handle
    ) -> c_int;
    fn rbd_remove_with_progress(Handle, *const c_char, ProgressFn, *mut c_void) -> c_int;
    fn rbd_rename(Handle, *const c_char, *const c_char) -> c_int;
    fn rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    fn rbd_close(Handle) -> c_int;
    fn rbd_stat(Handle, *mut ImageInfo, size_t) -> c_int;
    fn rbd_get_id(Handle, *mut c_char, size_t) -> c_int;
    fn rbd_get_size(Handle, *mut u64) -> c_int;
    fn rbd_get_overlap(Handle, *mut u64) -> c_int;
    fn rbd_get_features(Handle, *mut u64) -> c_int;
    fn rbd_get_flags(Handle, *mut u64) -> c_int;
    fn rbd_get_stripe_unit(Handle, *mut u64) -> c_int;
    fn rbd_get_stripe_count(Handle, *mut u64) -> c_int;
    fn rbd_resize2(Handle, u64, bool, ProgressFn, *mut c_void) -> c_int;
    fn rbd_flatten_with_progress(Handle, ProgressFn, *mut c_void) -> c_int;
    fn rbd_snap_list(Handle, *mut SnapInfo, *mut c_int) -> c_int;
    fn rbd_snap_list_end(*mut SnapInfo);
    fn rbd_snap_create(Handle, *const c_char) -> c_int;
    fn rbd_snap_remove(Handle, *const c_char) -> c_int;
    fn rbd_snap_protect(Handle, *const c_char) -> c_int;
    fn rbd_snap_unprotect(Handle, *const c_char) -> c_int;
    fn rbd_snap_is_protected(Handle, *const c_char, *mut c_int) -> c_int;
    fn rbd_watchers_list(Handle, *mut ImageWatcher, *mut size_t) -> c_int;
    fn rbd_watchers_list_cleanup(*mut ImageWatcher, size_t);
    fn rbd_lock_acquire(Handle, c_int) -> c_int;
    fn rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut size_t) -> c_int;
    fn rbd_lock_get_owners_cleanup(*mut *mut c_char, size_t);
    fn rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut size_t) -> c_int;
    fn rbd_metadata_set(Handle, *const c_char, *const c_char) -> c_int;
    fn rbd_metadata_remove(Handle, *const c_char) -> c_int;
    fn rbd_diff_iterate2(
        Handle, *const c_char, u64, u64, u8, u8, DiffFn, *mut c_void
    ) -> c_int;
    fn rbd_aio_create_completion(*mut c_void, CompletionFn, *mut Handle) -> c_int;
    fn rbd_aio_get_return_value(Handle) -> ssize_t;
    fn rbd_aio_release(Handle);
    fn rbd_aio_readv(Handle, *const iovec, c_int, u64, Handle) -> c_int;
    fn rbd_aio_writev(Handle, *const iovec, c_int, u64, Handle) -> c_int;
    fn rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    fn rbd_aio_write_zeroes(Handle, u64, size_t, Handle, c_int, c_int) -> c_int;
    fn rbd_aio_flush(Handle, Handle) -> c_int;
});

/// Both libraries.
pub(super) struct Libraries {
    pub(super) rados: Rados,
    pub(super) rbd: Rbd,
}

/// Opens the libraries at the first call.
///
/// # Errors
/// `Unsupported` if they are not installed, or older than Ceph 16.2, and in a static program.
pub(super) fn libraries() -> Result<&'static Libraries> {
    static OPENED: OnceLock<Result<Libraries>> = OnceLock::new();
    match OPENED.get_or_init(open) {
        Ok(libraries) => Ok(libraries),
        Err(error) => Err(error.clone()),
    }
}

/// Whether the libraries can be used.
///
/// # Errors
/// Those of opening them.
pub fn availability() -> Result<()> {
    libraries().map(drop)
}

fn open() -> Result<Libraries> {
    // The C library of a static program loads no others: there would be two of it in one process.
    if cfg!(target_feature = "crt-static") {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail("Ceph's librbd cannot be loaded into this program, which is linked statically")
            .advice(
                "build Extant with cargo build --release, which links it dynamically, and install \
                 the library of Ceph's RBD: the package librbd1",
            ));
    }
    let load = |name: &str| {
        // SAFETY: initialisation of both libraries has no requirement.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            Error::new(ErrorKind::Unsupported)
                .detail(format!("{name} cannot be loaded: {error}"))
                .advice("install the library of Ceph's RBD: the package librbd1")
        })?;
        // Never closed; see above.
        Ok::<_, Error>(&*Box::leak(Box::new(library)))
    };
    let old = |error: libloading::Error| {
        Error::new(ErrorKind::Unsupported)
            .detail(format!("librbd is older than Ceph 16.2: {error}"))
    };
    Ok(Libraries {
        rados: Rados::of(load("librados.so.2")?).map_err(old)?,
        rbd: Rbd::of(load("librbd.so.1")?).map_err(old)?,
    })
}
