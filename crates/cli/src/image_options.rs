//! Options of images in QEMU's syntax: `-o cluster_size=2M,compat=1.1`.
//!
//! A comma in a value is written twice, as for qemu-img. Unsupported options are refused by name; a
//! word that QEMU does not have either is an error of the arguments.

use std::str::FromStr;

use extant_image::format::{Compression, Version};
use extant_image::{BackingFile, DataFile, Format, Preallocation, Qcow2Options};
use extant_space::{ByteSize, Error, ErrorKind, Result};

/// Parsed options.
#[derive(Debug, Default)]
pub struct ImageOptionList {
    /// `preallocation`, if it is among them.
    pub preallocation: Option<Preallocation>,
    /// The options of qcow2.
    pub qcow2: Qcow2Options,
    /// The first word that only qcow2 has.
    only_qcow2: Option<String>,
}

/// Answer to `-o help`.
pub const HELP_WORD: &str = "\
Options of qcow2 (-o NAME=VALUE,...):
  preallocation=off|metadata|falloc|full   what is done about its space; raw: off, falloc, full
  cluster_size=SIZE        512 to 2M, a power of two (64k)
  refcount_bits=COUNT      1 to 64, a power of two (16)
  compat=0.10|1.1          version 2 or 3 (1.1)
  lazy_refcounts=on|off    refcounts may be written later (off)
  compression_type=zlib|zstd
  backing_file=NAME        what is read where the image has nothing
  backing_fmt=raw|qcow2    its format, which is never guessed
  data_file=NAME           where the data of the guest is
  data_file_raw=on|off     the data file reads as the guest does (off)";

/// The argument requests the list of options.
pub fn asks_for_help(arguments: &[String]) -> bool {
    arguments
        .iter()
        .any(|argument| matches!(argument.as_str(), "help" | "?"))
}

/// Options of qemu-img that are not supported here.
const REFUSED: [&str; 6] = [
    "encryption",
    "encrypt",
    "extended_l2",
    "keep_data_file",
    "extent_size_hint",
    "nocow",
];

/// Options that are known, as they are typed.
pub const NAMES: &[&str] = &[
    "cluster_size=",
    "refcount_bits=",
    "compat=",
    "lazy_refcounts=",
    "compression_type=",
    "backing_file=",
    "backing_fmt=",
    "data_file=",
    "data_file_raw=",
    "preallocation=",
];

impl ImageOptionList {
    /// Reads all `-o` arguments, for an image of `format`.
    ///
    /// # Errors
    /// `InvalidArgument` for invalid names and values, `Unsupported` for options not supported
    /// here.
    pub fn parse(arguments: &[String], format: Format) -> Result<Self> {
        let mut words = Self::default();
        let mut backing = (None, None);
        let mut data = (None, false);
        for pair in arguments.iter().flat_map(|argument| split(argument)) {
            if pair.is_empty() {
                return Err(invalid("an option (-o) is empty").advice("-o help lists them"));
            }
            let (name, value) = pair.split_once('=').unwrap_or((&pair, "on"));
            words.take(name, value, &mut backing, &mut data)?;
        }
        if let (Format::Raw, Some(word)) = (format, &words.only_qcow2) {
            return Err(
                invalid(format!("-o {word} is for qcow2, and the image is raw"))
                    .advice("--format qcow2"),
            );
        }
        words.qcow2.backing = match backing {
            (Some(name), Some(format)) => Some(BackingFile { name, format }),
            (Some(_), None) => {
                return Err(invalid(
                    "-o backing_file needs backing_fmt: its format is never guessed",
                ));
            }
            (None, Some(_)) => return Err(invalid("-o backing_fmt needs backing_file")),
            (None, None) => None,
        };
        words.qcow2.data_file = match data {
            (Some(name), is_raw) => Some(DataFile { name, is_raw }),
            (None, true) => return Err(invalid("-o data_file_raw needs data_file")),
            (None, false) => None,
        };
        Ok(words)
    }

    /// Adds a backing file given by a separate argument, for an image of `format`.
    ///
    /// # Errors
    /// `InvalidArgument` if the options name one as well, and for images that can have none.
    pub fn set_backing(&mut self, name: &str, backing: Format, format: Format) -> Result<()> {
        if format == Format::Raw {
            return Err(invalid(
                "a backing file is for qcow2, and the image is raw".to_owned(),
            ));
        }
        if self.qcow2.backing.is_some() {
            return Err(invalid(
                "-o backing_file and --backing exclude each other".to_owned(),
            ));
        }
        self.qcow2.backing = Some(BackingFile {
            name: name.into(),
            format: backing.name().to_owned(),
        });
        Ok(())
    }

