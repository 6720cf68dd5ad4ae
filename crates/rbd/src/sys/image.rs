//! An open image: properties, snapshots, watchers, locks, metadata, differences.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use extant_space::{ByteRange, Result};

use super::aio;
use super::library::{Handle, ImageInfo, ImageWatcher, Rbd, SnapInfo};
use super::list::filled;
use super::pool::PoolHandle;
use super::progress::{ProgressFn, argument, forward};
use super::text::{c_text, check, copied, until_zero};

/// Snapshots, watchers and owners that the first call for a list has room for.
const LIST_ROOM: usize = 64;
/// Bytes of a metadata value that the first call has room for.
const VALUE_BYTES: usize = 4096;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// With a watch, which others see.
    Watched,
    /// For reading; others do not notice it.
    Unseen,
}

/// An open image. Closed when dropped, which waits for the requests in flight.
pub(crate) struct ImageHandle {
    pub(super) raw: Handle,
    /// Requests in flight.
    pub(super) in_flight: Arc<AtomicUsize>,
    pool: Arc<PoolHandle>,
}

// SAFETY: librbd serialises what an image's calls share.
unsafe impl Send for ImageHandle {}
// SAFETY: as above.
unsafe impl Sync for ImageHandle {}

impl ImageHandle {
    pub(crate) fn open(
        pool: &Arc<PoolHandle>,
        name: &str,
        snapshot: Option<&str>,
        how: Opening,
    ) -> Result<Self> {
        let name = c_text(name)?;
        let snapshot = snapshot.map(c_text).transpose()?;
        let snapshot = snapshot.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let open = match how {
            Opening::Watched => pool.rbd().rbd_open,
            Opening::Unseen => pool.rbd().rbd_open_read_only,
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the texts and the place of the handle live across the call.
        check(unsafe { open(pool.raw(), name.as_ptr(), &raw mut raw, snapshot) })?;
        Ok(Self {
            raw,
            in_flight: Arc::default(),
            pool: Arc::clone(pool),
        })
    }

    pub(super) fn rbd(&self) -> &'static Rbd {
        self.pool.rbd()
    }

    /// Bytes now, as this client knows it, without a request.
    pub(crate) fn size(&self) -> Result<u64> {
        self.number(self.rbd().rbd_get_size)
    }

    pub(crate) fn features(&self) -> Result<u64> {
        self.number(self.rbd().rbd_get_features)
    }

    /// `RBD_FLAG_*`.
    pub(crate) fn flags(&self) -> Result<u64> {
        self.number(self.rbd().rbd_get_flags)
    }

    /// Bytes that the parent may show through.
    pub(crate) fn overlap(&self) -> Result<u64> {
        self.number(self.rbd().rbd_get_overlap)
    }

    pub(crate) fn stripe_unit(&self) -> Result<u64> {
        self.number(self.rbd().rbd_get_stripe_unit)
    }

    pub(crate) fn stripe_count(&self) -> Result<u64> {
        self.number(self.rbd().rbd_get_stripe_count)
    }

    fn number(&self, call: unsafe extern "C" fn(Handle, *mut u64) -> c_int) -> Result<u64> {
        let mut value = 0;
        // SAFETY: each of the calls writes one number.
        check(unsafe { call(self.raw, &raw mut value) }).map(|_| value)
    }

    /// Bytes of an object.
    pub(crate) fn object_bytes(&self) -> Result<u64> {
        // SAFETY: all fields are numbers, for which zero bytes are a value.
        let mut info: ImageInfo = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes at most the given size.
        check(unsafe { (self.rbd().rbd_stat)(self.raw, &raw mut info, size_of::<ImageInfo>()) })?;
        Ok(info.obj_size)
    }

    pub(crate) fn resize(
        &self,
        size: u64,
        may_shrink: bool,
        mut progress: &ProgressFn<'_>,
    ) -> Result<()> {
        let progress = argument(&mut progress);
        // SAFETY: the reference behind `progress` lives across the call.
        check(unsafe { (self.rbd().rbd_resize2)(self.raw, size, may_shrink, forward, progress) })
            .map(drop)
    }

