//! Format detection by name and first bytes: one detector for every command that opens or names a
//! disk image.
//!
//! Model: the extension of a name and the first bytes of a file each map to a [`Kind`]. Neither is
//! proof. A guest writes the first bytes of its raw disk, so contents alone never make a raw image
//! a qcow2 image that is changed or served; they serve to refuse, and to choose a format for
//! read-only inspection.
//!
//! | name | contents | inspected | changed or copied |
//! |---|---|---|---|
//! | .qcow2 | qcow2 | qcow2 | qcow2 |
//! | .qcow2 | nothing known | raw | refused |
//! | other | qcow2 | qcow2 | refused; qcow2 on a block device |
//! | other | nothing known | raw | raw |
//! | any | foreign, compressed | refused | refused |
//! | .vhd, .vpc | nothing known (a fixed VHD) | refused | refused |
//!
//! With an explicit format (`--format`) there is no detection.

use std::path::Path;

use extant_space::{Error, ErrorKind, Result, SpaceFile};

use crate::image_format::Format;

/// Number of first bytes that [`of_contents`] needs.
pub const HEAD_BYTES: usize = 4096;

/// Format indicated by a name or by contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// QEMU's format, version 2 or 3.
    Qcow2,
    /// A disk image of another format, which holds the blocks of the disk elsewhere than where they
    /// are read.
    Foreign(&'static str),
    /// A compressed file or an archive: no disk image until it is unpacked.
    Compressed(&'static str),
}

/// The use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is only described.
    Look,
    /// It is changed, or its disk is copied or served.
    Use,
}

/// Kind, place and bytes of signatures.
const SIGNATURES: [(Kind, usize, &[u8]); 21] = [
    (Kind::Foreign("qcow (version 1)"), 0, b"QFI\xfb\0\0\0\x01"),
    (Kind::Qcow2, 0, b"QFI\xfb"),
    (Kind::Foreign("QED"), 0, b"QED\0"),
    (Kind::Foreign("VMDK"), 0, b"KDMV"),
    (Kind::Foreign("VMDK"), 0, b"COWD"),
    (Kind::Foreign("VMDK"), 0, b"# Disk DescriptorFile"),
    (Kind::Foreign("VHDX"), 0, b"vhdxfile"),
    (Kind::Foreign("VHD"), 0, b"conectix"),
    (Kind::Foreign("VDI"), 64, &[0x7f, 0x10, 0xda, 0xbe]),
    (Kind::Foreign("Parallels"), 0, b"WithoutFreeSpace"),
    (Kind::Foreign("Parallels"), 0, b"WithouFreSpacExt"),
    (Kind::Foreign("Bochs"), 0, b"Bochs Virtual HD Image"),
    (Kind::Foreign("cloop"), 0, b"#!/bin/sh\n#V2.0 Format"),
    (Kind::Compressed("gzip"), 0, &[0x1f, 0x8b, 0x08]),
    (Kind::Compressed("xz"), 0, b"\xfd7zXZ\0"),
    (Kind::Compressed("zstd"), 0, &[0x28, 0xb5, 0x2f, 0xfd]),
    (Kind::Compressed("bzip2"), 4, b"1AY&SY"),
    (Kind::Compressed("lz4"), 0, &[0x04, 0x22, 0x4d, 0x18]),
    (Kind::Compressed("lzop"), 0, b"\x89LZO\0\r\n\x1a\n"),
    (Kind::Compressed("zip"), 0, b"PK\x03\x04"),
    (Kind::Compressed("7z"), 0, b"7z\xbc\xaf\x27\x1c"),
];

