//! Pools by the words of a user: the name of a definition, or a path.

use std::env;
use std::fs::{self, FileType};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use extant_image::hold::is_export;
use extant_space::{Error, ErrorKind, Result};

use crate::definition::{Definition, Definitions};
use crate::name::PoolName;

/// State directories of root's pools on disks.
const STATE_OF_SYSTEM: &str = "/var/lib/extant/pools";

impl Definitions {
    /// The pool that `place` names: with a slash, `.`, or `..` a directory or an ext4 image, else a
    /// definition.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn find(&self, place: &Path) -> Result<Definition> {
        match place.to_str() {
            Some(name) if !is_path(place) => self.get(&name.parse()?),
            _ => Ok(Definition::of_path(place)),
        }
    }
}

impl Definition {
    /// The pool that a directory or an ext4 image is without a definition.
    pub fn of_path(path: &Path) -> Self {
        if has_type(path, |found| found.is_file() || found.is_block_device()) {
            Self::of_image(path)
        } else {
            Self::of_directory(path)
        }
    }
}

/// Whether a pool is named by a path, and not by its definition.
pub fn is_path(place: &Path) -> bool {
    let bytes = place.as_os_str().as_encoded_bytes();
    bytes.contains(&b'/') || bytes == b"." || bytes == b".." || place.to_str().is_none()
}

/// The default state directory of the pool `name` on the disk or export `place`, beside which there
/// is no permanent directory; `None` for a file.
///
/// # Errors
/// `NotFound` if `HOME` is not set.
pub fn state_for_disk(name: &PoolName, place: &Path) -> Result<Option<PathBuf>> {
    if is_export(place) || has_type(place, FileTypeExt::is_block_device) {
        state_of_user(name).map(Some)
    } else {
        Ok(None)
    }
}

/// The directory for the state of the pool `name`, of the user who runs this process.
///
/// # Errors
/// `NotFound` if `HOME` is not set.
pub fn state_of_user(name: &PoolName) -> Result<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Ok(Path::new(STATE_OF_SYSTEM).join(name.as_str()));
    }
    let absolute = |variable: &str| {
        let value = PathBuf::from(env::var_os(variable)?);
        value.is_absolute().then_some(value)
    };
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    let base = base.ok_or_else(|| {
        Error::new(ErrorKind::NotFound)
            .detail("HOME is not set, so the pool's state has no directory")
    })?;
    Ok(base.join("extant/pools").join(name.as_str()))
}

fn has_type(path: &Path, is_wanted: impl FnOnce(&FileType) -> bool) -> bool {
    fs::metadata(path).is_ok_and(|found| is_wanted(&found.file_type()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_with_a_slash_are_paths_and_others_names() {
        for path in [".", "..", "./vms", "/srv", "vms/"] {
            assert!(is_path(Path::new(path)), "{path}");
        }
        assert!(!is_path(Path::new("vms")));
    }

    #[test]
    fn file_is_an_image_and_other_paths_are_directories() {
        let place = tempfile::tempdir().unwrap();
        let image = place.path().join("image");
        fs::write(&image, "").unwrap();
        assert_eq!(Definition::of_path(&image), Definition::of_image(&image));
        for path in [place.path(), &place.path().join("none")] {
            assert_eq!(Definition::of_path(path), Definition::of_directory(path));
        }
    }
}
