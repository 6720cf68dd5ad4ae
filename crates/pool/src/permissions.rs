//! Owner, group and mode of what is made.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use extant_space::{Error, Result};
use serde::{Deserialize, Serialize};

/// Owner and group of a file or directory; `None`: those of the process that makes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
}

impl Owner {
    /// Nothing is chosen.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Permissions of a directory that is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// The lowest 9 bits of the mode; `None`: what the umask leaves.
    pub mode: Option<u32>,
    /// Its owner and group.
    pub owner: Owner,
}

impl Permissions {
    /// Makes a directory and those above it. One that exists keeps its permissions.
    pub(crate) fn make_directory(self, path: &Path) -> Result<()> {
        let fail = |source| Error::from(source).at(path);
        if path.is_dir() {
            return Ok(());
        }
        fs::create_dir_all(path).map_err(fail)?;
        let mut set = Ok(());
        if !self.owner.is_default() {
            set = chown(path, self.owner.uid, self.owner.gid);
        }
        if let (Ok(()), Some(mode)) = (&set, self.mode) {
            set = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        }
        set.map_err(|source| {
            let _ = fs::remove_dir(path);
            fail(source).during("set permissions")
        })
    }
}
