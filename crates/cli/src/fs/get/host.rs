//! The destination of `get`: directories that are held open, and files created in them before they
//! have their names.
//!
//! Nothing here follows a symbolic link below the destination. A file created but not named is
//! removed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use extant_ext4::{Attributes, FileType, Node, Timestamp};
use extant_hostfs::{Directory, Existing};
use extant_space::{Error, ErrorKind, Result};
use rustix::fs::{
    AtFlags, CWD, FileType as HostType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::fs_image::names;

/// Owner of the copied files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owners {
    /// Those of the image's.
    Kept,
    /// The user who copies.
    Ours,
}

/// A directory of the host, open.
pub(super) struct HostDirectory(Directory);

impl HostDirectory {
    /// The directory at `path`, which the user has named; `None` where there is nothing, or
    /// something else.
    pub(super) fn open_if_there(path: &Path) -> Result<Option<Self>> {
        match Directory::open(path) {
            Ok(directory) => Ok(Some(Self(directory))),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotDirectory => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// The directory that `path` is in, and its last name.
    pub(super) fn above(path: &Path) -> Result<(Self, Vec<u8>)> {
        let name = names::last(path.as_os_str().as_bytes());
        if matches!(name, b"" | b"." | b"..") {
            return Err(Error::new(ErrorKind::NotFound).at(path));
        }
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        Ok((Self(Directory::open(above)?), name.to_vec()))
    }

    pub(super) fn try_clone(&self) -> Result<Self> {
        self.0.again().map(Self)
    }

    /// The path of a name in it.
    pub(super) fn place(&self, name: &[u8]) -> PathBuf {
        self.0.path().join(OsStr::from_bytes(name))
    }

    /// A directory in it, made if it is missing.
    pub(super) fn make_directory(&self, name: &[u8]) -> Result<Self> {
        self.0.make_child(OsStr::from_bytes(name)).map(Self)
    }

    /// Makes it as the directory `node` is; the names of attributes that were left out.
    pub(super) fn describe(&self, node: &Node, owners: Owners) -> Result<Vec<String>> {
        describe(&self.0, self.0.path(), node, owners)
    }

    /// An empty file without its name.
    pub(super) fn new_file(&self) -> Result<NewFile<'_>> {
        let (name, file) = self.with_new_name(|name| self.0.new_file(name))?;
        Ok(NewFile {
            file,
            made: Made {
                directory: self,
                name: Some(name),
            },
        })
    }

    /// A symbolic link to `target`, or another inode without data of the type of `found`, before it
    /// has its name.
    pub(super) fn new_special(
        &self,
        found: &Attributes,
        target: Option<&[u8]>,
    ) -> Result<Made<'_>> {
        let device = found
            .device
            .map_or(0, |device| rustix::fs::makedev(device.major, device.minor));
        let kind = match found.file_type {
            FileType::CharacterDevice => HostType::CharacterDevice,
            FileType::BlockDevice => HostType::BlockDevice,
            FileType::Socket => HostType::Socket,
            _ => HostType::Fifo,
        };
        let (name, ()) = self.with_new_name(|name| {
            let made = match target {
                Some(target) => rustix::fs::symlinkat(target, &self.0, name),
                None => rustix::fs::mknodat(&self.0, name, kind, Mode::RUSR, device),
            };
            made.map_err(|errno| failed(errno, self.0.path()))
        })?;
        Ok(Made {
            directory: self,
            name: Some(name),
        })
    }

    /// One more name for the file at `first`.
    pub(super) fn hard_link(&self, first: &Path, name: &[u8], no_clobber: bool) -> Result<()> {
        let (temporary, ()) = self.with_new_name(|name| {
            rustix::fs::linkat(CWD, first, &self.0, name, AtFlags::empty())
                .map_err(|errno| failed(errno, self.0.path()))
        })?;
        let made = Made {
            directory: self,
            name: Some(temporary),
        };
        made.name(name, no_clobber)
    }

    fn with_new_name<T>(&self, mut make: impl FnMut(&str) -> Result<T>) -> Result<(String, T)> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let name = format!(".extant-partial-{}-{number}", std::process::id());
            match make(&name) {
                Ok(made) => return Ok((name, made)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.about(self.0.path())),
            }
        }
    }
}

/// An inode under a temporary name; removed unless it gets one.
pub(super) struct Made<'d> {
    directory: &'d HostDirectory,
    name: Option<String>,
}

