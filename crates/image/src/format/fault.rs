//! The errors of the format: which field is wrong, and how.

use std::fmt::Display;

use extant_space::{ByteRange, Corruption, Error, ErrorKind, Result};

/// `place` contradicts itself or the file.
#[cold]
pub(crate) fn corrupt(place: impl Display, problem: impl Display) -> Error {
    let corruption = Corruption::other(place.to_string(), problem.to_string());
    Error::corrupt(corruption, format!("qcow2 {place} {problem}"))
}

/// `place` asks for something that is not known here.
#[cold]
pub(crate) fn unsupported(place: impl Display, problem: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported).detail(format!("qcow2 {place} {problem}"))
}

/// The range of a table, which begins at a cluster boundary inside the file.
pub(crate) fn table_range(
    place: &str,
    offset: u64,
    length: u64,
    cluster_bytes: u64,
    file_bytes: u64,
) -> Result<ByteRange> {
    if !offset.is_multiple_of(cluster_bytes) {
        return Err(corrupt(
            place,
            format_args!("{offset:#x} is not at the start of a cluster"),
        ));
    }
    match ByteRange::at(offset, length) {
        Some(range) if range.end() <= file_bytes => Ok(range),
        _ => Err(corrupt(
            place,
            format_args!(
                "{offset:#x} with {length} bytes is past the end of the file ({file_bytes:#x})"
            ),
        )),
    }
}
