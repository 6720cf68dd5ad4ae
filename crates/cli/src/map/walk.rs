//! The files that the arguments stand for: files as they are named, and the
//! regular files below directories, sorted, symbolic links left alone. Of several names of a file
//! below directories the first is shown.
//!
//! Lazy: no more is held than the entries of the directories on the way down, and the numbers of
//! files with several names.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use extant_image::hold::is_export;
use extant_space::{Error, Result};

/// Whether a walk enters other file systems than the one it began in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Boundary {
    /// Mount points are entered.
    Cross,
    /// Directories on other devices are left out.
    Stay,
}

/// Whether a walk shows files and enters directories whose names begin with a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hidden {
    Show,
    LeaveOut,
}

impl Hidden {
    /// Whether an entry of a directory is shown, by its name.
    pub(super) fn shows(self, name: &[u8]) -> bool {
        self == Self::Show || !name.starts_with(b".")
    }
}

/// A file to be mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MapFile {
    pub(super) path: PathBuf,
    /// Named by the user, and not found below a directory.
    pub(super) is_argument: bool,
}

/// An iterator over files; an error stands for one file or directory.
pub(super) struct Walk {
    boundary: Boundary,
    hidden: Hidden,
    /// Paths not visited yet, the next one last.
    pending: Vec<Pending>,
    /// Device and inode of the files with several names that were found below directories.
    linked: HashSet<(u64, u64)>,
}

struct Pending {
    path: PathBuf,
    origin: Origin,
}

#[derive(Clone, Copy)]
enum Origin {
    /// An argument: a symbolic link is followed, anything else than a directory is a file.
    Argument,
    /// MapFile in a walk that began on this device.
    MapFile { device: u64 },
}

impl Walk {
    /// Visits `paths` in their order.
    pub(super) fn new(paths: &[PathBuf], boundary: Boundary, hidden: Hidden) -> Self {
        let pending = paths.iter().rev().map(|path| Pending {
            path: path.clone(),
            origin: Origin::Argument,
        });
        Self {
            boundary,
            hidden,
            pending: pending.collect(),
            linked: HashSet::new(),
        }
    }

    /// The file, or `None` if it is no regular file; a directory's entries are queued.
    fn visit(&mut self, next: Pending) -> Result<Option<MapFile>> {
        if is_export(&next.path) {
            return Ok(Some(MapFile {
                path: next.path,
                is_argument: true,
            }));
        }
        let wrong = |source| Error::from(source).at(&next.path);
        let (metadata, device) = match next.origin {
            Origin::Argument => {
                let metadata = fs::metadata(&next.path).map_err(wrong)?;
                let device = metadata.dev();
                (metadata, device)
            }
            Origin::MapFile { device } => {
                (fs::symlink_metadata(&next.path).map_err(wrong)?, device)
            }
        };
        if metadata.is_dir() {
            if self.boundary == Boundary::Cross || metadata.dev() == device {
                self.queue_entries(&next.path, device)?;
            }
            return Ok(None);
        }
        // A fifo named as an argument is an error of its own when it is opened.
        let is_argument = matches!(next.origin, Origin::Argument);
        let is_first = is_argument
            || metadata.nlink() == 1
            || self.linked.insert((metadata.dev(), metadata.ino()));
        let wanted = metadata.is_file() && is_first || is_argument;
        Ok(wanted.then_some(MapFile {
            path: next.path,
            is_argument,
        }))
    }

    fn queue_entries(&mut self, directory: &Path, device: u64) -> Result<()> {
        let read = || -> std::io::Result<Vec<PathBuf>> {
            let entries = fs::read_dir(directory)?;
            let shown = entries.filter(|entry| match entry {
                Ok(entry) => self.hidden.shows(entry.file_name().as_encoded_bytes()),
                Err(_) => true,
            });
            shown.map(|entry| entry.map(|entry| entry.path())).collect()
        };
        let mut entries =
            read().map_err(|source| Error::from(source).during("read directory").at(directory))?;
        entries.sort_unstable_by(|a, b| b.cmp(a));
        self.pending.extend(entries.into_iter().map(|path| Pending {
            path,
            origin: Origin::MapFile { device },
        }));
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = Result<MapFile>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(next) = self.pending.pop() {
            match self.visit(next) {
                Ok(None) => {}
                Ok(Some(found)) => return Some(Ok(found)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use extant_space::ErrorKind;

    use super::*;

    #[test]
    fn directories_are_walked_in_order_without_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::create_dir_all(root.join("b/c")).unwrap();
        fs::create_dir(root.join("b/.git")).unwrap();
        for name in ["z", "a", "b/2", "b/1", "b/c/x", ".hidden", "b/.git/x"] {
            fs::write(root.join(name), name).unwrap();
        }
        symlink(root, root.join("b/loop")).unwrap();
        symlink(root.join("a"), root.join("link")).unwrap();
        let walk = |hidden| -> Vec<_> {
            Walk::new(&[root.to_path_buf()], Boundary::Stay, hidden)
                .map(|found| found.unwrap().path.strip_prefix(root).unwrap().to_owned())
                .collect()
        };
        let shown = ["a", "b/1", "b/2", "b/c/x", "z"].map(PathBuf::from);
        assert_eq!(walk(Hidden::LeaveOut), shown);
        let all = [".hidden", "a", "b/.git/x", "b/1", "b/2", "b/c/x", "z"];
        assert_eq!(walk(Hidden::Show), all.map(PathBuf::from));
    }

    #[test]
    fn file_with_several_names_is_found_once_below_directories() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a");
        fs::write(&file, "x").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        for name in ["b", "d/c"] {
            fs::hard_link(&file, dir.path().join(name)).unwrap();
        }
        let find = |paths: &[PathBuf]| -> Vec<_> {
            let found = Walk::new(paths, Boundary::Stay, Hidden::Show);
            found.map(|found| found.unwrap().path).collect()
        };
        let named = [file, dir.path().join("b")];
        assert_eq!(find(&[dir.path().to_owned()]), named[..1]);
        assert_eq!(find(&named), named);
    }

    #[test]
    fn missing_argument_is_an_error_and_the_rest_is_processed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let link = dir.path().join("link");
        symlink(&file, &link).unwrap();
        let paths = [dir.path().join("none"), link.clone(), file.clone()];
        let found: Vec<_> = Walk::new(&paths, Boundary::Cross, Hidden::Show).collect();
        assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(found[1].as_ref().unwrap().path, link);
        assert_eq!(found[2].as_ref().unwrap().path, file);
        assert!(found[2].as_ref().unwrap().is_argument);
        assert_eq!(found.len(), 3);
    }
}
