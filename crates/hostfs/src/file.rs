//! A file of the host, open, with its path for error messages.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_space::{ByteRange, Error, ErrorKind, Result};
use extant_sys::direct;
use extant_sys::extents::MapSource;
use extant_sys::mounted;
use rustix::fs::{AtFlags, CWD, FallocateFlags, IFlags, OFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::directory::path_of_open;

/// Access for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading data and the extent map.
    Read,
    /// Reading and writing.
    ReadWrite,
    /// Reading and writing, made empty when there is none.
    ReadWriteCreate,
}

/// A regular file (or block device) of the host.
#[derive(Debug)]
pub struct HostFile {
    file: File,
    path: PathBuf,
    map_source: MapSource,
    is_disk: bool,
}

impl HostFile {
    /// Opens `path` for reading.
    pub fn open_read(path: &Path) -> Result<Self> {
        Self::open(path, Access::Read)
    }

    /// Opens `path`, which must be a regular file or a block device.
    ///
    /// Never waits for a fifo's other end.
    pub fn open(path: &Path, access: Access) -> Result<Self> {
        let open = |flags| {
            OpenOptions::new()
                .read(true)
                .write(access != Access::Read)
                .create(access == Access::ReadWriteCreate)
                .truncate(false)
                .custom_flags(flags)
                .mode(0o666)
                .open(path)
        };
        let file = open(libc::O_NONBLOCK)
            .or_else(|error| match error.raw_os_error() {
                // Under another process's lease: waits until the holder releases it.
                Some(libc::EWOULDBLOCK) => open(0),
                _ => Err(error),
            })
            .map_err(|source| explain_open(source, path))?;
        let kind = file
            .metadata()
            .map_err(|source| Error::from(source).at(path))?
            .file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(wrong_type(path));
        }
        // It was for the open alone: io_uring answers EAGAIN on such a descriptor.
        direct::set_status_flags(&file, OFlags::NONBLOCK, false)
            .map_err(|errno| Error::from(io::Error::from(errno)).at(path))?;
        Self::from_file(file, path)
    }

    /// Opens the file that is open as `file` again; `path` is for messages.
    pub(crate) fn open_again(file: &File, path: &Path, access: Access) -> Result<Self> {
        let again = Self::open(&path_of_open(file), access).map_err(|error| error.at(path))?;
        Ok(Self {
            path: path.to_path_buf(),
            ..again
        })
    }

    /// Takes over an open file, which must be a regular file or a block device; `path` is for
    /// messages.
    pub fn from_file(file: File, path: &Path) -> Result<Self> {
        let map_source =
            MapSource::of(&file).map_err(|source| Error::from(source).during("map").at(path))?;
        let metadata = file
            .metadata()
            .map_err(|source| Error::from(source).at(path))?;
        Ok(Self {
            file,
            path: path.to_path_buf(),
            map_source,
            is_disk: metadata.file_type().is_block_device(),
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The interface that extent maps are read through.
    pub fn map_source(&self) -> MapSource {
        self.map_source
    }

    /// Runs `fallocate(2)`. On our own mounts, modes that the kernel does not pass on use control
    /// calls.
    pub(crate) fn fallocate_bits(&self, bits: u32, range: ByteRange) -> io::Result<()> {
        let flags = FallocateFlags::from_bits_retain(bits);
        match rustix::fs::fallocate(&self.file, flags, range.start(), range.len()) {
            Err(Errno::OPNOTSUPP) if self.map_source == MapSource::ExtantMount => {
                mounted::fallocate(&self.file, bits, range)
            }
            done => Ok(done?),
        }
    }

    /// glibc's `posix_fallocate(3)`: writes where the file system cannot allocate.
    pub fn posix_fallocate(&self, range: ByteRange) -> Result<()> {
        crate::sys::calls::posix_fallocate(&self.file, range.start(), range.len())
            .map_err(|source| self.error(source).during("fallocate").in_range(range))
    }

    /// It is a block device.
    pub(crate) fn is_disk(&self) -> bool {
        self.is_disk
    }

    /// The open file.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    pub(crate) fn metadata(&self) -> Result<std::fs::Metadata> {
        self.file.metadata().map_err(|source| self.error(source))
    }

    /// Attributes as `chattr(1)` sets them; empty where the file system has none.
    pub(crate) fn attributes(&self) -> IFlags {
        rustix::fs::ioctl_getflags(&self.file).unwrap_or(IFlags::empty())
    }

    /// Turns copy-on-write off (`chattr +C`), possible only on an empty file; false where the file
    /// system has no such thing.
    pub(crate) fn accepts_nocow(&self) -> bool {
        let wanted = self.attributes() | IFlags::NOCOW;
        rustix::fs::ioctl_setflags(&self.file, wanted).is_ok()
            && self.attributes().contains(IFlags::NOCOW)
    }

    /// An error about this file.
    pub(crate) fn error(&self, source: impl Into<io::Error>) -> Error {
        Error::from(source.into()).at(&self.path)
    }
}

impl AsFd for HostFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

pub(crate) fn wrong_type(path: &Path) -> Error {
    Error::new(ErrorKind::WrongType).at(path).detail(
        "not a regular file (a directory, fifo, socket or device stands where a file is expected)",
    )
}

/// The attribute of the file forbids changes; else something other than the file does.
fn is_fixed(path: &Path) -> bool {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE);
    let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
    found.is_ok_and(|found| found.stx_attributes.intersects(fixed))
}

fn explain_open(source: io::Error, path: &Path) -> Error {
    let errno = source.raw_os_error();
    let error = Error::from(source).at(path);
    match errno {
        Some(libc::EISDIR | libc::ENXIO) => wrong_type(path),
        Some(libc::ENAMETOOLONG) => error.with_kind(ErrorKind::InvalidArgument),
        Some(libc::ETXTBSY) => error.detail(
            "the file is in use as a swap file or a running program; nothing may write to it",
        ),
        Some(libc::EPERM) if is_fixed(path) => error
            .with_kind(ErrorKind::Immutable)
            .advice("see lsattr(1); chattr -i -a lifts it"),
        _ => error,
    }
}
