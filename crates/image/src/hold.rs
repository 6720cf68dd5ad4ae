//! Opening images, disks and exports of NBD servers; exclusive access; detection of other users.
//!
//! A path that is an NBD URI (`nbd+unix:///NAME?socket=PATH`) names an export.
//!
//! The owner has claimed the disk, or holds our lock and QEMU's locks on the file. Users that
//! respect neither (loop devices, mounts, other programs) are searched for.
//!
//! NBD has no locks: a client that writes excludes others of this host ([`NbdDevice`]). To exclude
//! other hosts is the duty of the server or the caller.

mod busy;

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, HostAccess, HostDevice, HostOptions};
use extant_nbd::{NbdAccess, NbdDevice, NbdOptions, NbdUri};
use extant_space::{Error, ErrorKind, Result};
use extant_sys::identity::Identity;
use extant_sys::mounts::Mount;

use crate::lock::{LockAccess, lock};

pub use busy::{MountPoint, mounted_at};

/// An open image, disk or export.
pub enum OpenDevice {
    /// A file or disk of this host.
    Host(HostDevice),
    /// An export of an NBD server.
    Nbd(NbdDevice),
}

impl OpenDevice {
    /// The device.
    pub fn into_device(self) -> Arc<dyn Device> {
        match self {
            Self::Host(device) => Arc::new(device),
            Self::Nbd(device) => Arc::new(device),
        }
    }
}

/// Opens an image, disk or export, with only the exclusion of the device itself.
///
/// # Errors
/// Those of [`HostDevice::open`] and [`NbdDevice::connect`]; `InUse` names our mount if there is
/// one.
pub fn open_device(path: &Path, options: &HostOptions) -> Result<OpenDevice> {
    match open_export(path, options.access) {
        Some(export) => export.map(OpenDevice::Nbd),
        None => HostDevice::open(path, options)
            .map(OpenDevice::Host)
            .map_err(|error| busy::explain(error, path)),
    }
}

/// The text of the URI of an export, valid or not; `None` for other paths.
fn uri_text(path: &Path) -> Option<&str> {
    path.to_str().filter(|text| NbdUri::is_uri(text))
}

/// Whether `path` is the URI of an export.
pub fn is_export(path: &Path) -> bool {
    uri_text(path).is_some()
}

/// Whether a process of this host changes the export that `path` is the URI of; `None` for other
/// paths.
pub fn is_export_written(path: &Path) -> Option<bool> {
    let uri = uri_text(path)?.parse();
    Some(uri.is_ok_and(|uri| NbdDevice::has_writer(&uri)))
}

/// Connects to the export that `path` is the URI of; `None` for other paths.
pub fn open_export(path: &Path, access: HostAccess) -> Option<Result<NbdDevice>> {
    let uri = uri_text(path)?.parse::<NbdUri>();
    let options = NbdOptions {
        access: match access {
            HostAccess::ReadWrite => NbdAccess::ReadWrite,
            HostAccess::ReadOnly => NbdAccess::ReadOnly,
        },
        ..NbdOptions::default()
    };
    Some(uri.and_then(|uri| NbdDevice::connect(&uri, options)))
}

/// Opens an image, disk or export for long use: no other process changes it meanwhile, nor reads it
/// if it is written here.
///
/// # Errors
/// `InUse` with the known users; those of [`open_device`].
pub fn hold_device(path: &Path, options: &HostOptions) -> Result<OpenDevice> {
    // Locked first: later openers see the lock.
    let opened = open_device(path, options)?;
    let OpenDevice::Host(device) = &opened else {
        return Ok(opened);
    };
    let wanted = match options.access {
        HostAccess::ReadWrite => LockAccess::Write,
        HostAccess::ReadOnly => LockAccess::Read,
    };
    // QEMU's programs check no other locks.
    lock(device, wanted).map_err(|error| error.at(path))?;
    check_is_free(path, options.access)?;
    Ok(opened)
}

/// Refuses a file in use by programs that ignore locks. The caller has locked it. Other users of an
/// export are not visible.
///
/// # Errors
/// `InUse` with the user.
pub fn check_is_free(path: &Path, access: HostAccess) -> Result<()> {
    match access {
        _ if is_export(path) => Ok(()),
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

/// The type after `fuse.` of a mount that shows the disk in an image as a file.
pub const IMAGE_SUBTYPE: &str = "extant-image";

/// The visible mounts of an image or disk by `extant mount` and `extant image mount`. A custom
/// `fsname` hides one.
pub fn mounts_of(image: &Path) -> impl Iterator<Item = Mount> {
    let wanted = Identity::of(image).ok();
    let export = is_export(image).then(|| image.to_path_buf());
    let ours = Mount::all().unwrap_or_default().into_iter();
    ours.filter(move |mount| {
        let is_same = match &export {
            Some(uri) => mount.source == *uri,
            None => wanted.is_some() && Identity::of(&mount.source).ok() == wanted,
        };
        is_same && mount.fs_type.starts_with("fuse.")
    })
}
