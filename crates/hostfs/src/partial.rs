//! The file that a creation works on, until it is complete and gets its name.
//!
//! It is in the same directory, as `.NAME.extant-partial`, so that the final rename stays on one
//! file system. A killed run leaves it; the same command resumes it. It is resumed only if it
//! belongs to this user, is a regular file with one link, and holds only zeros: it has our mark
//! (`mark.rs`), or was read. Only one process works on it at a time (flock).
//!
//! A file that receives contents gets another name, `.NAME.extant-filling`, because it no longer
//! holds only zeros: a run that finds one starts again.
//!
//! Crash safety: before the rename the name does not exist (or is the old file); after it, the file
//! is complete, because it was synced before.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use extant_space::{ByteRange, Control, Error, ErrorKind, ExtentState, Phase, Result, SpaceFile};
use extant_sys::wait::poll_until;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::destination::{Destination, Durable};
use crate::detached;
use crate::directory::Existing;
use crate::file::{self, HostFile};
use crate::filesystem::FileSystem;
use crate::holders;
use crate::mark;

/// Permissions of the file until it has its name.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);
/// Read at once.
const READ_BYTES: usize = 1 << 20;
/// Longest time that a file is busy after its process was killed.
const LAST_WRITES_TIMEOUT: Duration = Duration::from_millis(500);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A creation at work. Dropped without [`publish`](Self::publish), the file is removed
/// unless it was to be kept.
pub(crate) struct Partial {
    destination: Destination,
    /// Changes when the file is filled.
    name: RefCell<OsString>,
    file: HostFile,
    keep: bool,
    is_published: bool,
}

impl Partial {
    /// Creates the file, or resumes that of an earlier run.
    pub(crate) fn open(destination: Destination, keep: bool, control: Control<'_>) -> Result<Self> {
        remove_filled(&destination)?;
        let name = destination.partial_name();
        let path = destination.directory.path().join(&name);
        let fail = |errno: Errno| Error::from(io::Error::from(errno)).at(&path);
        // Twice at most in practice: again when another run renamed or removed it meanwhile.
        let (fd, own, origin) = loop {
            let Some((fd, origin)) = open_or_make(&destination, &name, &path)? else {
                continue;
            };
            let fd = File::from(fd);
            if let Err(error) = lock(&fd, &destination) {
                // No other run has it, unless it is in use.
                if matches!(origin, Origin::Made) && error.kind() != ErrorKind::InUse {
                    remove(&destination, &name);
                }
                return Err(error.at(&path));
            }
            let own = rustix::fs::fstat(&fd).map_err(fail)?;
            match rustix::fs::statat(&destination.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(named) if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) => {
                    break (fd, own, origin);
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(fail(errno)),
            }
        };
        match origin {
            Origin::Made => mark::set(&fd),
            Origin::Found => {
                check_is_ours(&own, &path)?;
                rustix::fs::fchmod(&fd, PRIVATE).map_err(|errno| fail(errno).during("set mode"))?;
            }
        }
        let opened = destination
            // Another run may have finished between the check of the name and the lock.
            .check_name()
            .and_then(|()| HostFile::from_file(fd, &destination.path));
        if let (Ok(file), Origin::Found) = (&opened, origin) {
            check_is_zeros(file, &path, control)?;
            mark::set(file);
        }
        let file = opened.inspect_err(|_| {
            if own.st_size == 0 {
                remove(&destination, &name);
            }
        })?;
        Ok(Self {
            file,
            name: RefCell::new(name),
            destination,
            keep,
            is_published: false,
        })
    }

    pub(crate) fn file(&self) -> &HostFile {
        &self.file
    }

    /// From here on the file may hold contents: it is renamed, durably before the first byte, to a
    /// name that no run resumes.
    pub(crate) fn begin_filling(&self) -> Result<()> {
        let directory = &self.destination.directory;
        let name = self.destination.filling_name();
        self.clear_mark()?;
        directory
            .rename(&*self.name.borrow(), directory, &name, Existing::Replace)
            .map_err(|error| error.about(&self.destination.path))?;
        self.name.replace(name);
        self.sync_directory()
    }

    /// From here on the file is not taken for zeros.
    pub(crate) fn clear_mark(&self) -> Result<()> {
        mark::clear(&self.file).map_err(|source| self.file.error(source).during("remove mark"))
    }

    fn sync_directory(&self) -> Result<()> {
        let synced = self.destination.directory.sync();
        synced.map_err(|error| error.about(&self.destination.path))
    }

    /// Ends a cancelled creation: removes the file unless it was to be kept.
    ///
    /// With `discard` the kernel discards every block while it frees a file, which takes long. The
    /// call does not wait for that; the space is free soon after it returns.
    pub(crate) fn cancel(self, filesystem: &FileSystem) {
        let is_slow = filesystem.options.iter().any(|option| option == "discard");
        if self.keep || !is_slow {
            return;
        }
        let holder = detached::hold(self.file.as_file());
        drop(self);
        drop(holder);
    }