/// Kinds by the ending of a name, in lower case.
const ENDINGS: [(&str, Kind); 19] = [
    ("qcow2", Kind::Qcow2),
    ("qcow", Kind::Qcow2),
    ("qed", Kind::Foreign("QED")),
    ("vmdk", Kind::Foreign("VMDK")),
    ("vhdx", Kind::Foreign("VHDX")),
    ("vhd", Kind::Foreign("VHD")),
    ("vpc", Kind::Foreign("VHD")),
    ("vdi", Kind::Foreign("VDI")),
    ("hdd", Kind::Foreign("Parallels")),
    ("hds", Kind::Foreign("Parallels")),
    ("dmg", Kind::Foreign("DMG")),
    ("gz", Kind::Compressed("gzip")),
    ("xz", Kind::Compressed("xz")),
    ("zst", Kind::Compressed("zstd")),
    ("bz2", Kind::Compressed("bzip2")),
    ("lz4", Kind::Compressed("lz4")),
    ("lzo", Kind::Compressed("lzop")),
    ("zip", Kind::Compressed("zip")),
    ("7z", Kind::Compressed("7z")),
];

/// The kind of the first bytes of a file; `None` if they are not recognised, as for most raw
/// images.
pub fn of_contents(head: &[u8]) -> Option<Kind> {
    let is_there =
        |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let found = SIGNATURES
        .iter()
        .find(|(_, at, bytes)| is_there(*at, bytes));
    found.map(|(kind, ..)| *kind)
}

/// The kind of a name's extension.
pub fn of_name(path: &Path) -> Option<Kind> {
    let ending = path.extension()?;
    let found = ENDINGS
        .iter()
        .find(|(known, _)| ending.eq_ignore_ascii_case(known));
    found.map(|(_, kind)| *kind)
}

/// The kind of the first bytes of `file`.
///
/// # Errors
/// Those of reading.
pub fn of_file(file: &dyn SpaceFile) -> Result<Option<Kind>> {
    let mut head = vec![0; HEAD_BYTES];
    let got = file.read_at(&mut head, 0)?;
    Ok(of_contents(&head[..got]))
}

/// The format of a new image, by its name.
///
/// # Errors
/// `Unsupported` where the name stands for something that is not made here.
pub fn format_of_new(path: &Path) -> Result<Format> {
    match of_name(path) {
        Some(Kind::Qcow2) => Ok(Format::Qcow2),
        None => Ok(Format::Raw),
        Some(kind) => Err(unsupported(format!(
            "its name is that of {}, which is not made here",
            kind.described()
        ))),
    }
}

/// Format of a file with this name and these contents.
pub fn of_both(path: &Path, contents: Option<Kind>) -> Option<Kind> {
    // The signature of a fixed VHD is at its end, where the disk of a guest may have anything.
    contents.or_else(|| of_name(path).filter(|kind| *kind == Kind::Foreign("VHD")))
}

/// The format of an existing image by the table above; `contents` are those of the file at `path`.
///
/// # Errors
/// `Unsupported` where name and contents contradict each other, or are those of another format.
pub fn format_of(path: &Path, contents: Option<Kind>, purpose: Purpose) -> Result<Format> {
    match (of_name(path), of_both(path, contents)) {
        (_, Some(kind @ (Kind::Foreign(_) | Kind::Compressed(_)))) => Err(kind.refused()),
        (Some(Kind::Qcow2), Some(Kind::Qcow2)) => Ok(Format::Qcow2),
        (Some(Kind::Qcow2), None) if purpose == Purpose::Use => Err(unsupported(
            "its name is that of a qcow2 image, and its contents are not",
        )),
        (_, None) => Ok(Format::Raw),
        (_, Some(Kind::Qcow2)) if purpose == Purpose::Look || is_block_device(path) => {
            Ok(Format::Qcow2)
        }
        (_, Some(Kind::Qcow2)) => Err(unsupported(
            "it looks like a qcow2 image, but its name does not end with .qcow2",
        )),
    }
}

/// The format of the image in `file`, which has the name `path`: `said` if it is given, else by the
/// table above.
///
/// # Errors
/// As [`format_of`]; those of reading.
pub fn format_of_existing(
    path: &Path,
    said: Option<Format>,
    file: &dyn SpaceFile,
    purpose: Purpose,
) -> Result<Format> {
    match said {
        Some(format) => Ok(format),
        None => format_of(path, of_file(file)?, purpose),
    }
}

/// The format of contents without a name: unknown contents are raw.
///
/// # Errors
/// `Unsupported` for foreign images and compressed files.
pub fn format_of_contents(head: &[u8]) -> Result<Format> {
    match of_contents(head) {
        None => Ok(Format::Raw),
        Some(Kind::Qcow2) => Ok(Format::Qcow2),
        Some(kind) => Err(kind.refused()),
    }
}

