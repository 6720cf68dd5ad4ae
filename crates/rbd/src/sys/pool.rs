//! A pool, or a namespace in it, and the images by their names.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use extant_space::Result;

use super::cluster::ClusterHandle;
use super::library::{Handle, ImageSpec, Rados, Rbd, TrashInfo};
use super::list::filled;
use super::progress::{ProgressFn, argument, forward};
use super::text::{c_text, check, copied};

/// Images that the first call for a list has room for.
const LIST_ROOM: usize = 256;
/// The object with the list of librbd's trash.
const TRASH: &CStr = c"rbd_trash";

/// `RBD_TRASH_IMAGE_SOURCE_REMOVING`: not by a user.
const TRASH_BY_REMOVAL: c_int = 3;
/// The error number of the first byte that is not as compared; those of later bytes are higher.
const OTHER_CONTENT: c_int = 4095;

/// Options of a new image, by their numbers in `librbd.h`.
pub(crate) enum ImageOption<'a> {
    Features(u64),
    Order(u64),
    StripeUnit(u64),
    StripeCount(u64),
    DataPool(&'a str),
}

/// A pool with a namespace. Closed when dropped.
pub(crate) struct PoolHandle {
    raw: Handle,
    pub(super) cluster: Arc<ClusterHandle>,
}

// SAFETY: librados serialises what its handles share; the namespace is set before the first use.
unsafe impl Send for PoolHandle {}
// SAFETY: as above.
unsafe impl Sync for PoolHandle {}

impl PoolHandle {
    /// A full pool answers with an error instead of waiting for space.
    pub(crate) fn open(cluster: &Arc<ClusterHandle>, pool: &str, namespace: &str) -> Result<Self> {
        let (pool, namespace) = (c_text(pool)?, c_text(namespace)?);
        let rados = &cluster.libraries.rados;
        let mut raw = ptr::null_mut();
        // SAFETY: the texts and the place of the handle live across the calls.
        unsafe {
            check((rados.rados_ioctx_create)(
                cluster.raw,
                pool.as_ptr(),
                &raw mut raw,
            ))?;
            (rados.rados_ioctx_set_namespace)(raw, namespace.as_ptr());
            (rados.rados_set_pool_full_try)(raw);
        }
        Ok(Self {
            raw,
            cluster: Arc::clone(cluster),
        })
    }

