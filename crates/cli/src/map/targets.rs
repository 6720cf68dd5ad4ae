//! The files that pictures are written to: no existing file, unless forced, and never a mapped one.

use std::fs;
use std::path::{Path, PathBuf};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::identity::Identity;

/// The files of the pictures.
pub(super) struct Targets {
    /// Existing files to be replaced.
    found: Vec<(PathBuf, Identity)>,
}

impl Targets {
    /// Validates the names in `paths`.
    ///
    /// # Errors
    /// `AlreadyExists` for an existing file that may not be replaced, `WrongType` if it is not a
    /// regular file, and `InvalidArgument` if two pictures have one name.
    pub(super) fn new(paths: &[&Path], may_replace: bool) -> Result<Self> {
        let mut found = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            if paths[..index].iter().any(|other| is_same_name(other, path)) {
                return Err(Error::new(ErrorKind::InvalidArgument)
                    .at(path)
                    .detail("two pictures of one name"));
            }
            let Ok(metadata) = fs::symlink_metadata(path) else {
                continue;
            };
            if !may_replace {
                return Err(Error::new(ErrorKind::AlreadyExists)
                    .at(path)
                    .advice("--force replaces it"));
            }
            if !metadata.is_file() {
                return Err(Error::new(ErrorKind::WrongType).at(path));
            }
            found.push((
                path.to_path_buf(),
                Identity::of(path).map_err(|source| Error::from(source).at(path))?,
            ));
        }
        Ok(Self { found })
    }

    /// Refuses a picture in the place of `input`, a file of the host.
    ///
    /// # Errors
    /// `InUse` with the name of the picture.
    pub(super) fn check_input(&self, input: &Path) -> Result<()> {
        if self.found.is_empty() {
            return Ok(());
        }
        let Ok(identity) = Identity::of(input) else {
            return Ok(());
        };
        match self.found.iter().find(|(_, found)| *found == identity) {
            None => Ok(()),
            Some((path, _)) => Err(Error::new(ErrorKind::InvalidArgument)
                .at(path)
                .detail("it is mapped itself, and a picture never replaces that")),
        }
    }
}

/// For files that do not exist yet, only the names can be compared.
fn is_same_name(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        let directory = path
            .parent()
            .filter(|directory| !directory.as_os_str().is_empty());
        let directory = fs::canonicalize(directory.unwrap_or(Path::new("."))).ok()?;
        Some(directory.join(path.file_name()?))
    };
    one == other || place(one).is_some() && place(one) == place(other)
}