impl Made<'_> {
    /// Gives it its name, replacing an existing file of that name.
    pub(super) fn name(mut self, name: &[u8], no_clobber: bool) -> Result<()> {
        let temporary = self.name.take().expect("named once");
        let directory = &self.directory.0;
        let existing = if no_clobber {
            Existing::Refuse
        } else {
            Existing::Replace
        };
        let done = directory.rename(&temporary, directory, OsStr::from_bytes(name), existing);
        // Even if the rename had no effect because both names belong to one file.
        let _ = directory.remove(&temporary);
        done
    }

    /// Makes it as `node` is, which has no data; the names of attributes that were left out.
    pub(super) fn describe(&self, node: &Node, owners: Owners) -> Result<Vec<String>> {
        let found = &node.attributes();
        let directory = &self.directory.0;
        let name = self.name.as_deref().unwrap_or_default();
        // Not opened: a fifo blocks until its other end is opened, and opening a device may have
        // effects.
        let path = directory.path_to(name);
        let fail = |errno| failed(errno, self.directory.0.path());
        if owners == Owners::Kept {
            let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            rustix::fs::chownat(directory, name, Some(uid), Some(gid), flags).map_err(fail)?;
        }
        let left_out = copy_xattrs(node, owners, self.directory.0.path(), |name, value| {
            rustix::fs::lsetxattr(&path, name, value, XattrFlags::empty())
        })?;
        if found.file_type != FileType::SymbolicLink {
            let mode = permissions(found, owners);
            rustix::fs::chmodat(directory, name, mode, AtFlags::empty()).map_err(fail)?;
        }
        rustix::fs::utimensat(directory, name, &times(found), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(fail)?;
        Ok(left_out)
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        if let Some(name) = self.name.take() {
            // The first error is reported.
            let _ = self.directory.0.remove(&name);
        }
    }
}

/// A file without its name.
pub(super) struct NewFile<'d> {
    file: File,
    made: Made<'d>,
}

impl NewFile<'_> {
    pub(super) fn resize(&self, size: u64) -> Result<()> {
        self.file.set_len(size).map_err(|error| self.failed(error))
    }

    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.failed(error))
    }

    /// Makes it as the file `node` is; the names of attributes that were left out.
    pub(super) fn describe(&self, node: &Node, owners: Owners) -> Result<Vec<String>> {
        describe(&self.file, self.made.directory.0.path(), node, owners)
    }

    pub(super) fn name(self, name: &[u8], no_clobber: bool) -> Result<()> {
        self.made.name(name, no_clobber)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        Error::from(error)
            .during("write")
            .at(self.made.directory.0.path())
    }
}

fn describe(fd: impl AsFd, path: &Path, node: &Node, owners: Owners) -> Result<Vec<String>> {
    let found = node.attributes();
    let fail = |errno| failed(errno, path);
    if owners == Owners::Kept {
        let (uid, gid) = (Uid::from_raw(found.uid), Gid::from_raw(found.gid));
        rustix::fs::fchown(&fd, Some(uid), Some(gid)).map_err(fail)?;
    }
    let left_out = copy_xattrs(node, owners, path, |name, value| {
        rustix::fs::fsetxattr(&fd, name, value, XattrFlags::empty())
    })?;
    rustix::fs::fchmod(&fd, permissions(&found, owners)).map_err(fail)?;
    rustix::fs::futimens(&fd, &times(&found)).map_err(fail)?;
    Ok(left_out)
}

/// The names of those that were left out.
fn copy_xattrs(
    node: &Node,
    owners: Owners,
    path: &Path,
    set: impl Fn(&[u8], &[u8]) -> rustix::io::Result<()>,
) -> Result<Vec<String>> {
    let mut left_out = Vec::new();
    for name in node.xattr_names()? {
        if owners == Owners::Ours && is_of_the_owner(&name) {
            left_out.push(names::escaped(&name));
            continue;
        }
        match set(&name, &node.xattr(&name)?) {
            Ok(()) => {}
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP | Errno::INVAL) => {
                left_out.push(names::escaped(&name));
            }
            Err(errno) => return Err(failed(errno, path)),
        }
    }
    Ok(left_out)
}

/// Capabilities, labels and what else only the system's administrator sets: for the system that the
/// image is of.
fn is_of_the_owner(name: &[u8]) -> bool {
    name.starts_with(b"security.") || name.starts_with(b"trusted.")
}

/// Set-ID bits are for the owner they were given by.
fn permissions(found: &Attributes, owners: Owners) -> Mode {
    let kept = match owners {
        Owners::Kept => 0o7777,
        Owners::Ours => 0o1777,
    };
    Mode::from_raw_mode((found.permissions & kept).into())
}

fn times(found: &Attributes) -> Timestamps {
    let time = |time: Timestamp| Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    };
    Timestamps {
        last_access: time(found.accessed),
        last_modification: time(found.modified),
    }
}

fn failed(errno: Errno, path: &Path) -> Error {
    let error: std::io::Error = errno.into();
    Error::from(error).at(path)
}