    fn rados(&self) -> &'static Rados {
        &self.cluster.libraries.rados
    }

    pub(super) fn rbd(&self) -> &'static Rbd {
        &self.cluster.libraries.rbd
    }

    pub(super) fn raw(&self) -> Handle {
        self.raw
    }

    /// The names of all images, each with its identifier.
    pub(crate) fn images(&self) -> Result<Vec<(String, String)>> {
        let empty = ImageSpec {
            id: ptr::null_mut(),
            name: ptr::null_mut(),
        };
        // SAFETY: there is room for as many entries as the number says.
        let mut specs = filled(&empty, LIST_ROOM, |specs, count| unsafe {
            (self.rbd().rbd_list2)(self.raw, specs, count)
        })?;
        // SAFETY: the call has set all entries, whose texts are freed once, here.
        unsafe {
            let names = specs.iter();
            let names = names.map(|spec| (copied(spec.name), copied(spec.id)));
            let names = names.collect();
            (self.rbd().rbd_image_spec_list_cleanup)(specs.as_mut_ptr(), specs.len());
            Ok(names)
        }
    }

    /// The names of images that a removal has moved to the trash.
    pub(crate) fn images_in_removal(&self) -> Result<Vec<String>> {
        let empty = TrashInfo {
            id: ptr::null_mut(),
            name: ptr::null_mut(),
            source: 0,
            deletion_time: 0,
            deferment_end_time: 0,
        };
        // SAFETY: there is room for as many entries as the number says.
        let mut entries = filled(&empty, LIST_ROOM, |entries, count| unsafe {
            (self.rbd().rbd_trash_list)(self.raw, entries, count)
        })?;
        // SAFETY: the call has set all entries, whose texts are freed once, here.
        unsafe {
            let removed = entries.iter();
            let removed = removed.filter(|entry| entry.source == TRASH_BY_REMOVAL);
            let names = removed.map(|entry| copied(entry.name)).collect();
            (self.rbd().rbd_trash_list_cleanup)(entries.as_mut_ptr(), entries.len());
            Ok(names)
        }
    }

    pub(crate) fn create(&self, image: &str, size: u64, options: &[ImageOption<'_>]) -> Result<()> {
        let image = c_text(image)?;
        let options = OptionsHandle::new(self.rbd(), options)?;
        self.make_trash()?;
        // SAFETY: name and options live across the call.
        check(unsafe { (self.rbd().rbd_create4)(self.raw, image.as_ptr(), size, options.raw) })
            .map(drop)
    }

    /// A clone in `into` of a protected snapshot of this pool.
    pub(crate) fn clone_to(
        &self,
        (image, snapshot): (&str, &str),
        into: &Self,
        name: &str,
        options: &[ImageOption<'_>],
    ) -> Result<()> {
        let (image, snapshot, name) = (c_text(image)?, c_text(snapshot)?, c_text(name)?);
        let options = OptionsHandle::new(self.rbd(), options)?;
        into.make_trash()?;
        // SAFETY: names and options live across the call, and both pools are open.
        let code = unsafe {
            (self.rbd().rbd_clone3)(
                self.raw,
                image.as_ptr(),
                snapshot.as_ptr(),
                into.raw,
                name.as_ptr(),
                options.raw,
            )
        };
        check(code).map(drop)
    }

    /// Makes the trash, through which librbd removes images. It would be made by the first removal,
    /// but a full cluster permits no new object.
    fn make_trash(&self) -> Result<()> {
        // SAFETY: the name lives across the call, which reads no data.
        let code =
            unsafe { (self.rados().rados_write)(self.raw, TRASH.as_ptr(), TRASH.as_ptr(), 0, 0) };
        check(code).map(drop)
    }

    pub(crate) fn remove(&self, image: &str, mut progress: &ProgressFn<'_>) -> Result<()> {
        let image = c_text(image)?;
        let progress = argument(&mut progress);
        // SAFETY: the name and the reference behind `progress` live across the call.
        check(unsafe {
            (self.rbd().rbd_remove_with_progress)(self.raw, image.as_ptr(), forward, progress)
        })
        .map(drop)
    }

    /// Removes the object that makes `name` a name of the image with this identifier; false if
    /// there is none, or it is of another image.
    pub(crate) fn remove_name(&self, name: &str, identifier: &str) -> Result<bool> {
        let rados = self.rados();
        let object = c_text(&format!("rbd_id.{name}"))?;
        let length = u32::try_from(identifier.len()).expect("an identifier is short");
        let content = [&length.to_le_bytes(), identifier.as_bytes()].concat();
        // SAFETY: the operation is used by this thread alone and released once; the content, of the
        // stated length, and the name live until then. No place for the comparison's own result and
        // no time are allowed.
        let code = unsafe {
            let operation = (rados.rados_create_write_op)();
            let bytes = content.as_ptr().cast();
            (rados.rados_write_op_cmpext)(operation, bytes, content.len(), 0, ptr::null_mut());
            (rados.rados_write_op_remove)(operation);
            let name = object.as_ptr();
            let code =
                (rados.rados_write_op_operate)(operation, self.raw, name, ptr::null_mut(), 0);
            (rados.rados_release_write_op)(operation);
            code
        };
        match code {
            code if code == -libc::ENOENT || code <= -OTHER_CONTENT => Ok(false),
            code => check(code).map(|_| true),
        }
    }

    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (c_text(from)?, c_text(to)?);
        // SAFETY: both names live across the call.
        check(unsafe { (self.rbd().rbd_rename)(self.raw, from.as_ptr(), to.as_ptr()) }).map(drop)
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // SAFETY: nothing else has the handle: images keep this value.
        unsafe { (self.rados().rados_ioctx_destroy)(self.raw) };
    }
}

struct OptionsHandle {
    rbd: &'static Rbd,
    raw: *mut c_void,
}

impl OptionsHandle {
    fn new(rbd: &'static Rbd, options: &[ImageOption<'_>]) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the place of the handle lives across the call.
        unsafe { (rbd.rbd_image_options_create)(&raw mut raw) };
        let handle = Self { rbd, raw };
        for option in options {
            handle.set(option)?;
        }
        Ok(handle)
    }

    fn set(&self, option: &ImageOption<'_>) -> Result<()> {
        let (number, value): (c_int, u64) = match *option {
            ImageOption::Features(value) => (1, value),
            ImageOption::Order(value) => (2, value),
            ImageOption::StripeUnit(value) => (3, value),
            ImageOption::StripeCount(value) => (4, value),
            ImageOption::DataPool(pool) => {
                let pool = c_text(pool)?;
                // SAFETY: the text lives across the call.
                let code =
                    unsafe { (self.rbd.rbd_image_options_set_string)(self.raw, 10, pool.as_ptr()) };
                return check(code).map(drop);
            }
        };
        // SAFETY: the handle is valid.
        check(unsafe { (self.rbd.rbd_image_options_set_uint64)(self.raw, number, value) }).map(drop)
    }
}

impl Drop for OptionsHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and destroyed once.
        unsafe { (self.rbd.rbd_image_options_destroy)(self.raw) };
    }
}
