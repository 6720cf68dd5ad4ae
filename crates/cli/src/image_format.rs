//! Format of an image, for every command: the value of `--format`, otherwise detection from name
//! and contents (`extant_image::detect`). Refusals say which option settles it.

use std::path::Path;

use clap::ValueEnum;
use extant_image::detect::{self, Kind, Purpose};
use extant_image::{Format, Preallocation};
use extant_space::{Error, ErrorKind, Result, SpaceFile};

/// Modes of preallocation, by QEMU's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Nothing: the file is sparse
    Off,
    /// Every cluster is mapped, the file is sparse (qcow2)
    Metadata,
    /// Space is reserved, unwritten
    Falloc,
    /// Space is written with zeros: later writes change no metadata
    Full,
}

impl From<Mode> for Preallocation {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Metadata => Self::Metadata,
            Mode::Falloc => Self::Falloc,
            Mode::Full => Self::Full,
        }
    }
}

/// Formats of images, by QEMU's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ImageFormat {
    /// The guest's bytes, and nothing else
    Raw,
    /// QEMU's format
    Qcow2,
}

impl From<ImageFormat> for Format {
    fn from(format: ImageFormat) -> Self {
        match format {
            ImageFormat::Raw => Self::Raw,
            ImageFormat::Qcow2 => Self::Qcow2,
        }
    }
}

impl From<Format> for ImageFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Raw => Self::Raw,
            Format::Qcow2 => Self::Qcow2,
        }
    }
}

/// The format of a new image.
///
/// # Errors
/// `Unsupported` for names of formats that are not made here.
pub fn of_new(path: &Path, said: Option<ImageFormat>) -> Result<Format> {
    match said {
        Some(format) => Ok(format.into()),
        None => detect::format_of_new(path).map_err(|error| {
            error
                .at(path)
                .advice("--format raw or qcow2 makes such a file under this name all the same")
        }),
    }
}

/// The format of the image in `file`, which has the name `path`.
///
/// # Errors
/// `Unsupported` where name and contents contradict each other or are of a format that is not read
/// here; those of reading.
pub fn of_existing(
    path: &Path,
    said: Option<Format>,
    file: &dyn SpaceFile,
    purpose: Purpose,
) -> Result<Format> {
    detect::format_of_existing(path, said, file, purpose).map_err(|error| {
        match (error.kind(), detect::of_file(file)) {
            (ErrorKind::Unsupported, Ok(contents)) => advise(error, path, contents),
            _ => error,
        }
    })
}

/// Kind of a file, for commands that work on files as well as on images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Its bytes are taken literally.
    File,
    /// The guest's disk in the qcow2 file is meant.
    Disk,
}

/// Whether `file` is meant, or the disk in it. Compressed files are files.
///
/// # Errors
/// As [`of_existing`], for a use of the image.
pub fn meaning(path: &Path, said: Option<Format>, file: &dyn SpaceFile) -> Result<Meaning> {
    let format = match said {
        Some(format) => format,
        None => {
            let contents = detect::of_file(file)?;
            let is_image_by_name = detect::of_name(path) == Some(Kind::Qcow2);
            match detect::of_both(path, contents) {
                None | Some(Kind::Compressed(_)) if !is_image_by_name => Format::Raw,
                _ => detect::format_of(path, contents, Purpose::Use)
                    .map_err(|error| advise(error, path, contents))?,
            }
        }
    };
    Ok(match format {
        Format::Raw => Meaning::File,
        Format::Qcow2 => Meaning::Disk,
    })
}

/// A remark if the name suggests another format than the detected one.
pub fn disagreement(path: &Path, found: Format) -> Option<String> {
    match (detect::of_name(path), found) {
        (Some(Kind::Qcow2), Format::Raw) => {
            Some("its name is that of a qcow2 image, and its contents are not".to_owned())
        }
        (Some(kind @ Kind::Foreign(_)), _) => Some(format!(
            "its name is that of {}, and its contents are {found}",
            kind.described()
        )),
        _ => None,
    }
}

fn advise(error: Error, path: &Path, contents: Option<Kind>) -> Error {
    let advice = match detect::of_both(path, contents) {
        Some(Kind::Qcow2) => "--format qcow2 if you know who made it, else --format raw",
        Some(Kind::Foreign(_)) => {
            "qemu-img convert makes a qcow2 or raw image of it; --format raw takes its bytes as they are"
        }
        Some(Kind::Compressed(_)) => "unpack it first; --format raw takes its bytes as they are",
        None => "--format raw takes its bytes as they are",
    };
    match error.kind() {
        ErrorKind::Unsupported => error.advice(advice),
        _ => error,
    }
}
