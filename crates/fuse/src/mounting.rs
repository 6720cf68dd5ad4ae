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
use std::{fs, io};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::mounts;
use parking_lot::Mutex;
use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getgid, getuid};

use crate::channel::open_device;
use crate::operations::RootKind;
use crate::options::{AccessTimes, AllowOther, AutoUnmount, MountOptions};
use watcher::Watcher;

/// A mount point and the mount that was attached to it.
#[derive(Debug)]
pub(crate) struct Mounted {
    directory: PathBuf,
    device: u64,
    /// The connection has ended, and the device number may be reused.
    is_over: AtomicBool,
    watcher: Mutex<Option<Watcher>>,
}

/// How an unmount treats files in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnmountMode {
    /// It fails while a file is in use.
    Refuse,
    /// The mount point is detached at once; open files remain usable.
    Detach,
    /// As above, and every waiter for a reply gets an error.
    Abort,
}

/// Mounts at `directory`, which has the type of the root.
///
/// # Errors
/// `NotFound`, `NotDirectory`, `WrongType`; `PermissionDenied`; `Unsupported` without FUSE or
/// `fusermount3`; those of mount(2) and `fusermount3`.
pub(crate) fn mount(
    directory: &Path,
    root: RootKind,
    options: &MountOptions,
) -> Result<(OwnedFd, Mounted)> {
    let directory = mount_point(directory, root)?;
    let watcher = match options.auto_unmount {
        AutoUnmount::On => Some(Watcher::start(&directory)?),
        AutoUnmount::Off => None,
    };
    let connection = match mount_directly(&directory, options) {
        Err(error) if is_permission_error(&error) => helper::mount(&directory, options),
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
            let _ = unmount(&directory, UnmountMode::Detach);
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

/// Unmounts the mount at `directory`, an absolute path, whichever process serves it.
pub(crate) fn unmount(directory: &Path, mode: UnmountMode) -> Result<()> {
    let flags = match mode {
        UnmountMode::Refuse => UnmountFlags::empty(),
        UnmountMode::Detach => UnmountFlags::DETACH,
        UnmountMode::Abort => UnmountFlags::DETACH | UnmountFlags::FORCE,
    };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        // It is no longer a mount: another process was faster.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::PERM) => helper::unmount(directory, mode),
        Err(errno) => Err(failed("unmount", errno, directory)),
    }
}

/// Changes the options of every file system of the mount at `directory`, an absolute path.
pub(crate) fn remount(directory: &Path, options: &MountOptions) -> Result<()> {
    rustix::mount::mount_remount(directory, kernel_flags(options), c"")
        .map_err(|errno| failed("remount", errno, directory))
}

impl Mounted {
    /// The mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Unmounts, if it is still mounted.
    ///
    /// # Errors
    /// `InUse` while a file is in use; `PermissionDenied`.
    pub fn unmount(&self, mode: UnmountMode) -> Result<()> {
        let directory = &self.directory;
        if self.is_over.load(Ordering::Acquire) || !self.is_mounted()? {
            return Ok(());
        }
        if mode == UnmountMode::Abort {
            self.abort();
        }
        unmount(directory, mode)
    }

    /// The connection has ended: removes the rest of the mount, which answers every request with an
    /// error, and ends the watcher.
    pub fn end(&self) {
        let is_dead = || statfs(&self.directory).is_err_and(is_disconnected);
        if self.is_mounted().is_ok_and(|is_mounted| is_mounted) && is_dead() {
            let _ = self.unmount(UnmountMode::Detach);
        }
        self.is_over.store(true, Ordering::Release);
        drop(self.watcher.lock().take());
    }

    fn is_mounted(&self) -> Result<bool> {
        let seen = seen_at(&self.directory)?;
        Ok(seen.is_some_and(|mount| mount.device == self.device))
    }

    /// Aborts the connection, which ends all waits for replies. The owner of the mount may do that
    /// if the control file system of FUSE is mounted.
    fn abort(&self) {
        let minor = rustix::fs::minor(self.device);
        let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
        let _ = fs::write(abort, "1");
    }
}

/// The path of the mount point in the list of mounts.
fn mount_point(directory: &Path, root: RootKind) -> Result<PathBuf> {
    let resolve = || -> io::Result<_> {
        let path = fs::canonicalize(directory)?;
        let metadata = fs::metadata(&path)?;
        Ok((path, metadata))
    };
    let (path, metadata) = resolve().map_err(|error| {
        let is_dead = Errno::from_io_error(&error).is_some_and(is_disconnected);
        let error = Error::from(error).at(directory).during("mount");
        if is_dead {
            error.advice("the server of a mount there has ended; unmount it first")
        } else {
            error
        }
    })?;
    let error = match root {
        RootKind::Directory if metadata.is_dir() => return Ok(path),
        RootKind::File if metadata.is_file() => return Ok(path),
        RootKind::Directory => Error::new(ErrorKind::NotDirectory),
        RootKind::File => {
            Error::new(ErrorKind::WrongType).detail("the mount point is no regular file")
        }
    };
    Err(error.at(directory).during("mount"))
}

/// Whether a user of a mount gets this error because its server has ended, or is ending.
fn is_disconnected(errno: Errno) -> bool {
    [Errno::NOTCONN, Errno::CONNABORTED].contains(&errno)
}

/// Whether the error is one of missing privileges, which `fusermount3` has.
fn is_permission_error(error: &Error) -> bool {
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
