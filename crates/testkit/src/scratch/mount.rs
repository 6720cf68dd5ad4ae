//! A mount that is undone when dropped.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::busy::try_while_busy;
use crate::command::{must, tool};

/// A mount, unmounted when dropped.
///
/// If it stays busy for some seconds, it is detached (`MNT_DETACH`) and disappears with its last
/// open file.
#[derive(Debug)]
pub struct Mount {
    place: Option<PathBuf>,
}

impl Mount {
    /// Mounts `source` at `place`. `options` may be empty.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn new(kind: &str, source: &Path, place: &Path, options: &str) -> Self {
        let mut command = tool("mount");
        command.args(["-t", kind]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        must(command.arg(source).arg(place));
        Self::guard(place)
    }

    /// Mounts an overlay at `place`, with new directories `lower`, `upper` and `work` in `layers`.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn overlay(layers: &Path, place: &Path) -> Self {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| {
            let path = layers.join(name);
            fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            path
        });
        let [lower, upper, work] = [&lower, &upper, &work].map(|path| path.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        Self::new("overlay", Path::new("overlay"), place, &options)
    }

    /// Guards an existing mount at `place`.
    pub fn guard(place: &Path) -> Self {
        Self {
            place: Some(place.to_owned()),
        }
    }

    /// Its mount point.
    pub fn path(&self) -> &Path {
        self.place.as_deref().expect("mounted until consumed")
    }

    /// Unmounts now.
    ///
    /// # Panics
    /// When something still uses it after some seconds, or when it is no longer mounted.
    #[track_caller]
    pub fn unmount(mut self) {
        let place = self.place.take().expect("mounted until consumed");
        if let Err(error) = unmount_patiently(&place) {
            let _ = unmount(&place, UnmountFlags::DETACH);
            panic!("unmount {}: {error}", place.display());
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(place) = self.place.take() else {
            return;
        };
        let result = match unmount_patiently(&place) {
            Err(_) => unmount(&place, UnmountFlags::DETACH),
            Ok(()) => Ok(()),
        };
        if let Err(error) = result {
            eprintln!("left behind: the mount {}: {error}", place.display());
        }
    }
}

fn unmount_patiently(place: &Path) -> io::Result<()> {
    let is_busy = |result: &Result<(), Errno>| *result == Err(Errno::BUSY);
    let result = try_while_busy(is_busy, || unmount(place, UnmountFlags::empty()));
    Ok(result?)
}