    pub(crate) fn flatten(&self, mut progress: &ProgressFn<'_>) -> Result<()> {
        let progress = argument(&mut progress);
        // SAFETY: the reference behind `progress` lives across the call.
        check(unsafe { (self.rbd().rbd_flatten_with_progress)(self.raw, forward, progress) })
            .map(drop)
    }

    /// Name and size of each snapshot.
    pub(crate) fn snapshots(&self) -> Result<Vec<(String, u64)>> {
        let mut room = LIST_ROOM as c_int;
        loop {
            let empty = SnapInfo {
                id: 0,
                size: 0,
                name: ptr::null(),
            };
            let mut found = vec![empty; room as usize];
            let mut most = room;
            // SAFETY: there is room for `most` entries.
            let code =
                unsafe { (self.rbd().rbd_snap_list)(self.raw, found.as_mut_ptr(), &raw mut most) };
            if code == -libc::ERANGE {
                room = most.max(room + 1);
                continue;
            }
            let count = check(code)? as usize;
            // SAFETY: the call has set `count` entries and a null name after them; their texts are
            // freed once, here.
            let snapshots = unsafe {
                let all = found[..count].iter();
                let all = all.map(|snap| (copied(snap.name), snap.size)).collect();
                (self.rbd().rbd_snap_list_end)(found.as_mut_ptr());
                all
            };
            return Ok(snapshots);
        }
    }

    pub(crate) fn create_snapshot(&self, name: &str) -> Result<()> {
        self.by_name(self.rbd().rbd_snap_create, name)
    }

    pub(crate) fn remove_snapshot(&self, name: &str) -> Result<()> {
        self.by_name(self.rbd().rbd_snap_remove, name)
    }

    pub(crate) fn protect_snapshot(&self, name: &str) -> Result<()> {
        self.by_name(self.rbd().rbd_snap_protect, name)
    }

    pub(crate) fn unprotect_snapshot(&self, name: &str) -> Result<()> {
        self.by_name(self.rbd().rbd_snap_unprotect, name)
    }

    pub(crate) fn remove_metadata(&self, key: &str) -> Result<()> {
        self.by_name(self.rbd().rbd_metadata_remove, key)
    }

    fn by_name(
        &self,
        call: unsafe extern "C" fn(Handle, *const c_char) -> c_int,
        name: &str,
    ) -> Result<()> {
        let name = c_text(name)?;
        // SAFETY: the name lives across the call.
        check(unsafe { call(self.raw, name.as_ptr()) }).map(drop)
    }

    pub(crate) fn is_protected(&self, snapshot: &str) -> Result<bool> {
        let snapshot = c_text(snapshot)?;
        let mut answer = 0;
        // SAFETY: the name and the answer live across the call.
        check(unsafe {
            (self.rbd().rbd_snap_is_protected)(self.raw, snapshot.as_ptr(), &raw mut answer)
        })?;
        Ok(answer != 0)
    }

    /// Address and client number of each watcher.
    pub(crate) fn watchers(&self) -> Result<Vec<(String, u64)>> {
        let empty = ImageWatcher {
            addr: ptr::null_mut(),
            id: 0,
            cookie: 0,
        };
        // SAFETY: there is room for as many entries as the number says.
        let mut found = filled(&empty, LIST_ROOM, |found, count| unsafe {
            (self.rbd().rbd_watchers_list)(self.raw, found, count)
        })?;
        // SAFETY: the call has set all entries, whose texts are freed once, here.
        unsafe {
            let all = found.iter();
            let all = all.map(|one| (copied(one.addr), one.id as u64)).collect();
            (self.rbd().rbd_watchers_list_cleanup)(found.as_mut_ptr(), found.len());
            Ok(all)
        }
    }

    /// Takes the exclusive lock, and keeps it until the image is closed.
    pub(crate) fn acquire_lock(&self) -> Result<()> {
        // SAFETY: the handle is valid.
        check(unsafe { (self.rbd().rbd_lock_acquire)(self.raw, EXCLUSIVE) }).map(drop)
    }

