//! Removes files without waiting for their blocks.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use extant_space::{Error, Result};
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::detached;

/// Removes the regular file `name` of `directory`. Its space is free soon after the call returns:
/// freeing a file takes long if the kernel discards every block (mount option `discard`).
///
/// # Errors
/// Those of `unlinkat`.
pub fn remove_soon(directory: &impl AsFd, name: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from);
    let holder = file.as_ref().ok().and_then(detached::hold);
    let removed = rustix::fs::unlinkat(directory, name, AtFlags::empty());
    drop(file);
    drop(holder);
    removed.map_err(|errno| {
        Error::from(io::Error::from(errno))
            .at(name)
            .during("remove")
    })
}

#[cfg(test)]
mod tests {
    use extant_space::ErrorKind;

    use super::*;

    #[test]
    fn name_is_gone_at_once_and_space_soon() {
        let temporary = tempfile::tempdir().unwrap();
        let file = temporary.path().join("a");
        std::fs::write(&file, "a").unwrap();
        let directory = File::open(temporary.path()).unwrap();
        remove_soon(&directory, Path::new("a")).unwrap();
        assert!(!file.exists());
        let again = remove_soon(&directory, Path::new("a")).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn link_is_removed_and_its_target_kept() {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::write(temporary.path().join("a"), "a").unwrap();
        std::os::unix::fs::symlink("a", temporary.path().join("link")).unwrap();
        let directory = File::open(temporary.path()).unwrap();
        remove_soon(&directory, Path::new("link")).unwrap();
        assert!(temporary.path().join("a").exists());
    }
}
