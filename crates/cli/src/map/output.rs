//! Files that appear under their name only when they are complete.

use std::fs::{self, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use extant_space::{Error, Result};

/// Runs `write` on a temporary file in the directory of `path` and renames it to `path`, replacing
/// a file only if that is allowed; on failure the temporary file is removed and an existing file is
/// unchanged.
pub(super) fn write_atomically(
    path: &Path,
    may_replace: bool,
    write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
) -> Result<()> {
    let failed = |source: io::Error| Error::from(source).during("write picture").at(path);
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Its error names the cause without the temporary name.
    fs::metadata(directory).map_err(failed)?;
    let file = tempfile::Builder::new()
        .prefix(".extant-map-")
        // As for any new file: the umask takes its part.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(directory)
        .map_err(failed)?;
    let mut out = BufWriter::new(file);
    write(&mut out).map_err(failed)?;
    let file = out
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    let named = if may_replace {
        file.persist(path)
    } else {
        file.persist_noclobber(path)
    };
    named.map(drop).map_err(|error| failed(error.error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_keeps_the_old_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("map.svg");
        write_atomically(&path, false, &mut |out| out.write_all(b"old")).unwrap();
        let failed = write_atomically(&path, true, &mut |out| {
            out.write_all(b"new")?;
            Err(io::Error::other("no"))
        });
        assert!(
            failed
                .unwrap_err()
                .to_string()
                .contains("map.svg: write picture")
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let exists = write_atomically(&path, false, &mut |out| out.write_all(b"new"));
        assert_eq!(
            exists.unwrap_err().kind(),
            extant_space::ErrorKind::AlreadyExists
        );
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_atomically(&path, true, &mut |out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn missing_directory_is_named() {
        let error = write_atomically(Path::new("/nonexistent/map.svg"), false, &mut |_| Ok(()));
        assert!(
            error
                .unwrap_err()
                .to_string()
                .starts_with("/nonexistent/map.svg")
        );
    }
}
