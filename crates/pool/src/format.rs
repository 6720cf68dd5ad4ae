//! The format of a volume, and its source.
//!
//! Guests write the content of raw volumes and can write any header. If the content were trusted, a
//! guest could turn its disk into a qcow2 image whose backing file is any file of the host. The
//! format is therefore the one given when the volume was made, stored as an extended attribute of
//! its file. Without the attribute the name decides, as in `extant create`. If the name does not
//! decide and the content looks like qcow2 or a foreign image, the format is unknown: operations
//! that depend on it are refused until the user has set it.
//!
//! Every process that may write to the file can set the attribute. A guest cannot.
//!
//! A raw volume is its file. Every other format is a module below.

pub(crate) mod qcow2;

use std::path::Path;

pub use extant_image::Format;
use extant_image::HeaderProbe;
use extant_image::detect::{self, Kind};
use extant_space::{Error, ErrorKind, Remedy, Result, SpaceFile};

use crate::name::VolumeName;
use crate::storage::{FORMAT_ATTRIBUTE, FileStat, Storage, VolumeFile};

/// Properties of a volume that are known without opening it as an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// `None`: it is not known.
    pub(crate) format: Option<Format>,
    /// Size of the guest's disk, bytes.
    pub(crate) capacity_bytes: u64,
    /// Size of the file when the guest has written its whole disk.
    pub(crate) promised_bytes: u64,
}

/// The format stored with a file.
enum StoredFormat {
    None,
    /// `None`: an unknown word.
    Value(Option<Format>),
}

impl StoredFormat {
    fn of(attribute: Option<Vec<u8>>) -> Self {
        match attribute {
            None => Self::None,
            Some(word) => Self::Value(
                str::from_utf8(&word)
                    .ok()
                    .and_then(|word| word.parse().ok()),
            ),
        }
    }
}

impl Facts {
    /// The properties of an open volume.
    pub(crate) fn of(file: &dyn VolumeFile, name: &VolumeName) -> Result<Self> {
        let stored = StoredFormat::of(file.attribute(FORMAT_ATTRIBUTE)?);
        let mut first = [0; HeaderProbe::BYTES];
        let got = file.read_at(&mut first, 0)?;
        Ok(Self::from_parts(stored, name, file.size()?, || {
            &first[..got]
        }))
    }

    /// The properties of content of a known `format`.
    pub(crate) fn of_content(file: &dyn SpaceFile, format: Format) -> Result<Self> {
        let mut first = [0; HeaderProbe::BYTES];
        let got = file.read_at(&mut first, 0)?;
        Ok(Self::of_known(format, file.size()?, || &first[..got]))
    }

    /// The properties of a listed volume. The name decides for an unreadable one.
    pub(crate) fn listed(storage: &dyn Storage, name: &VolumeName, stat: &FileStat) -> Self {
        let peek = storage.peek(name);
        let stored = StoredFormat::of(
            peek.as_ref()
                .and_then(|peek| peek.attribute(FORMAT_ATTRIBUTE)),
        );
        let first = &mut [0; HeaderProbe::BYTES];
        Self::from_parts(stored, name, stat.size_bytes, move || {
            let got = peek.map_or(0, |peek| peek.read(first));
            &first[..got]
        })
    }

    /// The content is asked for where it counts.
    fn from_parts<'a>(
        stored: StoredFormat,
        name: &VolumeName,
        size_bytes: u64,
        first: impl FnOnce() -> &'a [u8],
    ) -> Self {
        let plain = |format| Self {
            format,
            capacity_bytes: size_bytes,
            promised_bytes: size_bytes,
        };
        match (stored, format_of_name(name)) {
            (StoredFormat::Value(None), _) => plain(None),
            (StoredFormat::Value(Some(format)), _)
            | (StoredFormat::None, format @ Format::Qcow2) => {
                Self::of_known(format, size_bytes, first)
            }
            (StoredFormat::None, Format::Raw) => match detect::of_contents(first()) {
                Some(Kind::Qcow2 | Kind::Foreign(_)) => plain(None),
                Some(Kind::Compressed(_)) | None => plain(Some(Format::Raw)),
            },
        }
    }

    fn of_known<'a>(format: Format, size_bytes: u64, first: impl FnOnce() -> &'a [u8]) -> Self {
        let glance = match format {
            Format::Raw => None,
            // A damaged image is listed by its file; opening it reports the damage.
            Format::Qcow2 => HeaderProbe::of(first()),
        };
        Self {
            format: Some(format),
            capacity_bytes: glance.map_or(size_bytes, |glance| glance.virtual_bytes),
            promised_bytes: glance.map_or(size_bytes, |glance| glance.fully_allocated_bytes),
        }
    }
}

/// Size of a volume's file when the guest has written its whole disk.
pub(crate) fn promised_bytes(storage: &dyn Storage, name: &VolumeName, stat: &FileStat) -> u64 {
    let peek = storage.peek(name);
    let format = match StoredFormat::of(
        peek.as_ref()
            .and_then(|peek| peek.attribute(FORMAT_ATTRIBUTE)),
    ) {
        StoredFormat::Value(format) => format,
        StoredFormat::None => Some(format_of_name(name)),
    };
    match (format, peek) {
        (Some(Format::Qcow2), Some(peek)) => {
            let mut first = [0; HeaderProbe::BYTES];
            let got = peek.read(&mut first);
            let glance = HeaderProbe::of(&first[..got]);
            glance.map_or(stat.size_bytes, |glance| glance.fully_allocated_bytes)
        }
        _ => stat.size_bytes,
    }
}

