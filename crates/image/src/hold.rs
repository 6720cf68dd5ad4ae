//! Opening images, disks and exports of NBD servers; exclusive access; detection of other users.
//!
//! A path that is an NBD URI (`nbd+unix:///NAME?socket=PATH`) names an export, and one in QEMU's
//! syntax for Ceph (`rbd:POOL/IMAGE`) an image of a cluster. Neither is a file of this host.
//!
//! The owner has claimed the disk, or holds our lock and QEMU's locks on the file. Users that
//! respect neither (loop devices, mounts, other programs) are searched for.
//!
//! NBD has no locks: a client that writes excludes others of this host ([`NbdDevice`]). To exclude
//! other hosts is the duty of the server or the caller. RBD excludes other clients of the cluster
//! ([`RbdDevice`]).

mod busy;

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, HostAccess, HostCache, HostDevice, HostOptions};
use extant_nbd::{NbdAccess, NbdDevice, NbdOptions, NbdUri};
use extant_rbd::{RbdAccess, RbdCache, RbdDevice, RbdName};
use extant_space::{Error, ErrorKind, Result};
use extant_sys::identity::Identity;
use extant_sys::mounts::Mount;

use crate::lock::{LockAccess, lock};
use crate::store::Store;

pub use busy::{MountPoint, mounted_at};

/// An open image, disk or export.
pub enum OpenDevice {
    /// A file or disk of this host.
    Host(HostDevice),
    /// An export of an NBD server.
    Nbd(NbdDevice),
    /// An image of a Ceph cluster.
    Rbd(RbdDevice),
}

impl OpenDevice {
    /// The device.
    pub fn into_device(self) -> Arc<dyn Device> {
        match self {
            Self::Host(device) => Arc::new(device),
            Self::Nbd(device) => Arc::new(device),
            Self::Rbd(device) => Arc::new(device),
        }
    }
}

/// Opens an image, disk or export, with only the exclusion of the device itself.
///
/// # Errors
/// Those of [`HostDevice::open`], [`NbdDevice::connect`] and [`RbdDevice::open`]; `InUse` names our
/// mount if there is one.
pub fn open_device(path: &Path, options: &HostOptions) -> Result<OpenDevice> {
    let is_read_only = options.access == HostAccess::ReadOnly;
    match remote(path) {
        Some(Remote::Nbd(uri)) => {
            let access = if is_read_only {
                NbdAccess::ReadOnly
            } else {
                NbdAccess::ReadWrite
            };
            connect(uri, access).map(OpenDevice::Nbd)
        }
        Some(Remote::Rbd(name)) => {
            let access = if is_read_only {
                RbdAccess::ReadOnly
            } else {
                RbdAccess::ReadWrite
            };
            let name: RbdName = name.parse()?;
            let mut cluster = name.cluster();
            if options.cache == HostCache::Direct {
                cluster.cache = RbdCache::Off;
            }
            RbdDevice::open_by(&name, access, &cluster).map(OpenDevice::Rbd)
        }
        None => HostDevice::open(path, options)
            .map(OpenDevice::Host)
            .map_err(|error| busy::explain(error, path)),
    }
}

/// The text of a name that is none of this host, valid or not.
enum Remote<'p> {
    Nbd(&'p str),
    Rbd(&'p str),
}

fn remote(path: &Path) -> Option<Remote<'_>> {
    match path.to_str()? {
        text if NbdUri::is_uri(text) => Some(Remote::Nbd(text)),
        text if RbdName::is_name(text) => Some(Remote::Rbd(text)),
        _ => None,
    }
}

fn connect(uri: &str, access: NbdAccess) -> Result<NbdDevice> {
    let options = NbdOptions {
        access,
        ..NbdOptions::default()
    };
    NbdDevice::connect(&uri.parse::<NbdUri>()?, options)
}

/// Whether `path` is the URI of an export, or the name of an image of a cluster.
pub fn is_export(path: &Path) -> bool {
    remote(path).is_some()
}

/// Refuses an NBD export and an image of a cluster where only a file of the host has a meaning.
///
/// # Errors
/// `Unsupported`.
pub fn refuse_export(path: &Path) -> Result<()> {
    if !is_export(path) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported)
        .at(path)
        .detail("an NBD export or RBD image is not a file of this host"))
}

/// The image of a cluster that `path` names; `None` for other paths.
///
/// # Errors
/// `InvalidArgument` for an invalid name.
pub fn cluster_image(path: &Path) -> Result<Option<RbdName>> {
    match remote(path) {
        Some(Remote::Rbd(text)) => text.parse().map(Some),
        _ => Ok(None),
    }
}

/// Whether a process of this host changes the export that `path` is the URI of, or any client the
/// image that it names; `None` for other paths.
pub fn is_export_written(path: &Path) -> Option<bool> {
    Some(match remote(path)? {
        Remote::Nbd(uri) => uri.parse().is_ok_and(|uri| NbdDevice::has_writer(&uri)),
        Remote::Rbd(name) => name.parse::<RbdName>().is_ok_and(|name| {
            let opened = RbdDevice::open(&name, RbdAccess::ReadOnly);
            opened.is_err_and(|error| error.kind() == ErrorKind::InUse)
        }),
    })
}

/// Opens, for reading and whatever others do meanwhile, the export or image that `path` names;
/// `None` for other paths.
pub fn open_export(path: &Path) -> Option<Result<Arc<dyn Store>>> {
    Some(match remote(path)? {
        Remote::Nbd(uri) => connect(uri, NbdAccess::ReadOnly).map(|export| Arc::new(export) as _),
        Remote::Rbd(name) => name
            .parse()
            .and_then(|name| RbdDevice::open(&name, RbdAccess::Shared))
            .map(|image| Arc::new(image) as _),
    })
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
            let who = extant_hostfs::describe_holders_or_other(path);
            let detail = format!("a lease on it is held by {who}");
            return Err(place(Error::new(ErrorKind::InUse).detail(detail)));
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

/// Refuses a copy of a file onto itself.
///
/// # Errors
/// `InvalidArgument`.
pub fn refuse_same_file(source: &Path, target: &Path) -> Result<()> {
    if is_same_file(source, target) {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .at(target)
            .detail("the source and the new image are the same file"));
    }
    Ok(())
}

/// Whether both are names of one file.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    match (Identity::of(one), Identity::of(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
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
