//! The errors of this crate: which field of which structure is invalid, and why.
//!
//! The structure comes first in the message, and the caller adds its location
//! ([`in_range`](extant_space::Error::in_range)).

use std::fmt::Display;
use std::ops::RangeInclusive;

use extant_space::{Corruption, Error, ErrorKind, Result};

/// `structure` contradicts itself or the rest of the file system.
#[cold]
pub(crate) fn corrupt(structure: impl Display, problem: impl Display) -> Error {
    let corruption = Corruption::other(structure.to_string(), problem.to_string());
    Error::corrupt(corruption, format!("{structure}: {problem}"))
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
    Err(wrong_checksum(&structure, stored, computed))
}

#[cold]
#[inline(never)]
fn wrong_checksum(structure: &dyn Display, stored: u32, computed: u32) -> Error {
    let line = format!("{structure}: checksum is {stored:#x}, its bytes give {computed:#x}");
    Error::corrupt(Corruption::checksum(structure.to_string()), line)
}

/// A number outside what the format allows.
#[inline]
pub(crate) fn check_range(
    structure: impl Display,
    field: &'static str,
    value: u64,
    allowed: RangeInclusive<u64>,
) -> Result<()> {
    if allowed.contains(&value) {
        return Ok(());
    }
    Err(outside(&structure, field, value, &allowed))
}

#[cold]
#[inline(never)]
fn outside(
    structure: &dyn Display,
    field: &'static str,
    value: u64,
    allowed: &RangeInclusive<u64>,
) -> Error {
    let (least, most) = (allowed.start(), allowed.end());
    let line = format!("{structure}: {field} is {value}, outside {least} to {most}");
    Error::corrupt(Corruption::range(structure.to_string(), field), line)
}
