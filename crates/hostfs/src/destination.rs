//! The name of a new file, and conflicts with an existing one.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use extant_space::{Error, ErrorKind, Remedy, Result, fnv1a};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use crate::directory::{Directory, Existing};
use crate::file;
use crate::filesystem::parent_of;
use crate::swap;

/// Names of the file while space is written, and while it is filled: of one length.
const PARTIAL: &str = ".extant-partial";
const FILLING: &str = ".extant-filling";
/// Longest name of a file on every file system of Linux that matters, bytes.
const NAME_MAX: usize = 255;

/// Durability of a new file on return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durable {
    /// The file under its name.
    #[default]
    Name,
    /// The file under any name: for a caller that renames it at once and makes the rename durable.
    Content,
}

/// The directory and name that a new file will have.
pub(crate) struct Destination {
    pub(crate) directory: Directory,
    pub(crate) name: OsString,
    pub(crate) path: PathBuf,
    pub(crate) existing: Existing,
}

impl Destination {
    /// Checks `path`; creates nothing yet.
    pub(crate) fn new(path: &Path, existing: Existing) -> Result<Self> {
        let shown = path;
        // A link is replaced where it points, as every tool that writes through it would.
        let resolved = match existing {
            Existing::Replace if path.is_symlink() => Some(Linked::follow(path)?),
            _ => None,
        };
        let (resolved, linked) = match resolved {
            Some(linked) => (linked.path.clone(), Some(linked)),
            None => (path.to_path_buf(), None),
        };
        let name = match resolved.file_name() {
            Some(name) if !resolved.as_os_str().as_bytes().ends_with(b"/") => name.to_owned(),
            _ => return Err(file::wrong_type(shown)),
        };
        let directory = Directory::open(parent_of(&resolved)).map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                error.detail("no such directory")
            } else {
                error
            }
        })?;
        let destination = Self {
            directory,
            name,
            path: resolved,
            existing,
        };
        if let Some(linked) = linked {
            linked.check_is_at(&destination)?;
        }
        destination.check_name()?;
        destination.check_attributes()?;
        Ok(destination)
    }

    pub(crate) fn check_name(&self) -> Result<()> {
        let stat = match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
        {
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                let error = Error::from(io::Error::from(errno)).at(&self.path);
                return Err(match errno {
                    Errno::NAMETOOLONG => error
                        .with_kind(ErrorKind::InvalidArgument)
                        .detail("the name is too long"),
                    _ => error,
                });
            }
            Ok(stat) => stat,
        };
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        match self.existing {
            Existing::Replace if is_file => {
                swap::check_is_none(&self.path, stat.st_dev, stat.st_ino)
            }
            Existing::Replace => Err(file::wrong_type(&self.path)),
            Existing::Refuse => {
                let error = Error::new(ErrorKind::AlreadyExists).at(&self.path);
                Err(if is_file {
                    error.remedy(Remedy::Replace).remedy(Remedy::Materialize)
                } else {
                    error.detail("exists, and is not a regular file")
                })
            }
        }
    }

    /// Fails early if the final rename is forbidden: an append-only directory, a file that may not
    /// be replaced.
    pub(crate) fn check_attributes(&self) -> Result<()> {
        for (name, path) in [
            (OsStr::new("."), self.directory.path()),
            (self.name.as_os_str(), self.path.as_path()),
        ] {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            let found = rustix::fs::statx(&self.directory, name, flags, StatxFlags::TYPE);
            let fixed = StatxAttributes::IMMUTABLE | StatxAttributes::APPEND;
            if found.is_ok_and(|found| found.stx_attributes.intersects(fixed)) {
                return Err(Error::new(ErrorKind::Immutable)
                    .at(path)
                    .advice("chattr -i -a lifts it"));
            }
        }
        Ok(())
    }

    pub(crate) fn partial_name(&self) -> OsString {
        self.hidden_name(PARTIAL)
    }

    /// The name while contents are written: such a file is never resumed.
    pub(crate) fn filling_name(&self) -> OsString {
        self.hidden_name(FILLING)
    }

    fn hidden_name(&self, suffix: &str) -> OsString {
        let name = self.name.as_bytes();
        let room = NAME_MAX - suffix.len() - 1;
        let mut partial = OsString::from(".");
        if name.len() <= room {
            partial.push(&self.name);
        } else {
            // Truncated, and distinguished from names with the same prefix by a digest.
            let digest = format!("~{:016x}", fnv1a(name));
            partial.push(OsStr::from_bytes(&name[..room - digest.len()]));
            partial.push(digest);
        }
        partial.push(suffix);
        partial
    }
}

/// Target of a symbolic link.
struct Linked {
    stat: Stat,
    path: PathBuf,
}

impl Linked {
    /// Has the kernel follow the link, which refuses those that it protects from
    /// (`fs.protected_symlinks`, proc_sys_fs(5)).
    fn follow(link: &Path) -> Result<Self> {
        let fail = |source: io::Error| Error::from(source).at(link).during("follow link");
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file =
            rustix::fs::open(link, flags, Mode::empty()).map_err(|errno| fail(errno.into()))?;
        let path =
            std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(fail)?;
        let stat = rustix::fs::fstat(&file).map_err(|errno| fail(errno.into()))?;
        Ok(Self { stat, path })
    }

    /// The name is that of the file which the kernel found.
    fn check_is_at(&self, destination: &Destination) -> Result<()> {
        let (directory, flags) = (&destination.directory, AtFlags::SYMLINK_NOFOLLOW);
        let place = |stat: &Stat| (stat.st_dev, stat.st_ino);
        match rustix::fs::statat(directory, &destination.name, flags) {
            Ok(named) if place(&named) == place(&self.stat) => Ok(()),
            _ => Err(Error::new(ErrorKind::InUse)
                .at(&self.path)
                .detail("was moved while a link to it was followed")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A destination in its own directory.
    pub(crate) fn destination(name: &str) -> (tempfile::TempDir, Destination) {
        let directory = tempfile::tempdir().unwrap();
        let destination = Destination::new(&directory.path().join(name), Existing::Refuse).unwrap();
        (directory, destination)
    }

    #[test]
    fn partial_names_of_long_names_fit_and_differ() {
        let long = "n".repeat(254);
        let one = destination(&format!("{long}1")).1.partial_name();
        let two = destination(&format!("{long}2")).1.partial_name();
        assert_eq!(one.len(), NAME_MAX);
        assert_ne!(one, two);
        assert_eq!(
            destination("a.raw").1.partial_name(),
            ".a.raw.extant-partial"
        );
    }
}
