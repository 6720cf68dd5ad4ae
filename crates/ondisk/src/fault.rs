//! The errors of this crate: which field of which structure is invalid, and why.
//!
//! The structure comes first in the message, and the caller adds its location
//! ([`in_range`](extant_space::Error::in_range)).

use std::fmt::Display;
use std::ops::RangeInclusive;

use extant_space::{Error, ErrorKind, Result};

/// `structure` contradicts itself or the rest of the file system.
#[cold]
pub(crate) fn corrupt(structure: impl Display, problem: impl Display) -> Error {
    Error::new(ErrorKind::Corrupt).detail(format!("{structure}: {problem}"))
}

/// `structure` asks for something that is not known here.
pub(crate) fn unsupported(structure: impl Display, problem: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported).detail(format!("{structure}: {problem}"))
}

/// A sum that does not match.
pub(crate) fn check_sum(structure: impl Display, stored: u32, computed: u32) -> Result<()> {
    if stored == computed {
        return Ok(());
    }
    Err(corrupt(
        structure,
        format_args!("checksum is {stored:#x}, its bytes give {computed:#x}"),
    ))
}

/// A number outside what the format allows.
#[inline]
pub(crate) fn check_range(
    structure: impl Display,
    field: &str,
    value: u64,
    allowed: RangeInclusive<u64>,
) -> Result<()> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let (least, most) = allowed.into_inner();
    Err(corrupt(
        structure,
        format_args!("{field} is {value}, outside {least} to {most}"),
    ))
}
