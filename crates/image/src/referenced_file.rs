//! Referenced files: the backing file and the data file that an image names, their paths and
//! formats.
//!
//! As in QEMU, a relative name of a backing file begins in the directory of the image, and one of a
//! data file in the current directory.
//!
//! The creator of an image chooses these names. Callers must have permission to follow them.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use extant_space::{Error, ErrorKind, Result};
use extant_sys::identity::Identity;

use crate::format::Header;
use crate::image_format::Format;
use crate::options::ImageOptions;

/// Longest chain of images; QEMU makes chains of a few.
const CHAIN_MAX: u32 = 64;

/// The format of the backing file that `header` names, the `depth`th of the chain.
///
/// # Errors
/// `Unsupported` for formats that cannot be read here, for a missing format, and for endless
/// chains.
pub(crate) fn backing_format(header: &Header, depth: u32) -> Result<Format> {
    let unsupported = |detail: String| Error::new(ErrorKind::Unsupported).detail(detail);
    if depth >= CHAIN_MAX {
        return Err(unsupported(format!(
            "more than {CHAIN_MAX} backing files, or they lead to each other"
        )));
    }
    match header.extensions.backing_format() {
        Some(format) => known_format(&format),
        None => Err(unsupported(
            "the image does not say the format of its backing file, which is never guessed".into(),
        )
        .advice("set it: qemu-img rebase -u -F FORMAT -b FILE IMAGE")),
    }
}

/// The path and format of the backing file that the image at `path` names, the `depth`th of its
/// chain.
///
/// # Errors
/// Those of an unsupported format, and of a name that is no path.
pub fn backing_of(path: &Path, header: &Header, depth: u32) -> Result<Option<(PathBuf, Format)>> {
    let Some(name) = &header.backing_file else {
        return Ok(None);
    };
    let format = backing_format(header, depth)?;
    Ok(Some((beside(path, name)?, format)))
}

/// The format of a backing file, by QEMU's word.
///
/// # Errors
/// `Unsupported` for those that are not read here.
pub(crate) fn known_format(word: &str) -> Result<Format> {
    match word {
        "qcow2" => Ok(Format::Qcow2),
        "raw" => Ok(Format::Raw),
        other => Err(Error::new(ErrorKind::Unsupported).detail(format!(
            "the backing file is of format {other:?}, which is not read here"
        ))),
    }
}

/// The path of the backing file `name` of the image at `image`.
///
/// # Errors
/// As [`refuse_protocol`].
pub(crate) fn beside(image: &Path, name: &Path) -> Result<PathBuf> {
    refuse_protocol(name)?;
    Ok(image.parent().unwrap_or(Path::new("")).join(name))
}

/// The path of the data file `name` of an image.
///
/// # Errors
/// As [`refuse_protocol`].
pub(crate) fn data_file_path(name: &Path) -> Result<&Path> {
    refuse_protocol(name)?;
    Ok(name)
}

/// An error for a data file that does not exist.
pub(crate) fn explain_missing_data(error: Error, name: &Path) -> Error {
    if error.kind() == ErrorKind::NotFound && name.is_relative() {
        error.advice("a relative name of a data file begins in the current directory, as in QEMU")
    } else {
        error
    }
}

/// An error for an image whose data is in another file without a name.
pub(crate) fn unnamed_data_file() -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .detail("the image does not name its data file, which is required")
        .advice(
            "name it: qemu-img amend -o data_file=NAME --image-opts \
             driver=qcow2,file.filename=IMAGE,data-file.filename=NAME",
        )
}

/// A name in an image is a path, or a protocol with its parameters.
///
/// # Errors
/// `Unsupported` for a protocol.
fn refuse_protocol(name: &Path) -> Result<()> {
    let bytes = name.as_os_str().as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
    let protocol = bytes.iter().position(|byte| *byte == b':');
    if protocol.is_some_and(|end| end > 0 && bytes[..end].iter().all(is_word)) {
        return Err(Error::new(ErrorKind::Unsupported).detail(format!(
            "{} is no path but a protocol of QEMU",
            name.display()
        )));
    }
    Ok(())
}

/// Refuses a backing file that does not exist, or that the image at `image` replaces. Targets of
/// QEMU protocols are not checked.
///
/// # Errors
/// `NotFound`, `InvalidArgument` for the image itself.
pub fn check_backing(image: &Path, options: &ImageOptions) -> Result<()> {
    let Some(backing) = options.qcow2.backing.as_ref() else {
        return Ok(());
    };
    let Ok(place) = beside(image, &backing.name) else {
        return Ok(());
    };
    let found = Identity::of(&place).map_err(|source| {
        Error::from(source)
            .at(&place)
            .detail("the backing file does not exist")
            .advice("a relative name begins in the directory of the image")
    })?;
    match Identity::of(image) {
        Ok(replaced) if replaced == found => Err(Error::new(ErrorKind::InvalidArgument)
            .at(image)
            .detail("an image cannot be its own backing file")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_paths_from_the_directory_of_the_image_or_the_current_one() {
        let image = Path::new("/srv/vm/disk.qcow2");
        let path = |name: &str| beside(image, Path::new(name)).unwrap();
        assert_eq!(path("base.raw"), Path::new("/srv/vm/base.raw"));
        assert_eq!(path("/base.raw"), Path::new("/base.raw"));
        assert_eq!(path("./a:b"), Path::new("/srv/vm/./a:b"));
        for name in [
            "nbd://host/x",
            "json:{\"driver\":\"raw\"}",
            "file:/etc/passwd",
        ] {
            let error = beside(image, Path::new(name)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            data_file_path(Path::new(name)).unwrap_err();
        }
        let data = Path::new("data.raw");
        assert_eq!(data_file_path(data).unwrap(), data);
    }
}
