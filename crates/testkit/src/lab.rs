//! The directory of oracles: software that is fetched once and kept for later runs.
//!
//! A recipe builds each subdirectory under a temporary name and renames it when complete. A lock
//! lets one process build while others wait. The subdirectory stores the recipe's version; it is
//! rebuilt for another version.

use std::error::Error;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::command;

const STAMP: &str = "recipe";

/// Errors while preparing: of a tool, the network, the disk.
pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// The result of a recipe.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// Changed whenever the result would be another one.
    pub(crate) version: &'static str,
}

impl Recipe {
    /// It exists with this version.
    pub(crate) fn is_ready(&self) -> bool {
        fs::read_to_string(self.directory.join(STAMP)).is_ok_and(|stamp| stamp == self.version)
    }

    /// Has `make` fill the directory it is given, unless that was done before.
    pub(crate) fn prepare(&self, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        if self.is_ready() {
            return Ok(());
        }
        let parent = self
            .directory
            .parent()
            .expect("a directory below the oracles");
        fs::create_dir_all(parent)?;
        let lock = File::create(self.directory.with_added_extension("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        if self.is_ready() {
            return Ok(());
        }

        let new = self.directory.with_added_extension("new");
        remove(&new)?;
        fs::create_dir(&new)?;
        make(&new)?;
        fs::write(new.join(STAMP), self.version)?;
        remove(&self.directory)?;
        fs::rename(&new, &self.directory)?;
        Ok(())
    }
}

/// Directory of the oracles: `$EXTANT_ORACLES`, or `target/oracles` of the workspace.
pub fn directory() -> PathBuf {
    match std::env::var_os("EXTANT_ORACLES") {
        Some(directory) => directory.into(),
        None => workspace().join("target/oracles"),
    }
}

fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).expect("crates/testkit")
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    Ok(())
}

/// A program of another system, run by its own loader with its own libraries.
///
/// `root` holds the unpacked system; nothing of it is installed, and it needs no chroot.
pub(crate) fn foreign(root: &Path, program: &str) -> Result<std::process::Command> {
    let library = fs::read_dir(root.join("usr/lib"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|directory| directory.join("libc.so.6").exists())
        .ok_or_else(|| format!("no libc.so.6 in {}", root.display()))?;
    let loader = fs::read_dir(&library)?
        .flatten()
        .find(|entry| entry.file_name().to_string_lossy().starts_with("ld-linux-"))
        .ok_or_else(|| format!("no loader in {}", library.display()))?
        .path();
    let mut command = command::tool(&loader.to_string_lossy());
    command
        .arg("--library-path")
        .arg(library)
        .arg(root.join(program));
    Ok(command)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn recipe(directory: &Path, version: &'static str) -> Recipe {
        Recipe {
            directory: directory.join("thing"),
            version,
        }
    }

    #[test]
    fn failed_recipe_leaves_nothing_ready_and_is_tried_again() {
        let directory = tempfile::tempdir().unwrap();
        let recipe = recipe(directory.path(), "1");
        let failed = recipe.prepare(|new| {
            fs::write(new.join("half"), b"")?;
            Err("no network".into())
        });
        assert_eq!(failed.unwrap_err().to_string(), "no network");
        assert!(!recipe.is_ready() && !recipe.directory.exists());
        recipe.prepare(|_| Ok(())).unwrap();
        assert!(recipe.is_ready() && !recipe.directory.join("half").exists());
    }

    #[test]
    fn new_version_is_rebuilt_and_the_same_is_not() {
        let directory = tempfile::tempdir().unwrap();
        recipe(directory.path(), "1").prepare(|_| Ok(())).unwrap();
        recipe(directory.path(), "1")
            .prepare(|_| panic!("made twice"))
            .unwrap();
        let newer = recipe(directory.path(), "2");
        newer
            .prepare(|new| Ok(fs::write(new.join("2"), b"")?))
            .unwrap();
        assert!(newer.directory.join("2").exists());
    }

    #[test]
    fn recipe_asked_for_at_once_is_made_once() {
        let directory = tempfile::tempdir().unwrap();
        let recipe = recipe(directory.path(), "1");
        let made = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let make = |_: &Path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        Ok(())
                    };
                    recipe.prepare(make).unwrap();
                    assert!(recipe.is_ready());
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }
}
