//! An open directory in which names are single components.
//!
//! Everything below it is opened one component at a time, relative to the descriptor, without
//! following symbolic links. A user who can write to the directory cannot redirect its user outside
//! it.
//!
//! cap-std offers the same containment, but no rename without replacement, no unnamed files, no
//! `O_NONBLOCK` open, and no sync of a directory, which are most of what is needed here.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use extant_space::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

const OWNER_ONLY: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open directory and its path, which is for messages and for listing its entries.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Treatment of an existing file of the new name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Refuse with [`ErrorKind::AlreadyExists`].
    #[default]
    Refuse,
    /// Replace it, in one step, when the new file is complete; it must be a regular file.
    Replace,
}

impl Directory {
    /// Opens a directory that the user named: links in its path are followed.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(|errno| {
            let error = Error::from(io::Error::from(errno)).at(path);
            match errno {
                Errno::NOTDIR => error
                    .with_kind(ErrorKind::NotDirectory)
                    .detail("not a directory"),
                _ => error,
            }
        })?;
        Ok(Self {
            fd,
            path: path.to_path_buf(),
        })
    }

    /// Opens the directory `name` in it.
    pub fn child(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name.as_ref(), flags, Mode::empty())
            .map_err(|errno| self.explain_open(errno, name.as_ref()))?;
        Ok(Self {
            fd,
            path: self.path.join(name.as_ref()),
        })
    }

    /// Opens the directory `name` in it, made for its owner alone where there is none.
    pub fn make_child(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        match rustix::fs::mkdirat(&self.fd, name.as_ref(), Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.child(name.as_ref()),
            Err(errno) => Err(self.error(errno, name.as_ref()).during("make directory")),
        }
    }

    /// Its path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path to `name` in this directory, for calls that take no descriptor. It is valid while the
    /// directory is open, also after the directory was moved. Not for messages.
    pub fn path_to(&self, name: impl AsRef<OsStr>) -> PathBuf {
        path_of_open(&self.fd).join(name.as_ref())
    }

    /// A second descriptor of the same directory.
    pub fn again(&self) -> Result<Self> {
        let fd = self.fd.try_clone();
        Ok(Self {
            fd: fd.map_err(|source| Error::from(source).at(&self.path))?,
            path: self.path.clone(),
        })
    }

    /// Opens the regular file `name`.
    pub fn file(&self, name: impl AsRef<OsStr>, access: OFlags) -> Result<File> {
        let fd = self
            .open_name(name.as_ref(), access)
            .map_err(|errno| self.explain_open(errno, name.as_ref()))?;
        let stat = rustix::fs::fstat(&fd).map_err(|errno| self.error(errno, name.as_ref()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(self.wrong_type(name.as_ref()));
        }
        // It was for the open alone: io_uring answers EAGAIN on such a descriptor.
        let status = rustix::fs::fcntl_getfl(&fd)
            .and_then(|flags| rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK));
        status.map_err(|errno| self.error(errno, name.as_ref()))?;
        Ok(File::from(fd))
    }

    /// Opens the file `name` for a short look, with no more calls than that; `None` where it may
    /// not be read.
    pub fn peek(&self, name: impl AsRef<OsStr>) -> Option<OwnedFd> {
        self.open_name(name.as_ref(), OFlags::RDONLY).ok()
    }

    fn open_name(&self, name: &OsStr, access: OFlags) -> rustix::io::Result<OwnedFd> {
        let open = |flags| rustix::fs::openat(&self.fd, name, flags, OWNER_ONLY);
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A fifo would wait for its other end.
        match open(flags | OFlags::NONBLOCK) {
            // The process that materializes the file holds a lease, and releases it for this open.
            Err(Errno::WOULDBLOCK) => open(flags),
            opened => opened,
        }
    }

    /// Makes the file `name`, for its owner alone; it must not exist.
    pub fn new_file(&self, name: impl AsRef<OsStr>) -> Result<File> {
        self.file(name.as_ref(), OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    /// The file under `name`; `None`: none. Links are not followed.
    pub fn stat(&self, name: impl AsRef<OsStr>) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.error(errno, name.as_ref())),
        }
    }

    /// As [`stat`](Self::stat), for names as the directory lists them.
    pub fn stat_listed(&self, name: &CStr) -> Option<Stat> {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Visits the names in it, in no order.
    pub fn for_each_name(&self, mut visit: impl FnMut(&CStr)) -> Result<()> {
        let fail = |errno: Errno| {
            Error::from(io::Error::from(errno))
                .at(&self.path)
                .during("list")
        };
        for entry in Dir::read_from(&self.fd).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                visit(entry.file_name());
            }
        }
        Ok(())
    }

    /// Removes the file `name`; whether there was one.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> Result<bool> {
        match rustix::fs::unlinkat(&self.fd, name.as_ref(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(self.error(errno, name.as_ref()).during("remove")),
        }
    }

    /// Gives the file `from` the name `to` in `target`, in one step.
    pub fn rename(
        &self,
        from: impl AsRef<OsStr>,
        target: &Self,
        to: impl AsRef<OsStr>,
        existing: Existing,
    ) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let renamed = match existing {
            Existing::Replace => rustix::fs::renameat(&self.fd, from, &target.fd, to),
            Existing::Refuse => rename_no_replace(&self.fd, from, &target.fd, to),
        };
        renamed.map_err(|errno| target.error(errno, to).during("rename"))
    }

    /// Sets the permissions of the file `name`, which no other user can replace.
    pub fn set_mode(&self, name: impl AsRef<OsStr>, mode: u32) -> Result<()> {
        rustix::fs::chmodat(
            &self.fd,
            name.as_ref(),
            Mode::from_raw_mode(mode),
            AtFlags::empty(),
        )
        .map_err(|errno| self.error(errno, name.as_ref()).during("set mode"))
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> Result<()> {
        match rustix::fs::fsync(&self.fd) {
            // Some FUSE and network file systems cannot sync directories.
            Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => Err(Error::from(io::Error::from(errno))
                .at(&self.path)
                .during("sync")),
        }
    }

    /// Writes a small file whole or not at all, durable on return.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.write_named(name, bytes, File::sync_all)?;
        self.sync()
    }

    /// The same without a sync: other processes see all of it, but after a crash of the machine a
    /// new file may be missing or empty, and may have the name of an unfinished one, `NAME.new`.
    pub fn write_unsynced(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.write_named(name, bytes, |_| Ok(()))
    }

    fn write_named(
        &self,
        name: &str,
        bytes: &[u8],
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> Result<()> {
        let temporary = format!("{name}.new");
        self.remove(&temporary)?;
        let written = self.new_file(&temporary).and_then(|mut file| {
            file.write_all(bytes)
                .and_then(|()| sync(&file))
                .map_err(|source| Error::from(source).at(self.path.join(name)).during("write"))
        });
        let done = written.and_then(|()| self.rename(&temporary, self, name, Existing::Replace));
        if done.is_err() {
            // The first error is the one to report.
            let _ = self.remove(&temporary);
        }
        done
    }

    /// Reads a small file; `None` where there is none. More than `bytes_max` is an error.
    pub fn read(&self, name: impl AsRef<OsStr>, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let file = match self.file(name.as_ref(), OFlags::RDONLY) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        let read = file.take(bytes_max + 1).read_to_end(&mut bytes);
        read.map_err(|source| {
            Error::from(source)
                .at(self.path.join(name.as_ref()))
                .during("read")
        })?;
        if bytes.len() as u64 > bytes_max {
            let error = Error::new(ErrorKind::Corrupt).at(self.path.join(name.as_ref()));
            return Err(error.detail(format!("longer than {bytes_max} bytes")));
        }
        Ok(Some(bytes))
    }

    /// Numbers of its file system and of itself there.
    pub fn identity(&self) -> Result<(u64, u64)> {
        let stat = self.own_stat()?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Owner, mode, and whatever else the directory has.
    pub fn own_stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.fd)
            .map_err(|errno| Error::from(io::Error::from(errno)).at(&self.path))
    }

    fn error(&self, errno: Errno, name: &OsStr) -> Error {
        Error::from(io::Error::from(errno)).at(self.path.join(name))
    }

    fn wrong_type(&self, name: &OsStr) -> Error {
        Error::new(ErrorKind::WrongType).at(self.path.join(name))
    }

    fn explain_open(&self, errno: Errno, name: &OsStr) -> Error {
        match errno {
            Errno::LOOP => self
                .wrong_type(name)
                .detail("a symbolic link, which is not followed here"),
            Errno::ISDIR | Errno::NXIO => self.wrong_type(name),
            Errno::NOTDIR => self
                .error(errno, name.as_ref())
                .with_kind(ErrorKind::NotDirectory),
            _ => self.error(errno, name),
        }
    }
}

