//! Commands and options of qemu-img that Extant does not have, refused by name, with the
//! replacement.
//!
//! clap has only seen a word that it does not know; here it gets its meaning.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use extant_space::{Error, ErrorKind};

/// A command, and its replacement.
const COMMANDS: [(&str, &str); 9] = [
    (
        "amend",
        "extant image convert makes an image of another shape",
    ),
    ("bench", "extant serve, and a benchmark of its clients"),
    ("bitmap", "qemu-img bitmap"),
    (
        "commit",
        "extant image convert --chain makes one image of both",
    ),
    ("compare", "qemu-img compare"),
    ("dd", "extant image convert, and dd on the raw image"),
    (
        "rebase",
        "extant image convert --chain -B BACKING -F FORMAT makes an image over another backing file",
    ),
    (
        "snapshot",
        "qemu-img snapshot; extant keeps the snapshots that an image has",
    ),
    ("ls", "extant fs ls"),
];

/// The command (empty: any), an option, and its replacement.
const OPTIONS: [(&str, &str, &str); 16] = [
    (
        "convert",
        "-c",
        "clusters are never compressed; qemu-img convert -c",
    ),
    (
        "convert",
        "-C",
        "space is always copied by reading and writing",
    ),
    (
        "convert",
        "-n",
        "the new image is always made; extant serve and nbdcopy write to one that exists",
    ),
    (
        "convert",
        "--target-is-zero",
        "the new image is always made",
    ),
    ("convert", "-l", "qemu-img convert -l copies a snapshot"),
    (
        "convert",
        "--bitmaps",
        "bitmaps are not copied; qemu-img convert --bitmaps",
    ),
    ("convert", "--salvage", "an error of reading ends the copy"),
    (
        "convert",
        "--target-image-opts",
        "give the name of the file, and --to",
    ),
    ("measure", "-l", "qemu-img measure -l"),
    ("check", "-T", "images are read through the page cache"),
    ("convert", "-t", "--background keeps the page cache small"),
    ("convert", "-T", "images are read through the page cache"),
    ("create", "-e", "encrypted images are not made"),
    ("create", "-6", "-o compat=0.10"),
    (
        "",
        "--image-opts",
        "give the name of the file, and --format",
    ),
    (
        "",
        "--object",
        "encrypted images and secrets are not supported",
    ),
];

/// The error for a command line of `extant image` that failed with `error`, if it holds a command
/// or option that only qemu-img has.
pub fn refusal(arguments: &[OsString], error: &clap::Error) -> Option<Error> {
    let words: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
    if words.get(1) != Some(&"image") {
        return None;
    }
    let command = words.get(2).copied().unwrap_or_default();
    let named = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let (what, instead) = match (
        named(ContextKind::InvalidSubcommand),
        named(ContextKind::InvalidArg),
    ) {
        (Some(word), _) => {
            let found = COMMANDS.iter().find(|(name, _)| *name == word)?;
            (format!("image {word}"), found.1)
        }
        (None, Some(word)) => {
            let is_it = |(of, name, _): &&(&str, &str, &str)| {
                *name == word && (of.is_empty() || *of == command)
            };
            let found = OPTIONS.iter().find(is_it)?;
            (format!("{word} of qemu-img {command}"), found.2)
        }
        (None, None) => return None,
    };
    Some(
        Error::new(ErrorKind::InvalidArgument)
            .detail(format!("{what} is not supported"))
            .advice(instead),
    )
}
