//! An open image, and who else has it open.
//!
//! An image that is written excludes others by its watch, which every client with the image open
//! for changes has, and by the exclusive lock if the image has that feature. The watch comes first,
//! then the search for others: of two clients at least one sees the other. The lock of a client
//! that still watches is never taken away. A client that was killed stays a watcher for half a
//! minute (`osd_client_watch_timeout`).

use std::fmt;
use std::path::{Path, PathBuf};

use extant_space::{ByteRange, Error, ErrorKind, Result};

use crate::pool::{ImageFeatures, Pool};
use crate::sys::{ImageHandle, Opening};

/// `RBD_FLAG_OBJECT_MAP_INVALID` and `RBD_FLAG_FAST_DIFF_INVALID`.
const MAP_INVALID: u64 = 3;

/// Use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RbdAccess {
    /// Reading and writing; no other client has the image open meanwhile.
    ReadWrite,
    /// Reading; no other client may write to the image, or remove it, meanwhile. Nothing of that
    /// holds for a user whose capabilities do not permit a watch.
    ReadOnly,
    /// Reading, whatever others do: a removed image reads as zeros.
    Shared,
}

/// A client that has an image open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watcher {
    /// Its address.
    pub address: String,
    /// Its number in the cluster.
    pub client_number: u64,
}

/// A snapshot of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// Bytes of the image then.
    pub size: u64,
}

/// An open image, or one of its snapshots.
///
/// librbd takes the exclusive lock for some reads of an image that may be changed. So a reader has
/// it open twice: for its watch, and read-only for what it reads.
pub struct Image {
    handle: ImageHandle,
    /// The watch of a reader; `None`: `handle` has it, or there is none.
    watch: Option<ImageHandle>,
    pool: Pool,
    place: PathBuf,
    object_bytes: u64,
    stripe_bytes: u64,
}

impl Image {
    /// Opens an image, or one of its snapshots, which is read-only.
    ///
    /// # Errors
    /// `NotFound` without pool, image or snapshot; `InUse` with the other clients; `ReadOnly` for
    /// changes of a snapshot; `PermissionDenied` if the user's capabilities do not suffice; those
    /// of the cluster.
    pub fn open(
        pool: &Pool,
        name: &str,
        snapshot: Option<&str>,
        access: RbdAccess,
    ) -> Result<Self> {
        let place = pool.place(name, snapshot);
        let fail = |error: Error| pool.cluster().explain(error).during("open").at(&place);
        if access == RbdAccess::ReadWrite && snapshot.is_some() {
            let error = Error::new(ErrorKind::ReadOnly).detail("a snapshot cannot be changed");
            return Err(error.at(&place));
        }
        let open = |how| ImageHandle::open(pool.handle(), name, snapshot, how);
        let how = match access {
            RbdAccess::ReadWrite | RbdAccess::ReadOnly => Opening::Watched,
            RbdAccess::Shared => Opening::Unseen,
        };
        let (handle, access) = match open(how) {
            Err(error)
                if access == RbdAccess::ReadOnly
                    && matches!(error.os_errno(), Some(libc::EPERM | libc::EACCES)) =>
            {
                (open(Opening::Unseen), RbdAccess::Shared)
            }
            opened => (opened, access),
        };
        let handle = handle.map_err(|error| match (error.kind(), snapshot) {
            (ErrorKind::NotFound, None) => {
                let detail = format!("the pool {} has no image {name}", pool.name());
                error.detail(detail).at(&place)
            }
            (ErrorKind::NotFound, Some(_)) => error.detail("no such image or snapshot").at(&place),
            _ => fail(error),
        })?;
        let (handle, watch) = match access {
            RbdAccess::ReadOnly if snapshot.is_none() => {
                (open(Opening::Unseen).map_err(fail)?, Some(handle))
            }
            _ => (handle, None),
        };
        let object_bytes = handle.object_bytes().map_err(fail)?;
        let stripe_bytes = object_bytes * handle.stripe_count().map_err(fail)?;
        let image = Self {
            handle,
            watch,
            pool: pool.clone(),
            place: place.clone(),
            object_bytes,
            stripe_bytes,
        };
        match access {
            RbdAccess::ReadWrite => image.exclude_others()?,
            RbdAccess::ReadOnly if snapshot.is_none() => image.check_not_written()?,
            RbdAccess::ReadOnly | RbdAccess::Shared => {}
        }
        Ok(image)
    }

    fn exclude_others(&self) -> Result<()> {
        self.check_alone()?;
        if !self.features()?.contains(ImageFeatures::EXCLUSIVE_LOCK) {
            return Ok(());
        }
        self.handle.acquire_lock().map_err(|error| {
            let owner = self
                .lock_owners()
                .ok()
                .and_then(|owners| owners.into_iter().next());
            match (error.os_errno(), owner) {
                (Some(libc::EBUSY | libc::EROFS | libc::EAGAIN), Some(owner)) => error
                    .with_kind(ErrorKind::InUse)
                    .detail(format!("the image is locked by the client at {owner}"))
                    .at(&self.place),
                _ => self.explain(error.during("lock")),
            }
        })?;
        // A reader that came since the first look may have missed the lock.
        self.check_alone()
    }

