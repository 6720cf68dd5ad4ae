//! The directory of a pool's own state: its name and its permissions.

use extant_hostfs::Directory;
use extant_space::{Error, ErrorKind, Result};

/// Its name in the directory of a pool.
pub(crate) const STATE_DIRECTORY: &str = ".extant";
/// The file in it that holds the identifier of the definition.
pub(crate) const IDENTIFIER: &str = "identifier";
/// Write permission of the group and of others.
const OTHERS_WRITE: u32 = 0o022;

/// Opens the directory `name` of a pool.
pub(crate) fn open_state_directory(pool: &Directory, name: &str) -> Result<Directory> {
    pool.child(name).and_then(check_owner)
}

/// Opens the directory `name` of a pool, creating it if necessary.
pub(crate) fn make_state_directory(pool: &Directory, name: &str) -> Result<Directory> {
    pool.make_child(name).and_then(check_owner)
}

fn check_owner(dir: Directory) -> Result<Directory> {
    let stat = dir.own_stat()?;
    let detail = if stat.st_uid != rustix::process::geteuid().as_raw() {
        format!(
            "the pool is managed by the user with number {}",
            stat.st_uid
        )
    } else if stat.st_mode & OTHERS_WRITE != 0 {
        // Files of other users there would be taken for the pool's own.
        "other users may write to the state directory of the pool".to_owned()
    } else {
        return Ok(dir);
    };
    Err(Error::new(ErrorKind::PermissionDenied)
        .at(dir.path())
        .detail(detail))
}