/// The format of a volume, for operations that depend on it.
///
/// # Errors
/// `Unsupported` where it is not known.
pub(crate) fn known(file: &dyn VolumeFile, name: &VolumeName) -> Result<Format> {
    Facts::of(file, name)?
        .format
        .ok_or_else(|| unknown().at(file.path()))
}

fn unknown() -> Error {
    Error::new(ErrorKind::Unsupported)
        .detail("it looks like a qcow2 or foreign image, and no format was given")
        .remedy(Remedy::SetFormat)
}

/// The format that a name stands for.
pub(crate) fn format_of_name(name: &VolumeName) -> Format {
    Format::of_name(Path::new(name.as_str()))
}

/// Stores the format of the volume `name` with its file; to be synced.
///
/// # Errors
/// `Unsupported` if the file system has no attributes and the name stands for another format.
pub(crate) fn store_format(file: &dyn VolumeFile, name: &VolumeName, format: Format) -> Result<()> {
    match file.set_attribute(FORMAT_ATTRIBUTE, format.name().as_bytes()) {
        Err(error) if error.kind() == ErrorKind::Unsupported => check_name_implies(name, format),
        done => done,
    }
}

/// Without extended attributes, the name of a file must have the suffix of its format.
fn check_name_implies(name: &VolumeName, format: Format) -> Result<()> {
    if format_of_name(name) == format {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported)
        .detail(format!(
            "the file system keeps no attributes, so a volume of format {format} needs the suffix of the format"
        ))
        .advice("end the names of qcow2 volumes, and of no others, with .qcow2"))
}

/// The checks of imported content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trust {
    /// The image may name a backing file.
    pub(crate) backing: bool,
}

/// Refuses content that is not of `format`, or names files of the host without being trusted to.
///
/// # Errors
/// `InvalidArgument`, also for an image header that a volume cannot have.
pub(crate) fn check_content(file: &dyn SpaceFile, format: Format, trust: Trust) -> Result<()> {
    match format {
        Format::Raw => Ok(()),
        Format::Qcow2 => qcow2::check_content(file, trust),
    }
}

/// The format of imported content: the given one, or that of the volume's name.
///
/// # Errors
/// `InvalidArgument` if the content does not look raw and no format was given.
pub(crate) fn of_content(
    file: &dyn SpaceFile,
    given: Option<Format>,
    name: &VolumeName,
) -> Result<Format> {
    let format = given.unwrap_or_else(|| format_of_name(name));
    if given.is_some() || format == Format::Qcow2 {
        return Ok(format);
    }
    match detect::of_file(file)? {
        None => Ok(Format::Raw),
        Some(kind) => Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!(
                "it looks like {}, but the volume's name has another suffix",
                kind.described()
            ))
            .remedy(Remedy::NameFormat)),
    }
}

#[cfg(test)]
mod tests {
    use extant_image::format::Header;

    use super::*;
    use extant_image::{ImageOptions, NewImage};

    fn header(virtual_bytes: u64) -> Vec<u8> {
        let geometry = extant_image::format::Geometry::new(16, 4).unwrap();
        let header = Header::new(geometry, virtual_bytes);
        header.encode().unwrap()
    }

    fn judged(stored: Option<&str>, name: &str, content: &[u8]) -> Facts {
        let stored = StoredFormat::of(stored.map(|word| word.as_bytes().to_vec()));
        Facts::from_parts(stored, &name.parse().unwrap(), 4096, || content)
    }

    #[test]
    fn stated_format_precedes_the_name_and_content_is_ignored() {
        let image = header(1 << 30);
        for (stored, name, content, format) in [
            (Some("raw"), "a", &image[..], Some(Format::Raw)),
            (Some("raw"), "a.qcow2", &image, Some(Format::Raw)),
            (Some("qcow2"), "a", b"zeros", Some(Format::Qcow2)),
            (Some("vmdk"), "a", b"zeros", None),
            (Some(""), "a", b"zeros", None),
            (None, "a.qcow2", b"zeros", Some(Format::Qcow2)),
            (None, "a", b"zeros", Some(Format::Raw)),
            (None, "a", b"", Some(Format::Raw)),
            (None, "a", &image, None),
        ] {
            let facts = judged(stored, name, content);
            assert_eq!(facts.format, format, "{stored:?} {name}");
            assert_eq!(facts.capacity_bytes, 4096, "{stored:?} {name}");
        }
    }

    #[test]
    fn where_nothing_is_kept_with_a_file_its_name_says_the_format() {
        for (name, format, is_said) in [
            ("a", Format::Raw, true),
            ("a.qcow2", Format::Qcow2, true),
            ("a.qcow2", Format::Raw, false),
            ("a", Format::Qcow2, false),
        ] {
            let checked = check_name_implies(&name.parse().unwrap(), format);
            assert_eq!(checked.is_ok(), is_said, "{name} {format}");
        }
    }

    #[test]
    fn sizes_come_from_the_header_of_known_qcow2_files() {
        let options = ImageOptions::new(Format::Qcow2, 1 << 30);
        let measured = extant_image::measure(&options, 0).unwrap();
        let facts = judged(Some("qcow2"), "a", &header(1 << 30));
        assert_eq!(facts.capacity_bytes, 1 << 30);
        assert_eq!(facts.promised_bytes, measured.fully_allocated_bytes);
        assert!(NewImage::new(&options).unwrap().file_bytes() < facts.promised_bytes);
    }
}