    fn check_alone(&self) -> Result<()> {
        let watchers = self.watchers()?;
        let own = self.pool.cluster().client_number();
        let (ours, others): (Vec<_>, Vec<_>) =
            watchers.iter().partition(|one| one.client_number == own);
        match others.first().or(ours.get(1)) {
            Some(other) => Err(self.in_use("the image is open in", other)),
            None => Ok(()),
        }
    }

    fn check_not_written(&self) -> Result<()> {
        let owners = self.lock_owners()?;
        let watchers = self.watchers()?;
        let own = self.pool.cluster().client_number();
        let writer = watchers
            .iter()
            .find(|watcher| watcher.client_number != own && owners.contains(&watcher.address));
        match writer {
            None => Ok(()),
            Some(writer) => Err(self
                .in_use("the image is locked for changes by", writer)
                .advice("a snapshot of it can be read at any time: rbd:POOL/IMAGE@SNAPSHOT")),
        }
    }

    fn in_use(&self, what: &str, watcher: &Watcher) -> Error {
        let Watcher {
            address,
            client_number,
        } = watcher;
        Error::new(ErrorKind::InUse)
            .at(&self.place)
            .detail(format!("{what} client.{client_number} at {address}"))
            .advice("a client that was killed counts for 30 s")
    }

    /// For changes that are no writes.
    fn control(&self) -> &ImageHandle {
        self.watch.as_ref().unwrap_or(&self.handle)
    }

    pub(crate) fn handle(&self) -> &ImageHandle {
        &self.handle
    }

