//! Attaching a connection to a mount point, and detaching it.
//!
//! A privileged user mounts with mount(2), others with the setuid helper `fusermount3`, which also
//! opens the device.
//!
//! A mount is identified by its device number, which is unique while it exists; a mount point on
//! which something else has been mounted since is not unmounted. Nothing here accesses files below
//! a live mount, because that could wait for a reply of this process.

mod helper;
mod watcher;

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounts;
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getgid, getuid};

use crate::channel::open_device;
use crate::options::{AccessTimes, AllowOther, AutoUnmount, MountOptions};
use watcher::Watcher;

/// A place at which something was mounted.
#[derive(Debug)]
pub(crate) struct Mounted {
    directory: PathBuf,
    device: u64,
    /// The number of the device may be another's by now.
    is_over: AtomicBool,
    watcher: Mutex<Option<Watcher>>,
}

/// What may be in the way of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It fails while a file is in use.
    WhenUnused,
    /// The place is free at once; files that are open stay usable.
    Detach,
    /// As above, and every waiter for a reply gets an error.
    Cut,
}

/// Mounts at `directory`.
///
/// # Errors
/// `NotFound`, `NotDirectory`; `PermissionDenied`; `Unsupported` without FUSE or `fusermount3`;
/// what either of them says.
pub(crate) fn mount(directory: &Path, options: &MountOptions) -> Result<(OwnedFd, Mounted)> {
    let directory = place(directory)?;
    let watcher = match options.auto_unmount {
        AutoUnmount::On => Some(Watcher::start(&directory)?),
        AutoUnmount::Off => None,
    };
    let connection = match mount_directly(&directory, options) {
        Err(error) if is_refused(&error) => helper::mount(&directory, options),
        mounted => mounted,
    };
    let connection = connection.map_err(|error| error.at(&directory).during("mount"))?;
    match device_at(&directory) {
        Ok(device) => {
            let mounted = Mounted {
                directory,
                device,
                is_over: AtomicBool::new(false),
                watcher: Mutex::new(watcher),
            };
            Ok((connection, mounted))
        }
        Err(error) => {
            drop(connection);
            let _ = unmount(&directory, Manner::Detach);
            Err(error.during("mount"))
        }
    }
}

fn seen_at(directory: &Path) -> Result<Option<mounts::Mount>> {
    mounts::Mount::at(directory).map_err(|error| Error::from(error).at(mounts::TABLE))
}

fn device_at(directory: &Path) -> Result<u64> {
    let seen = seen_at(directory)?.ok_or_else(|| {
        Error::new(ErrorKind::Io)
            .at(directory)
            .detail("it was unmounted at once")
    })?;
    Ok(seen.device)
}

/// Unmounts the mount at `directory`, given by its full name, whichever process serves it.
pub(crate) fn unmount(directory: &Path, manner: Manner) -> Result<()> {
    let flags = match manner {
        Manner::WhenUnused => UnmountFlags::empty(),
        Manner::Detach => UnmountFlags::DETACH,
        Manner::Cut => UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        // It is no longer a mount: another process was faster.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::PERM) => helper::unmount(directory, manner),
        Err(errno) => Err(failed("unmount", errno, directory)),
    }
}

/// Changes the options of every mount at `directory`, by its full name.
pub(crate) fn remount(directory: &Path, options: &MountOptions) -> Result<()> {
    rustix::mount::mount_remount(directory, kernel_flags(options), c"")
        .map_err(|errno| failed("remount", errno, directory))
}

impl Mounted {
    /// Where it is or was.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts, if it is still mounted.
    ///
    /// # Errors
    /// `InUse` while a file is in use; `PermissionDenied`.
    pub fn unmount(&self, manner: Manner) -> Result<()> {
        let directory = &self.directory;
        if self.is_over.load(Ordering::Acquire) || !self.is_there()? {
            return Ok(());
        }
        if manner == Manner::Cut {
            self.cut();
        }
        unmount(directory, manner)
    }

    /// The connection has ended: removes the rest of the mount, which answers every request with an
    /// error, and ends the watcher.
    pub fn end(&self) {
        let is_dead = || statfs(&self.directory).is_err_and(is_of_the_dead);
        if self.is_there().is_ok_and(|is_there| is_there) && is_dead() {
            let _ = self.unmount(Manner::Detach);
        }
        self.is_over.store(true, Ordering::Release);
        let watcher = self.watcher.lock();
        drop(watcher.unwrap_or_else(PoisonError::into_inner).take());
    }

    fn is_there(&self) -> Result<bool> {
        let seen = seen_at(&self.directory)?;
        Ok(seen.is_some_and(|mount| mount.device == self.device))
    }

    /// Ends the connection for all who wait. The owner of a mount may, where the control files of
    /// FUSE are.
    fn cut(&self) {
        let minor = rustix::fs::minor(self.device);
        let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
        let _ = fs::write(abort, "1");
    }
}

/// The directory by the name that the list of mounts has for it.
fn place(directory: &Path) -> Result<PathBuf> {
    let look = || -> io::Result<_> {
        let path = fs::canonicalize(directory)?;
        let metadata = fs::metadata(&path)?;
        Ok((path, metadata))
    };
    let (path, metadata) = look().map_err(|error| {
        let is_dead = Errno::from_io_error(&error).is_some_and(is_of_the_dead);
        let error = Error::from(error).at(directory).during("mount");
        if is_dead {
            error.advice("the server of a mount there is gone; unmount it first")
        } else {
            error
        }
    })?;
    if metadata.is_dir() {
        Ok(path)
    } else {
        Err(Error::new(ErrorKind::NotDirectory)
            .at(directory)
            .during("mount"))
    }
}

/// The errors that a user of a mount gets when its server has ended, or is ending.
fn is_of_the_dead(errno: Errno) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED].contains(&errno)
}

/// Whether another user may be permitted to do it.
fn is_refused(error: &Error) -> bool {
    let refusals = [Errno::PERM, Errno::ACCESS].map(Errno::raw_os_error);
    error
        .os_errno()
        .is_some_and(|errno| refusals.contains(&errno))
}

fn mount_directly(directory: &Path, options: &MountOptions) -> Result<OwnedFd> {
    let connection = open_device()?;
    let mode = fs::metadata(directory).map_or(0o40000, |metadata| metadata.mode());
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        connection.as_raw_fd(),
        mode & 0o170000,
        getuid().as_raw(),
        getgid().as_raw(),
    );
    if options.allow_other == AllowOther::On {
        data += ",allow_other";
    }
    if let Some(max) = options.read_length_max {
        data += &format!(",max_read={max}");
    }
    let source = options.source.as_ref().unwrap_or(&options.subtype);
    let kind = format!("fuse.{}", options.subtype);
    let data = CString::new(data).expect("numbers and words hold no zero byte");
    let flags = kernel_flags(options);
    rustix::mount::mount(source, directory, kind, flags, data.as_c_str())
        .map_err(|errno| Error::from_errno(errno.raw_os_error()))?;
    Ok(connection)
}

fn kernel_flags(options: &MountOptions) -> MountFlags {
    let times = match options.access_times {
        AccessTimes::Relative => MountFlags::RELATIME,
        AccessTimes::FilesOnly => MountFlags::RELATIME | MountFlags::NODIRATIME,
        AccessTimes::Strict => MountFlags::STRICTATIME,
        AccessTimes::Never => MountFlags::NOATIME,
    };
    options.flags | times
}

fn failed(what: &'static str, errno: Errno, directory: &Path) -> Error {
    Error::from_errno(errno.raw_os_error())
        .at(directory)
        .during(what)
}
