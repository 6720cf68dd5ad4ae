//! Unnamed scratch files, which probe a file system and vanish on close.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use extant_space::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::file::HostFile;

/// Makes scratch files in a directory.
pub(crate) struct Scratch<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
}

impl<'a> Scratch<'a> {
    /// In `directory`, which is `path` in messages.
    pub(crate) fn new(directory: &'a impl AsFd, path: &'a Path) -> Self {
        Self {
            directory: directory.as_fd(),
            path,
        }
    }

    /// A new empty file without a name.
    pub(crate) fn file(&self) -> Result<HostFile> {
        let fail = |errno: Errno| {
            Error::from(io::Error::from(errno))
                .at(self.path)
                .during("make a scratch file")
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let unnamed = rustix::fs::openat(self.directory, ".", flags | OFlags::TMPFILE, mode);
        let fd = match unnamed {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::ISDIR | Errno::INVAL) => {
                self.named(flags, mode).map_err(fail)?
            }
            other => other.map_err(fail)?,
        };
        HostFile::from_file(File::from(fd), self.path)
    }

    fn named(&self, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let name = format!(".extant-probe-{}", std::process::id());
        let flags = flags | OFlags::CREATE | OFlags::EXCL;
        let fd = rustix::fs::openat(self.directory, &name, flags, mode)?;
        rustix::fs::unlinkat(self.directory, &name, AtFlags::empty())?;
        Ok(fd)
    }
}