    /// Its name as errors show it.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// The pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn explain(&self, error: Error) -> Error {
        self.pool.cluster().explain(error).at(&self.place)
    }

    /// The identifier, which no other image of the pool has.
    ///
    /// # Errors
    /// Those of the library.
    pub fn identifier(&self) -> Result<String> {
        let identifier = self.handle.identifier();
        identifier.map_err(|error| self.explain(error))
    }

    /// Bytes now; a change by another client is noticed.
    ///
    /// # Errors
    /// Those of the library.
    pub fn size(&self) -> Result<u64> {
        self.handle.size().map_err(|error| self.explain(error))
    }

    /// Bytes of an object.
    pub fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// Bytes from which on the next objects are used: a range of them uses whole objects.
    pub fn stripe_bytes(&self) -> u64 {
        self.stripe_bytes
    }

    /// Bytes of a stripe unit; those of an object if it is filled in order.
    ///
    /// # Errors
    /// Those of the library.
    pub fn stripe_unit_bytes(&self) -> Result<u64> {
        self.handle
            .stripe_unit()
            .map_err(|error| self.explain(error))
    }

    /// Bytes through which a parent may show; 0 without a parent.
    ///
    /// # Errors
    /// Those of the library.
    pub fn overlap(&self) -> Result<u64> {
        self.handle.overlap().map_err(|error| self.explain(error))
    }

    /// Its features.
    ///
    /// # Errors
    /// Those of the library.
    pub fn features(&self) -> Result<ImageFeatures> {
        let bits = self.handle.features();
        let bits = bits.map_err(|error| self.explain(error))?;
        Ok(ImageFeatures::from_bits_retain(bits))
    }

    /// Whether the map of objects answers for the objects, without a request to each.
    ///
    /// # Errors
    /// Those of the library.
    pub fn has_object_map(&self) -> Result<bool> {
        let flags = self.handle.flags().map_err(|error| self.explain(error))?;
        Ok(self.features()?.contains(ImageFeatures::FAST_DIFF) && flags & MAP_INVALID == 0)
    }

    /// Changes the size; `progress` receives the objects done, and all of them.
    ///
    /// # Errors
    /// `InvalidArgument` for less bytes unless `may_shrink`; those of the cluster.
    pub fn resize(
        &self,
        size: u64,
        may_shrink: bool,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<()> {
        let resized = self.handle.resize(size, may_shrink, progress);
        resized.map_err(|error| self.explain(error.during("resize")))
    }

    /// Copies what the image shares with its parent, so that it needs the parent no more;
    /// `progress` receives the objects done, and all of them. Repeating does the rest.
    ///
    /// # Errors
    /// `InvalidArgument` without a parent; those of the cluster.
    pub fn flatten(&self, progress: &(dyn Fn(u64, u64) + Sync)) -> Result<()> {
        let flat = self.handle.flatten(progress);
        flat.map_err(|error| self.explain(error.during("flatten")))
    }

    /// Its snapshots.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let found = self.handle.snapshots();
        let found = found.map_err(|error| self.explain(error.during("list snapshots")))?;
        let found = found.into_iter();
        Ok(found.map(|(name, size)| Snapshot { name, size }).collect())
    }

    /// Takes a snapshot of what was flushed.
    ///
    /// # Errors
    /// `AlreadyExists`; those of the cluster.
    pub fn create_snapshot(&self, name: &str) -> Result<()> {
        let made = self.control().create_snapshot(name);
        made.map_err(|error| self.explain_snapshot(error.during("create snapshot"), name))
    }

    /// Removes a snapshot.
    ///
    /// # Errors
    /// `NotFound`; `InUse` for a protected one; those of the cluster.
    pub fn remove_snapshot(&self, name: &str) -> Result<()> {
        let removed = self.control().remove_snapshot(name);
        removed.map_err(|error| self.explain_snapshot(error.during("remove snapshot"), name))
    }

    /// Protects a snapshot from removal, so that it can be cloned.
    ///
    /// # Errors
    /// `NotFound`; `InUse` for one that is protected; those of the cluster.
    pub fn protect_snapshot(&self, name: &str) -> Result<()> {
        let done = self.control().protect_snapshot(name);
        done.map_err(|error| self.explain_snapshot(error.during("protect snapshot"), name))
    }

    /// Ends the protection of a snapshot.
    ///
    /// # Errors
    /// `NotFound`; `InUse` for one with clones; those of the cluster.
    pub fn unprotect_snapshot(&self, name: &str) -> Result<()> {
        let done = self.control().unprotect_snapshot(name);
        done.map_err(|error| self.explain_snapshot(error.during("unprotect snapshot"), name))
    }

    /// Whether a snapshot is protected.
    ///
    /// # Errors
    /// `NotFound`; those of the cluster.
    pub fn is_protected(&self, snapshot: &str) -> Result<bool> {
        let answer = self.handle.is_protected(snapshot);
        answer.map_err(|error| self.explain_snapshot(error, snapshot))
    }

    fn explain_snapshot(&self, error: Error, name: &str) -> Error {
        let error = match error.kind() {
            ErrorKind::NotFound => error.detail(format!("the image has no snapshot {name}")),
            ErrorKind::InUse => error.detail(format!("the snapshot {name} is protected or cloned")),
            _ => error,
        };
        self.explain(error)
    }

    /// The clients that have the image open for changes, this one included.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn watchers(&self) -> Result<Vec<Watcher>> {
        let found = self.control().watchers();
        let found = found.map_err(|error| self.explain(error.during("list watchers")))?;
        let watchers = found.into_iter().map(|(address, client_number)| Watcher {
            address,
            client_number,
        });
        Ok(watchers.collect())
    }

    /// The addresses of those that own the exclusive lock: at most one.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn lock_owners(&self) -> Result<Vec<String>> {
        if !self.features()?.contains(ImageFeatures::EXCLUSIVE_LOCK) {
            return Ok(Vec::new());
        }
        let owners = self.control().lock_owners();
        owners.map_err(|error| self.explain(error.during("list lock owners")))
    }

    /// The value of a key; `None` if there is none.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn metadata(&self, key: &str) -> Result<Option<String>> {
        let value = self.handle.metadata(key);
        value.map_err(|error| self.explain(error.during("read metadata")))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn set_metadata(&self, key: &str, value: &str) -> Result<()> {
        let set = self.control().set_metadata(key, value);
        set.map_err(|error| self.explain(error.during("write metadata")))
    }

    /// Removes a key.
    ///
    /// # Errors
    /// `NotFound`; those of the cluster.
    pub fn remove_metadata(&self, key: &str) -> Result<()> {
        let removed = self.control().remove_metadata(key);
        removed.map_err(|error| self.explain(error.during("remove metadata")))
    }

    /// The parts of `range` with data here or in a parent, in order, up to the end of the image.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn data_in(&self, range: ByteRange, detail: ObjectDetail) -> Result<Vec<ByteRange>> {
        // librbd reports ranges that begin inside an object wrongly before Ceph 16.2.8.
        let start = range.start() / self.stripe_bytes * self.stripe_bytes;
        let end = range
            .end()
            .next_multiple_of(self.stripe_bytes)
            .min(self.size()?);
        if start >= end {
            return Ok(Vec::new());
        }
        let aligned = ByteRange::new(start, end);
        let found = self
            .handle
            .data_in(aligned, detail == ObjectDetail::Objects, true);
        let found = found.map_err(|error| self.explain(error.during("map").in_range(range)))?;
        let parts = found
            .into_iter()
            .filter_map(|part| part.intersection(range));
        Ok(parts.collect())
    }

    /// Bytes of its own objects, each counted as a whole.
    ///
    /// # Errors
    /// Those of the cluster.
    pub fn allocated_bytes(&self) -> Result<u64> {
        let whole = ByteRange::new(0, self.size()?);
        if whole.is_empty() {
            return Ok(0);
        }
        let found = self.handle.data_in(whole, true, false);
        let found = found.map_err(|error| self.explain(error.during("map")))?;
        Ok(found.iter().map(|part| part.len()).sum())
    }
}

/// How exactly data is located.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectDetail {
    /// Objects that exist count as a whole. The map of objects answers, if there is a valid one.
    Objects,
    /// Each object is asked how long it is.
    Bytes,
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({})", self.place.display())
    }
}
