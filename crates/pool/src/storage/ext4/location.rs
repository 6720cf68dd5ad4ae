//! The location of an image, and the right to open it: one process for changes, or several for
//! reading.
//!
//! Threads share their process's open image. Errors of a close need no report: completed operations
//! are committed already.
//!
//! Lock order: the image, then the pool's lock. An operation that holds the image as a whole may
//! take the pool's lock; a job, which releases the image between calls, may not.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use extant_ext4::{Filesystem, FollowLast, NewKind, RenameMode};
use extant_space::{Error, ErrorKind, Result, SpaceFile, SyncMode};
use parking_lot::{Mutex, MutexGuard};

use super::engine::{check_directory, open_filesystem};
use super::image_lock::{ImageLock, ImageWaiter};
use super::names::{find, make_directory, new_node};
use super::open_image::{ImageLookup, OpenImage, Pin};
use crate::state_directory::{IDENTIFIER, STATE_DIRECTORY};
use crate::storage::Purpose;
use extant_hostfs::Directory;

/// An image or disk, and a directory in it.
#[derive(Debug)]
pub(super) struct Ext4Location {
    pub(super) path: PathBuf,
    pub(super) directory: PathBuf,
    /// An image that has another one is refused.
    pub(super) identifier: Option<String>,
}

impl Ext4Location {
    /// Where the directory is, for messages: `IMAGE:/directory`.
    pub(super) fn inner_path(&self) -> PathBuf {
        let mut place: OsString = self.path.as_os_str().to_owned();
        place.push(":");
        if !self.directory.as_os_str().as_bytes().starts_with(b"/") {
            place.push("/");
        }
        place.push(&self.directory);
        PathBuf::from(place)
    }
}

/// An image, and this process's engine for it, if open.
#[derive(Debug)]
pub(crate) struct Ext4Image {
    location: Arc<Ext4Location>,
    /// Usually one: another may be opened for changes while a job that only reads has released its
    /// own.
    open: Mutex<Vec<Weak<OpenImage>>>,
}

/// Result of an attempt to open an image.
pub(crate) enum Opening {
    Open(Pin),
    /// Shared with the other handles of the same pool.
    Busy,
}

impl Ext4Image {
    /// With `identifier`, an image that has another one is refused.
    pub(crate) fn new(path: &Path, directory: &Path, identifier: Option<&str>) -> Self {
        let location = Ext4Location {
            path: path.to_path_buf(),
            directory: directory.to_path_buf(),
            identifier: identifier.map(str::to_owned),
        };
        Self {
            location: Arc::new(location),
            open: Mutex::default(),
        }
    }

    /// Where the directory is, for messages: `IMAGE:/directory`.
    pub(crate) fn path(&self) -> PathBuf {
        self.location.inner_path()
    }

    /// Opens the image, or shares the open one. `own` is the state directory with the image lock. A
    /// user who cannot open it only reads, while no process changes anything.
    pub(crate) fn try_open(
        &self,
        purpose: Purpose,
        own: Option<&Directory>,
        waiter: &mut ImageWaiter,
    ) -> Result<Opening> {
        let mut open = self.open();
        let mut is_busy = false;
        for image in open.iter().filter_map(Weak::upgrade) {
            match image.pin(purpose, waiter)? {
                ImageLookup::Open(pin) => return Ok(Opening::Open(pin)),
                ImageLookup::Busy => is_busy = true,
                ImageLookup::Nothing => {}
            }
        }
        let lock = match own {
            None if is_busy => return Ok(Opening::Busy),
            None => None,
            Some(own) if is_busy => {
                waiter.show(own);
                return Ok(Opening::Busy);
            }
            Some(own) => match waiter.take(own, purpose)? {
                Some(lock) => Some(lock),
                None => return Ok(Opening::Busy),
            },
        };
        let opened = OpenImage::open(&self.location, purpose, own, lock);
        let pin = opened.inspect_err(|error| match own {
            // A reader without the image lock, because no process had changed anything.
            Some(own) if error.kind() == ErrorKind::InUse => waiter.show(own),
            _ => {}
        })?;
        open.retain(|image| image.strong_count() > 0);
        open.push(Arc::downgrade(pin.image()));
        Ok(Opening::Open(pin))
    }

    /// Releases the image to waiters between two calls of a job.
    pub(crate) fn give_way(&self) {
        let open: Vec<_> = self.open().iter().filter_map(Weak::upgrade).collect();
        open.iter().for_each(|image| image.give_way());
    }

    fn open(&self) -> MutexGuard<'_, Vec<Weak<OpenImage>>> {
        self.open.lock()
    }

    /// The process that has the image open, if known.
    pub(crate) fn holder(&self, own: &Directory) -> Option<u32> {
        ImageLock::holder(own)
    }

    /// Checks that a file system exists in which a pool can be.
    pub(crate) fn check(&self) -> Result<()> {
        let filesystem = open_filesystem(&self.location, Purpose::Look)?;
        let directory = self.location.directory.as_os_str().as_bytes();
        match filesystem.resolve(directory, FollowLast::Yes) {
            Ok(node) => check_directory(&node).map_err(|error| error.at(self.path())),
            // It is made.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.at(self.path())),
        }
    }

    /// Makes the directory where there is none, and keeps `identifier` in it. `own` is as for
    /// [`try_open`](Self::try_open).
    pub(crate) fn build(
        &self,
        own: &Directory,
        identifier: &str,
        waiter: &mut ImageWaiter,
    ) -> Result<Opening> {
        let Some(lock) = waiter.take(own, Purpose::Change)? else {
            return Ok(Opening::Busy);
        };
        let filesystem = open_filesystem(&self.location, Purpose::Change)?;
        let built = self.build_in(&filesystem, identifier);
        let closed = filesystem.close();
        built.and(closed).map_err(|error| error.at(self.path()))?;
        drop(lock);
        self.try_open(Purpose::Look, Some(own), waiter)
    }

    fn build_in(&self, filesystem: &Filesystem, identifier: &str) -> Result<()> {
        let mut directory = filesystem.root()?;
        for part in self.location.directory.components() {
            if let std::path::Component::Normal(name) = part {
                let name = name.to_str().ok_or_else(|| {
                    Error::new(ErrorKind::InvalidArgument).detail("the directory is not UTF-8")
                })?;
                directory = make_directory(&directory, name)?;
            }
        }
        let own = make_directory(&directory, STATE_DIRECTORY)?;
        let temporary = format!("{}.new", IDENTIFIER);
        if find(&own, &temporary)?.is_some() {
            own.unlink(temporary.as_bytes())?;
        }
        let file = own
            .create(temporary.as_bytes(), &new_node(NewKind::Regular, 0o600))?
            .file()?;
        file.write_at(format!("{identifier}\n").as_bytes(), 0)?;
        file.sync(SyncMode::All)?;
        let name = IDENTIFIER.as_bytes();
        own.rename(temporary.as_bytes(), &own, name, RenameMode::Replace)
    }
}
