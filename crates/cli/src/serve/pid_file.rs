//! The file that holds the number of the server's process as long as it serves.

use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::process;

use extant_space::{Error, Result};

/// Removes the file when dropped.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    pub(super) fn write(path: &Path) -> Result<Self> {
        let write = || {
            // The server may be elsewhere at its end.
            let path = absolute(path)?;
            fs::write(&path, format!("{}\n", process::id()))?;
            Ok(Self(path))
        };
        write().map_err(|error: std::io::Error| Error::from(error).during("write").at(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // It may have been removed before.
        let _ = fs::remove_file(&self.0);
    }
}
