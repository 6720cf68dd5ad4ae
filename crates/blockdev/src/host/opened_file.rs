//! Opening a file or disk: its type, and the lock against other users.
//!
//! A disk that is to be written is claimed with `O_EXCL`, which mounts, RAID and other claims
//! refuse; a file is locked with `flock(2)`, shared by readers, which only other users of that lock
//! respect. Both last as long as the descriptor and its copies.

use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::direct::{self, DirectIo};
use extant_sys::disk;
use rustix::fs::OFlags;

use super::options::{HostAccess, HostCache, HostOptions};

/// Timeout for another user of the file: a process just started holds the files of its parent for a
/// moment, and a ring those it has just released.
const CLAIM_TIMEOUT: Duration = Duration::from_millis(500);

/// The kind of file below a host device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    /// A regular file.
    File,
    /// A block device.
    Disk,
}

/// A file or disk that was opened.
pub(super) struct OpenedFile {
    pub(super) file: File,
    pub(super) kind: FileKind,
    pub(super) metadata: Metadata,
    /// Alignment of direct I/O; `None` through the page cache.
    pub(super) direct: Option<DirectIo>,
}

impl OpenedFile {
    pub(super) fn open(path: &Path, options: &HostOptions) -> Result<Self> {
        let deadline = Instant::now() + CLAIM_TIMEOUT;
        loop {
            match Self::open_now(path, options) {
                Err(error) if error.kind() == ErrorKind::InUse && Instant::now() < deadline => {
                    thread::sleep(CLAIM_TIMEOUT / 50);
                }
                result => return result,
            }
        }
    }

    fn open_now(path: &Path, options: &HostOptions) -> Result<Self> {
        let error = |source: io::Error| Error::from(source).during("open").at(path);
        let metadata = std::fs::metadata(path).map_err(error)?;
        let claim = match options.access {
            HostAccess::ReadWrite if metadata.file_type().is_block_device() => libc::O_EXCL,
            _ => 0,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(options.access == HostAccess::ReadWrite)
            // The kernel does not wait: not for the other end of a fifo, not for the owner of a
            // lease.
            .custom_flags(libc::O_NONBLOCK | claim)
            .open(path)
            .map_err(|source| explain(source, path, &metadata))?;
        let metadata = file.metadata().map_err(error)?;
        let kind = match metadata.file_type() {
            kind if kind.is_file() => FileKind::File,
            kind if kind.is_block_device() => FileKind::Disk,
            _ => {
                return Err(Error::new(ErrorKind::WrongType)
                    .detail("neither a regular file nor a block device")
                    .during("open")
                    .at(path));
            }
        };
        // It was for the open alone: io_uring answers EAGAIN on such a descriptor.
        direct::set_status_flags(&file, OFlags::NONBLOCK, false)
            .map_err(|errno| error(errno.into()))?;
        match kind {
            FileKind::File => lock(&file, path, options.access)?,
            // The open succeeded anyway; writes would not.
            FileKind::Disk
                if options.access == HostAccess::ReadWrite
                    && disk::is_read_only(metadata.rdev()) =>
            {
                return Err(Error::new(ErrorKind::ReadOnly)
                    .detail("the block device is read-only")
                    .during("open")
                    .at(path));
            }
            FileKind::Disk => {}
        }
        let direct = match options.cache {
            HostCache::Buffered => None,
            HostCache::Direct => Some(go_direct(&file, path)?),
        };
        Ok(Self {
            file,
            kind,
            metadata,
            direct,
        })
    }
}

fn go_direct(file: &File, path: &Path) -> Result<DirectIo> {
    let refused = || {
        Error::new(ErrorKind::Unsupported)
            .detail("no direct I/O here")
            .advice("open it through the page cache")
            .during("open")
            .at(path)
    };
    let direct = DirectIo::of(file).ok_or_else(refused)?;
    direct::set(file, true).map_err(|_| refused())?;
    Ok(direct)
}

fn lock(file: &File, path: &Path, access: HostAccess) -> Result<()> {
    let locked = match access {
        HostAccess::ReadWrite => file.try_lock(),
        HostAccess::ReadOnly => file.try_lock_shared(),
    };
    match locked {
        Err(TryLockError::WouldBlock) => Err(Error::new(ErrorKind::InUse)
            .detail("the file is in use as a device elsewhere, and locked")
            .during("open")
            .at(path)),
        // Some network file systems have no locks.
        _ => Ok(()),
    }
}

fn explain(source: io::Error, path: &Path, metadata: &Metadata) -> Error {
    let errno = source.raw_os_error();
    let error = Error::from(source).during("open").at(path);
    let is_disk = metadata.file_type().is_block_device();
    match errno {
        Some(libc::EBUSY) if is_disk => error
            .detail("the block device is in use: mounted, claimed, or open as a device elsewhere"),
        Some(libc::EWOULDBLOCK) => {
            error.detail("the file is in use: another process holds a lease on it")
        }
        Some(libc::EISDIR) => error.with_kind(ErrorKind::WrongType),
        Some(libc::ENAMETOOLONG) => error.with_kind(ErrorKind::InvalidArgument),
        _ => error,
    }
}