/// `renameat2` with `RENAME_NOREPLACE`, and its replacement on file systems without it.
fn rename_no_replace(
    directory: &OwnedFd,
    from: &OsStr,
    target: &OwnedFd,
    to: &OsStr,
) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(directory, from, target, to, RenameFlags::NOREPLACE) {
        // No such flag here: a hard link refuses an existing name as well.
        Err(Errno::INVAL | Errno::NOSYS) => {}
        done => return done,
    }
    match rustix::fs::linkat(directory, from, target, to, AtFlags::empty()) {
        Ok(()) => rustix::fs::unlinkat(directory, from, AtFlags::empty()),
        // No links either: nothing refuses an existing name, so it is checked just before.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => {
            match rustix::fs::statat(target, to, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => Err(Errno::EXIST),
                Err(Errno::NOENT) => rustix::fs::renameat(directory, from, target, to),
                Err(errno) => Err(errno),
            }
        }
        Err(errno) => Err(errno),
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The path of an open file or directory that no rename changes. Valid in this process while the
/// descriptor is open.
pub fn path_of_open(file: impl AsFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_leads_to_the_open_directory_when_its_name_leads_elsewhere() {
        let place = tempfile::tempdir().unwrap();
        let [own, moved, elsewhere] =
            ["own", "moved", "elsewhere"].map(|name| place.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&elsewhere).unwrap();
        let dir = Directory::open(&own).unwrap();
        std::fs::rename(&own, &moved).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &own).unwrap();
        std::fs::write(dir.path_to("a"), "a").unwrap();
        assert!(moved.join("a").exists());
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn links_and_fifos_are_refused_without_waiting() {
        let place = tempfile::tempdir().unwrap();
        let dir = Directory::open(place.path()).unwrap();
        std::fs::write(place.path().join("a"), "a").unwrap();
        std::os::unix::fs::symlink("a", place.path().join("link")).unwrap();
        let fifo = place.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, OWNER_ONLY, 0).unwrap();
        assert!(dir.file("a", OFlags::RDONLY).is_ok());
        for name in ["link", "fifo"] {
            let error = dir.file(name, OFlags::RDONLY).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongType, "{name}: {error}");
        }
        assert!(dir.child("link").is_err());
    }

    #[test]
    fn write_replaces_and_read_is_bounded() {
        let place = tempfile::tempdir().unwrap();
        let dir = Directory::open(place.path()).unwrap();
        dir.write("a", b"one").unwrap();
        dir.write("a", b"two two").unwrap();
        assert_eq!(dir.read("a", 7).unwrap().unwrap(), b"two two");
        assert_eq!(dir.read("a", 6).unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(dir.read("b", 6).unwrap().is_none());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    fn rename_refuses_or_replaces() {
        let place = tempfile::tempdir().unwrap();
        let dir = Directory::open(place.path()).unwrap();
        for name in ["a", "b"] {
            dir.write(name, name.as_bytes()).unwrap();
        }
        let refused = dir.rename("a", &dir, "b", Existing::Refuse);
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::AlreadyExists);
        dir.rename("a", &dir, "b", Existing::Replace).unwrap();
        assert_eq!(dir.read("b", 9).unwrap().unwrap(), b"a");
    }
}