    pub(crate) fn destination(&self) -> &Destination {
        &self.destination
    }

    /// Gives the file its name. Owner, mode, mark ([`clear_mark`](Self::clear_mark)) and a sync are
    /// the caller's business.
    pub(crate) fn publish(mut self, durable: Durable) -> Result<()> {
        let Destination {
            directory,
            name,
            path,
            existing,
        } = &self.destination;
        directory
            .rename(&*self.name.borrow(), directory, name, *existing)
            .map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => Error::new(ErrorKind::AlreadyExists)
                    .at(path)
                    .detail("was created by another process meanwhile"),
                _ => error.about(path),
            })?;
        self.is_published = true;
        match durable {
            Durable::Name => self.sync_directory(),
            Durable::Content => Ok(()),
        }
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let name = &*self.name.borrow();
        let is_filled = *name == self.destination.filling_name();
        if !self.is_published && (!self.keep || is_filled) {
            // The caller reports the earlier error.
            let _ = rustix::fs::unlinkat(&self.destination.directory, name, AtFlags::empty());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Made,
    Found,
}

fn in_use(file: &File, destination: &Destination) -> Error {
    let file = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let who = holders::describe(&file).unwrap_or_else(|| "another extant".to_owned());
    Error::new(ErrorKind::InUse)
        .at(&destination.path)
        .detail(format!("is being created by {who} at this moment"))
}

/// Removes a file that holds nothing. The error that the caller reports matters more than one here.
fn remove(destination: &Destination, name: &OsStr) {
    let _ = rustix::fs::unlinkat(&destination.directory, name, AtFlags::empty());
}

/// Removes the file of a run that was interrupted while it filled the file.
fn remove_filled(destination: &Destination) -> Result<()> {
    let name = destination.filling_name();
    let path = destination.directory.path().join(&name);
    let fail = |errno: Errno| Error::from(io::Error::from(errno)).at(&path);
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = match rustix::fs::openat(&destination.directory, &name, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NAMETOOLONG) => return Ok(()),
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(file::wrong_type(&path)),
        Err(errno) => return Err(fail(errno)),
    };
    let fd = File::from(fd);
    lock(&fd, destination).map_err(|error| error.at(&path))?;
    check_is_ours(&rustix::fs::fstat(&fd).map_err(fail)?, &path)?;
    match rustix::fs::unlinkat(&destination.directory, &name, AtFlags::empty()) {
        // Its run completed it meanwhile.
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(fail(errno)),
    }
}

/// `None`: it vanished between two attempts.
fn open_or_make(
    destination: &Destination,
    name: &OsStr,
    path: &Path,
) -> Result<Option<(OwnedFd, Origin)>> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = &destination.directory;
    let made = rustix::fs::openat(
        directory,
        name,
        flags | OFlags::CREATE | OFlags::EXCL,
        PRIVATE,
    );
    let errno = match made {
        Ok(fd) => return Ok(Some((fd, Origin::Made))),
        Err(Errno::EXIST) => match rustix::fs::openat(directory, name, flags, PRIVATE) {
            Ok(fd) => return Ok(Some((fd, Origin::Found))),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => errno,
        },
        Err(errno) => errno,
    };
    Err(match errno {
        Errno::LOOP | Errno::ISDIR => file::wrong_type(path),
        Errno::NAMETOOLONG => Error::from(io::Error::from(errno))
            .with_kind(ErrorKind::InvalidArgument)
            .at(path)
            .detail("the name is too long"),
        _ => Error::from(io::Error::from(errno))
            .at(&destination.path)
            .during("create"),
    })
}

/// Takes the lock, where the file system has locks. A process that was killed keeps it for the
/// moment that its last writes take.
fn lock(file: &File, destination: &Destination) -> Result<()> {
    let locked = poll_until(LAST_WRITES_TIMEOUT, LOCK_POLL_INTERVAL, || {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => None,
            answer => Some(answer),
        }
    });
    match locked {
        Some(Ok(())) => Ok(()),
        None | Some(Err(TryLockError::WouldBlock)) => Err(in_use(file, destination)),
        Some(Err(TryLockError::Error(source))) => match Errno::from_io_error(&source) {
            Some(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            _ => Err(Error::from(source).during("lock")),
        },
    }
}

/// In a directory that others can write to, a file under the name we want may be a trap.
fn check_is_ours(stat: &Stat, path: &Path) -> Result<()> {
    let is_ours = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == rustix::process::geteuid().as_raw()
        && stat.st_nlink == 1;
    if is_ours {
        return Ok(());
    }
    Err(in_the_way(path, "not a partial file of this user"))
}

fn in_the_way(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::AlreadyExists)
        .at(path)
        .detail(format!("is in the way: {why}"))
        .advice("remove it, or choose another name")
}

