//! Images of the host, and the files that they name, where these may be opened.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_hostfs::HostFile;
use extant_space::{Error, ErrorKind, Result};

use super::Layer;
use crate::options::Format;

/// Longest chain of images.
const CHAIN_MAX: u32 = 64;

/// What becomes of files that an image names: backing file and data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// They are not opened.
    #[default]
    Nothing,
    /// They are opened for reading, and those that they name. Who made the image chooses which files of the host are read.
    Named,
}

/// Opens the image in `path` for reading; `format` is told by its first bytes where it is not given.
///
/// # Errors
/// Those of [`Layer::open`]; `Unsupported` for names and formats that are not read here.
pub fn open_path(path: &Path, format: Option<Format>, follow: Follow) -> Result<Layer> {
    open_in_chain(path, format, follow, 0)
}

fn open_in_chain(path: &Path, format: Option<Format>, follow: Follow, depth: u32) -> Result<Layer> {
    let file = Arc::new(HostFile::open_read(path)?);
    let format = match format {
        Some(format) => format,
        None => Layer::probe(&*file)?,
    };
    let mut layer = Layer::open(file, format).map_err(|error| error.at(path))?;
    let Some(header) = layer.header().filter(|_| follow == Follow::Named) else {
        return Ok(layer);
    };
    let header = header.clone();
    if let Some(name) = header.data_file() {
        let place = beside(path, name).map_err(|error| error.at(path))?;
        layer = layer.with_data_file(Arc::new(HostFile::open_read(&place)?));
    }
    if let Some(name) = &header.backing_file {
        let unsupported =
            |detail: String| Err(Error::new(ErrorKind::Unsupported).at(path).detail(detail));
        if depth == CHAIN_MAX {
            return unsupported(format!(
                "more than {CHAIN_MAX} backing files, or they lead to each other"
            ));
        }
        let format = match header.extensions.backing_format().as_deref() {
            Some("raw") => Format::Raw,
            Some("qcow2") => Format::Qcow2,
            Some(other) => {
                return unsupported(format!(
                    "the backing file is of format {other:?}, which is not read here"
                ));
            }
            None => {
                return unsupported(
                    "the image does not say the format of its backing file, which is never guessed"
                        .into(),
                )
                .map_err(|error: Error| {
                    error.advice("set it: qemu-img rebase -u -F FORMAT -b FILE IMAGE")
                });
            }
        };
        let place = beside(path, name).map_err(|error| error.at(path))?;
        layer = layer.with_backing(open_in_chain(&place, Some(format), follow, depth + 1)?);
    }
    Ok(layer)
}

/// A name in an image is a path from its folder, or a protocol and what that wants.
pub(crate) fn beside(image: &Path, name: &Path) -> Result<PathBuf> {
    let bytes = name.as_os_str().as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let protocol = bytes.iter().position(|byte| *byte == b':');
    if protocol.is_some_and(|end| end > 0 && bytes[..end].iter().all(is_word)) {
        return Err(Error::new(ErrorKind::Unsupported).detail(format!(
            "{} is no path but a protocol of QEMU",
            name.display()
        )));
    }
    Ok(image.parent().unwrap_or(Path::new("")).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_from_the_folder_of_the_image() {
        let image = Path::new("/srv/vm/disk.qcow2");
        let path = |name: &str| beside(image, Path::new(name)).unwrap();
        assert_eq!(path("base.raw"), Path::new("/srv/vm/base.raw"));
        assert_eq!(path("/base.raw"), Path::new("/base.raw"));
        for name in [
            "nbd://host/x",
            "json:{\"driver\":\"raw\"}",
            "file:/etc/passwd",
        ] {
            let error = beside(image, Path::new(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }
}