    fn take(
        &mut self,
        name: &str,
        value: &str,
        backing: &mut (Option<std::path::PathBuf>, Option<String>),
        data: &mut (Option<std::path::PathBuf>, bool),
    ) -> Result<()> {
        let wrong = |wanted: &str| invalid(format!("-o {name}={value}: {wanted} is wanted"));
        if name != "preallocation" {
            self.only_qcow2.get_or_insert_with(|| name.to_owned());
        }
        match name {
            "preallocation" => {
                let mode = Preallocation::ALL
                    .into_iter()
                    .find(|mode| mode.name() == value);
                let mode = mode.ok_or_else(|| wrong("off, metadata, falloc or full"))?;
                self.preallocation = Some(mode);
            }
            "cluster_size" => {
                let size = ByteSize::from_str(value).map_err(|_| wrong("a size"))?;
                self.qcow2.cluster_bytes = size.0;
            }
            "refcount_bits" => {
                self.qcow2.refcount_bits = value.parse().map_err(|_| wrong("a number"))?;
            }
            "compat" => {
                self.qcow2.version = match value {
                    "0.10" | "v2" => Version::V2,
                    "1.1" | "v3" => Version::V3,
                    _ => return Err(wrong("0.10 or 1.1")),
                };
            }
            "lazy_refcounts" => {
                self.qcow2.lazy_refcounts = switch(value).ok_or_else(|| wrong("on or off"))?;
            }
            "compression_type" => {
                self.qcow2.compression = match value {
                    "zlib" => Compression::Zlib,
                    "zstd" => Compression::Zstd,
                    _ => return Err(wrong("zlib or zstd")),
                };
            }
            "backing_file" => backing.0 = Some(value.into()),
            "backing_fmt" => backing.1 = Some(value.to_owned()),
            "data_file" => data.0 = Some(value.into()),
            "data_file_raw" => data.1 = switch(value).ok_or_else(|| wrong("on or off"))?,
            _ => {
                let group = name.split('.').next().unwrap_or(name);
                let is_off = switch(value) == Some(false);
                return match REFUSED.contains(&group) {
                    true if is_off => Ok(()),
                    true => Err(Error::new(ErrorKind::Unsupported)
                        .detail(format!("-o {name} is not supported"))),
                    false => Err(invalid(format!("-o {name} is no option of qcow2 or raw"))),
                };
            }
        }
        Ok(())
    }
}

fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    }
}

/// Cuts at commas; two are one that is kept.
fn split(argument: &str) -> Vec<String> {
    let mut pairs = vec![String::new()];
    let mut letters = argument.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != ',' {
            pairs.last_mut().expect("at least one").push(letter);
        } else if letters.next_if_eq(&',').is_some() {
            pairs.last_mut().expect("at least one").push(',');
        } else {
            pairs.push(String::new());
        }
    }
    pairs
}

fn invalid(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument).detail(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<ImageOptionList> {
        ImageOptionList::parse(&[words.to_owned()], Format::Qcow2)
    }

    #[test]
    fn commas_written_twice_belong_to_the_value() {
        let words = parse("backing_file=a,,b.raw,backing_fmt=raw,cluster_size=2M").unwrap();
        let backing = words.qcow2.backing.unwrap();
        assert_eq!(backing.name.to_str(), Some("a,b.raw"));
        assert_eq!(words.qcow2.cluster_bytes, 2 << 20);
    }

    #[test]
    fn later_words_win_and_a_switch_alone_is_on() {
        let arguments = ["lazy_refcounts,refcount_bits=8", "refcount_bits=1"];
        let words = ImageOptionList::parse(&arguments.map(str::to_owned), Format::Qcow2).unwrap();
        assert!(words.qcow2.lazy_refcounts);
        assert_eq!(words.qcow2.refcount_bits, 1);
    }

    #[test]
    fn wrong_words_are_named() {
        for (words, kind, place) in [
            ("nonsense=1", ErrorKind::InvalidArgument, "-o nonsense"),
            (",", ErrorKind::InvalidArgument, "-o help"),
            ("", ErrorKind::InvalidArgument, "-o help"),
            ("compat=1.1,", ErrorKind::InvalidArgument, "-o help"),
            ("compat=2", ErrorKind::InvalidArgument, "0.10 or 1.1"),
            (
                "cluster_size=x",
                ErrorKind::InvalidArgument,
                "cluster_size=x",
            ),
            ("backing_file=a", ErrorKind::InvalidArgument, "backing_fmt"),
            (
                "backing_fmt=raw",
                ErrorKind::InvalidArgument,
                "backing_file",
            ),
            ("data_file_raw=on", ErrorKind::InvalidArgument, "data_file"),
            ("extended_l2=on", ErrorKind::Unsupported, "extended_l2"),
            (
                "encrypt.format=luks",
                ErrorKind::Unsupported,
                "encrypt.format",
            ),
        ] {
            let error = parse(words).unwrap_err();
            assert_eq!(error.kind(), kind, "{words}");
            assert!(error.to_string().contains(place), "{words}: {error}");
        }
        assert!(parse("extended_l2=off").is_ok());
        let error = ImageOptionList::parse(&["compat=1.1".to_owned()], Format::Raw).unwrap_err();
        assert!(error.to_string().contains("-o compat is for qcow2"));
    }
}
