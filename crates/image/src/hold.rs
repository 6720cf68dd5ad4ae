//! Exclusive access to images and disks, and detection of other users.
//!
//! The owner has claimed the disk, or holds our lock and QEMU's locks on the file. Users that
//! respect neither (loop devices, mounts, other programs) are searched for.

mod busy;

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use extant_blockdev::{HostAccess, HostDevice, HostOptions};
use extant_space::{Error, ErrorKind, Result};
use extant_sys::identity::Identity;
use extant_sys::mounts::Mount;

use crate::lock::{LockAccess, lock};

pub use busy::{MountPoint, mounted_at};

/// Opens an image or disk, with only the exclusion of the device itself.
///
/// # Errors
/// Those of [`HostDevice::open`]; `InUse` names our mount if there is one.
pub fn open_device(path: &Path, options: &HostOptions) -> Result<HostDevice> {
    HostDevice::open(path, options).map_err(|error| busy::explain(error, path))
}

/// Opens an image or disk for long use: no other process changes it meanwhile, nor reads it if it
/// is written here.
///
/// # Errors
/// `InUse` with the known users; those of [`HostDevice::open`].
pub fn hold_device(path: &Path, options: &HostOptions) -> Result<HostDevice> {
    // Locked first: later openers see the lock.
    let device = open_device(path, options)?;
    let wanted = match options.access {
        HostAccess::ReadWrite => LockAccess::Write,
        HostAccess::ReadOnly => LockAccess::Read,
    };
    // QEMU's programs check no other locks.
    lock(&device, wanted).map_err(|error| error.at(path))?;
    check_is_free(path, options.access)?;
    Ok(device)
}

/// Refuses a file in use by programs that ignore locks. The caller has locked it.
///
/// # Errors
/// `InUse` with the user.
pub fn check_is_free(path: &Path, access: HostAccess) -> Result<()> {
    match access {
        HostAccess::ReadWrite => busy::check(path),
        HostAccess::ReadOnly => busy::check_is_still(path),
    }
}

/// A file that is to be replaced, kept from others as long as this lives.
#[derive(Debug)]
pub struct Replaced {
    _file: Option<File>,
}

/// Excludes others from the file at `path` until a new one replaces it: a user would continue with
/// an unlinked file.
///
/// # Errors
/// `InUse` with the known users.
pub fn hold_replaced(path: &Path) -> Result<Replaced> {
    let place = |error: Error| error.during("replace").at(path);
    if !std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(Replaced { _file: None });
    }
    let mut options = OpenOptions::new();
    // The kernel does not wait for the owner of a lease.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = match options.open(path) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            return Err(place(
                Error::new(ErrorKind::InUse).detail("another process holds a lease on it"),
            ));
        }
        // Whom it belongs to may use it all the same.
        Err(_) => None,
    };
    if let Some(file) = &file {
        lock(file, LockAccess::Write).map_err(place)?;
        lock_as_device(file).map_err(|error| place(busy::explain(error, path)))?;
    }
    busy::check(path).map_err(place)?;
    Ok(Replaced { _file: file })
}

/// Our own lock, which every [`HostDevice`] has.
fn lock_as_device(file: &File) -> Result<()> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::new(ErrorKind::InUse)
            .detail("the file is in use as a device elsewhere, and locked")),
        // Some network file systems have no locks.
        _ => Ok(()),
    }
}

/// The visible mounts of an image or disk by `extant mount`. A custom `fsname` hides one.
pub fn mounts_of(image: &Path) -> impl Iterator<Item = Mount> {
    let wanted = Identity::of(image).ok();
    let ours = Mount::all().unwrap_or_default().into_iter();
    ours.filter(move |mount| {
        let is_fuse = mount.fs_type.starts_with("fuse.");
        is_fuse && wanted.is_some() && Identity::of(&mount.source).ok() == wanted
    })
}