    /// Owners of the exclusive lock: at most one.
    pub(crate) fn lock_owners(&self) -> Result<Vec<String>> {
        let mut owners = vec![ptr::null_mut(); LIST_ROOM];
        let (mut mode, mut count) = (0, owners.len());
        // SAFETY: there is room for `count` entries.
        let code = unsafe {
            (self.rbd().rbd_lock_get_owners)(
                self.raw,
                &raw mut mode,
                owners.as_mut_ptr(),
                &raw mut count,
            )
        };
        if code == -libc::ENOENT {
            return Ok(Vec::new());
        }
        check(code)?;
        // SAFETY: the call has set `count` texts, which are freed once, here.
        unsafe {
            let all = owners[..count].iter().map(|&owner| copied(owner)).collect();
            (self.rbd().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count);
            Ok(all)
        }
    }

    pub(crate) fn identifier(&self) -> Result<String> {
        let mut text = vec![0u8; VALUE_BYTES];
        // SAFETY: the call writes at most as many bytes as the text has.
        let code =
            unsafe { (self.rbd().rbd_get_id)(self.raw, text.as_mut_ptr().cast(), text.len()) };
        check(code).map(|_| until_zero(&text))
    }

    /// The value of a key; `None` if there is none.
    pub(crate) fn metadata(&self, key: &str) -> Result<Option<String>> {
        let key = c_text(key)?;
        let mut value = vec![0u8; VALUE_BYTES];
        loop {
            let mut bytes = value.len();
            // SAFETY: the call writes at most `bytes` into the value.
            let code = unsafe {
                (self.rbd().rbd_metadata_get)(
                    self.raw,
                    key.as_ptr(),
                    value.as_mut_ptr().cast(),
                    &raw mut bytes,
                )
            };
            match code {
                code if code == -libc::ERANGE => value.resize(bytes.max(value.len() + 1), 0),
                code if code == -libc::ENOENT => return Ok(None),
                code => return check(code).map(|_| Some(until_zero(&value))),
            }
        }
    }

    pub(crate) fn set_metadata(&self, key: &str, value: &str) -> Result<()> {
        let (key, value) = (c_text(key)?, c_text(value)?);
        // SAFETY: both texts live across the call.
        check(unsafe { (self.rbd().rbd_metadata_set)(self.raw, key.as_ptr(), value.as_ptr()) })
            .map(drop)
    }

    /// The parts of `range` with data here or, if wanted, in the parent, in order; with
    /// `whole_objects` each object that exists counts as a whole, which the object map answers.
    pub(crate) fn data_in(
        &self,
        range: ByteRange,
        whole_objects: bool,
        with_parent: bool,
    ) -> Result<Vec<ByteRange>> {
        unsafe extern "C" fn add(
            offset: u64,
            length: usize,
            exists: c_int,
            found: *mut c_void,
        ) -> c_int {
            // SAFETY: `found` is the vector below, which only this callback uses during the call.
            let found = unsafe { &mut *found.cast::<Vec<ByteRange>>() };
            if exists != 0 {
                found.push(ByteRange::new(offset, offset + length as u64));
            }
            0
        }
        let mut found: Vec<ByteRange> = Vec::new();
        // SAFETY: without a first snapshot all data is reported; the vector lives across the call.
        check(unsafe {
            (self.rbd().rbd_diff_iterate2)(
                self.raw,
                ptr::null(),
                range.start(),
                range.len(),
                with_parent.into(),
                whole_objects.into(),
                add,
                (&raw mut found).cast(),
            )
        })?;
        found.sort_unstable_by_key(|part| part.start());
        Ok(found)
    }
}

impl Drop for ImageHandle {
    fn drop(&mut self) {
        aio::wait_for_none(&self.in_flight);
        // SAFETY: nothing else has the handle, and no request is in flight.
        unsafe { (self.rbd().rbd_close)(self.raw) };
    }
}