impl Kind {
    /// With its article: `a qcow2 image`, `an xz-compressed file`.
    pub fn described(self) -> String {
        match self {
            Self::Qcow2 => "a qcow2 image".to_owned(),
            Self::Foreign(name) => format!("a {name} image"),
            Self::Compressed(name @ ("zip" | "7z")) => format!("a {name} archive"),
            Self::Compressed(name @ ("xz" | "lz4" | "lzop")) => {
                format!("an {name}-compressed file")
            }
            Self::Compressed(name) => format!("a {name}-compressed file"),
        }
    }

    /// The error of a command that needs the disk in such a file.
    pub fn refused(self) -> Error {
        unsupported(format!(
            "it looks like {}, which is not read here",
            self.described()
        ))
    }
}

fn is_block_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn unsupported(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported).detail(detail)
}

impl Format {
    /// The format that the suffix of a name selects; raw for an unknown suffix.
    pub fn of_name(path: &Path) -> Self {
        match of_name(path) {
            Some(Kind::Qcow2) => Self::Qcow2,
            _ => Self::Raw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_found_in_their_places_only_and_whole() {
        for (kind, at, bytes) in SIGNATURES {
            let mut head = vec![0; 512];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(of_contents(&head), Some(kind));
            assert_eq!(of_contents(&head[..at + bytes.len()]), Some(kind));
            assert_ne!(of_contents(&head[..at + bytes.len() - 1]), Some(kind));
            head.insert(0, 1);
            assert_eq!(of_contents(&head), None, "{kind:?}");
        }
        assert_eq!(of_contents(b""), None);
        assert_eq!(of_contents(&[0; HEAD_BYTES]), None);
    }

    #[test]
    fn endings_count_in_any_case_and_only_at_the_end() {
        let name = |name: &str| of_name(Path::new(name));
        assert_eq!(name("/a/vm.QCOW2"), Some(Kind::Qcow2));
        assert_eq!(name("vm.img.gz"), Some(Kind::Compressed("gzip")));
        assert_eq!(name("vm.vhd"), Some(Kind::Foreign("VHD")));
        for plain in ["qcow2", ".qcow2", "vm.raw", "vm.vmdk.raw", "vm.img", "vm"] {
            assert_eq!(name(plain), None, "{plain}");
            assert_eq!(format_of_new(Path::new(plain)).unwrap(), Format::Raw);
        }
        assert_eq!(format_of_new(Path::new("a.qcow")).unwrap(), Format::Qcow2);
        for foreign in ["a.vmdk", "a.img.xz"] {
            let error = format_of_new(Path::new(foreign)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
        }
    }

    #[test]
    fn name_and_contents_decide_together() {
        let (qcow2, vmdk, gzip) = (
            Some(Kind::Qcow2),
            Some(Kind::Foreign("VMDK")),
            Some(Kind::Compressed("gzip")),
        );
        // Name, contents, format for inspection, format for use; `None`: refused.
        for (name, contents, look, used) in [
            ("a.qcow2", qcow2, Some(Format::Qcow2), Some(Format::Qcow2)),
            ("a.qcow2", None, Some(Format::Raw), None),
            ("a.qcow2", vmdk, None, None),
            ("a.img", qcow2, Some(Format::Qcow2), None),
            ("a.vmdk", qcow2, Some(Format::Qcow2), None),
            ("a.img", None, Some(Format::Raw), Some(Format::Raw)),
            ("a-flat.vmdk", None, Some(Format::Raw), Some(Format::Raw)),
            ("a.vhd", None, None, None),
            ("a", vmdk, None, None),
            ("a.raw", gzip, None, None),
        ] {
            let path = Path::new(name);
            let found = |purpose| format_of(path, contents, purpose).ok();
            assert_eq!(found(Purpose::Look), look, "{name} {contents:?}");
            assert_eq!(found(Purpose::Use), used, "{name} {contents:?}");
        }
    }
}