/// A file without our mark may be any file of this user that another user renamed, so it is read.
fn check_is_zeros(file: &HostFile, path: &Path, control: Control<'_>) -> Result<()> {
    if mark::is_set(file) {
        return Ok(());
    }
    let mut buffer = vec![0; READ_BYTES];
    let whole = ByteRange::new(0, file.size()?);
    let mut data = Vec::new();
    file.for_each_extent(whole, &mut |extent| {
        if extent.state == ExtentState::Written {
            data.push(extent.logical);
        }
        ControlFlow::Continue(())
    })?;
    for piece in data.iter().flat_map(|data| data.chunks(READ_BYTES as u64)) {
        control.cancel.check()?;
        control.report(Phase::Scan, piece.start(), whole.len());
        let read = file.read_at(&mut buffer[..piece.len() as usize], piece.start())?;
        if buffer[..read].iter().any(|&byte| byte != 0) {
            return Err(in_the_way(path, "it holds data, and no run has left it"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use extant_space::{CancelToken, Silent};

    use super::*;
    use crate::destination::tests::destination;

    fn open(destination: Destination, keep: bool) -> Result<Partial> {
        Partial::open(
            destination,
            keep,
            Control::new(&CancelToken::new(), &Silent),
        )
    }

    #[test]
    fn file_of_this_user_that_no_run_has_left_is_not_adopted_unless_it_holds_zeros() {
        let (directory, place) = destination("a");
        let planted = directory.path().join(place.partial_name());
        let again = || Destination::new(&directory.path().join("a"), Existing::Refuse).unwrap();
        // Bytes that no sample reads.
        let mut secret = vec![0; 3 << 20];
        secret[1_234_567] = 1;
        std::fs::write(&planted, &secret).unwrap();
        let error = open(place, false).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(std::fs::read(&planted).unwrap() == secret);
        secret[1_234_567] = 0;
        std::fs::write(&planted, &secret).unwrap();
        let partial = open(again(), true).unwrap();
        let mode = partial.file().metadata().unwrap().permissions();
        assert_eq!(
            std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
            0o600
        );
    }

    #[test]
    fn mark_is_removed_with_the_first_byte_and_with_the_name() {
        let (directory, place) = destination("a");
        let partial = open(place, false).unwrap();
        if !mark::is_set(partial.file()) {
            eprintln!("no attributes of users on the file system of temporary files");
            return;
        }
        partial.begin_filling().unwrap();
        assert!(!mark::is_set(partial.file()));
        drop(partial);
        let again = Destination::new(&directory.path().join("a"), Existing::Refuse).unwrap();
        let partial = open(again, false).unwrap();
        assert!(mark::is_set(partial.file()));
        partial.clear_mark().unwrap();
        partial.publish(Durable::Name).unwrap();
        assert!(!mark::is_set(
            &File::open(directory.path().join("a")).unwrap()
        ));
    }

    #[test]
    fn second_creation_of_one_name_is_refused_while_the_first_works() {
        let (directory, destination) = destination("a");
        let first = open(destination, false).unwrap();
        let again = Destination::new(&directory.path().join("a"), Existing::Refuse).unwrap();
        let error = open(again, false).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InUse);
        drop(first);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn name_that_appears_meanwhile_is_not_replaced() {
        let (directory, destination) = destination("a");
        let partial = open(destination, false).unwrap();
        std::fs::write(directory.path().join("a"), "precious").unwrap();
        let error = partial.publish(Durable::Name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(
            std::fs::read(directory.path().join("a")).unwrap(),
            b"precious"
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_interrupted_while_filling_is_not_resumed() {
        let (directory, destination) = destination("a");
        let partial = open(destination, true).unwrap();
        partial.file().write_at(b"data", 0).unwrap();
        partial.begin_filling().unwrap();
        let filling = directory.path().join(".a.extant-filling");
        assert!(filling.exists());
        let again = || Destination::new(&directory.path().join("a"), Existing::Refuse).unwrap();
        let error = open(again(), true).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::InUse);
        // As a kill leaves it: the name remains, and the lock is released.
        std::fs::hard_link(&filling, directory.path().join("kept")).unwrap();
        drop(partial);
        assert!(!filling.exists());
        std::fs::rename(directory.path().join("kept"), &filling).unwrap();
        let partial = open(again(), true).unwrap();
        assert_eq!(partial.file().size().unwrap(), 0);
        assert!(!filling.exists());
    }

    #[test]
    fn planted_partial_with_a_second_name_is_not_adopted() {
        let (directory, destination) = destination("a");
        let planted = directory.path().join(destination.partial_name());
        std::fs::write(&planted, "data").unwrap();
        std::fs::hard_link(&planted, directory.path().join("second")).unwrap();
        let error = open(destination, false).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&planted).unwrap(), b"data");
    }
}
