//! A request that was judged: what is to be done, or why it is not.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_blockdev::{Geometry, Persistence, Speed, Unmap, Zeroing};
use extant_space::ByteRange;

use super::Transmission;
use crate::wire::error::NbdError;
use crate::wire::reply::{ReplyStyle, ReplyTo};
use crate::wire::request::{RequestHeader, command, command_flag as flag};

/// How long commands may take, as those of a batch wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// What clients wait for, and devices are made for.
    Transfer,
    /// Anything that may take long: syncs, changes of space, looking at space.
    Heavy,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write(Persistence),
    Flush,
    Trim(Persistence),
    Cache,
    WriteZeroes(Zeroing),
    BlockStatus {
        descriptors: Descriptors,
        selection: Selection,
    },
    Refuse(NbdError, &'static str),
}

/// How many descriptors of a context a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptors {
    One,
    Many,
}

/// Which contexts a client wants to hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    All,
    /// Those in the payload, which also has the length.
    Payload,
}

#[derive(Debug)]
pub(super) struct Command {
    pub to: ReplyTo,
    pub length: u64,
    pub action: Action,
    /// Where its data is, in the memory of its batch.
    pub memory: Range<usize>,
}

impl Action {
    /// Judges a request by itself; `geometry` is that of now.
    pub(super) fn of(
        header: &RequestHeader,
        transmission: &Transmission<'_>,
        geometry: &Geometry,
    ) -> Self {
        match judge(header, transmission, geometry) {
            Ok(action) => action,
            Err((error, words)) => Self::Refuse(error, words),
        }
    }

    pub(super) fn class(self) -> Class {
        match self {
            Self::Read | Self::Write(Persistence::Cached) | Self::Refuse(..) => Class::Transfer,
            _ => Class::Heavy,
        }
    }
}

impl Command {
    /// The bytes it is about, which were judged to be bytes of the export.
    pub(super) fn range(&self) -> ByteRange {
        ByteRange::new(self.to.offset, self.to.offset + self.length)
    }
}

fn judge(
    header: &RequestHeader,
    transmission: &Transmission<'_>,
    geometry: &Geometry,
) -> Result<Action, (NbdError, &'static str)> {
    let agreement = transmission.agreement;
    if transmission.is_stopping.load(Ordering::Relaxed) {
        return Err((NbdError::Shutdown, "the server is shutting down"));
    }
    let valid = valid_flags(header.command, agreement.style)
        .ok_or((NbdError::Invalid, "unknown command"))?;
    if header.flags & !valid != 0 {
        return Err((NbdError::Invalid, "a flag that the command does not have"));
    }
    let has = |flag| header.flags & flag != 0;
    let persistence = if has(flag::FUA) {
        Persistence::Fua
    } else {
        Persistence::Cached
    };
    let action = match header.command {
        command::READ => Action::Read,
        command::WRITE => Action::Write(persistence),
        command::FLUSH => Action::Flush,
        command::TRIM => Action::Trim(persistence),
        command::CACHE => Action::Cache,
        command::WRITE_ZEROES => Action::WriteZeroes(Zeroing {
            unmap: if has(flag::NO_HOLE) || agreement.export.keeps_space() {
                Unmap::Forbidden
            } else {
                Unmap::Allowed
            },
            speed: if has(flag::FAST_ZERO) {
                Speed::OnlyIfFast
            } else {
                Speed::Any
            },
            persistence,
        }),
        _ => Action::BlockStatus {
            descriptors: if has(flag::REQ_ONE) {
                Descriptors::One
            } else {
                Descriptors::Many
            },
            selection: if has(flag::PAYLOAD_LEN) {
                Selection::Payload
            } else {
                Selection::All
            },
        },
    };
    admit(header, action, transmission, geometry)?;
    Ok(action)
}

/// Flags that may stand with a command; `None` for one that is unknown.
fn valid_flags(command: u16, style: ReplyStyle) -> Option<u16> {
    let extended = |flags| match style {
        ReplyStyle::Extended => flags,
        _ => 0,
    };
    let structured = |flags| match style {
        ReplyStyle::Simple => 0,
        _ => flags,
    };
    Some(match command {
        command::READ => flag::FUA | structured(flag::DF),
        command::WRITE => flag::FUA | extended(flag::PAYLOAD_LEN),
        command::FLUSH | command::TRIM | command::CACHE => flag::FUA,
        command::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        command::BLOCK_STATUS => flag::FUA | flag::REQ_ONE | extended(flag::PAYLOAD_LEN),
        _ => return None,
    })
}

/// Refuses what the export, or the agreement with the client, does not have.
fn admit(
    header: &RequestHeader,
    action: Action,
    transmission: &Transmission<'_>,
    geometry: &Geometry,
) -> Result<(), (NbdError, &'static str)> {
    let changes = matches!(
        action,
        Action::Write(_) | Action::Trim(_) | Action::WriteZeroes(_)
    );
    if changes && transmission.agreement.export.is_read_only(geometry) {
        return Err((NbdError::Permission, "the export is read-only"));
    }
    if matches!(action, Action::Read | Action::Write(_))
        && header.length > u64::from(transmission.request_max)
    {
        return Err(match header.flags & flag::DF {
            0 => (NbdError::Invalid, "a longer request than the server takes"),
            _ => (NbdError::Overflow, "too long for one piece"),
        });
    }
    match action {
        Action::Flush if header.offset != 0 || header.length != 0 => {
            return Err((NbdError::Invalid, "a flush has no range"));
        }
        Action::Trim(_) if transmission.agreement.export.keeps_space() => {
            return Err((NbdError::Invalid, "trims are not offered"));
        }
        Action::BlockStatus { .. } if transmission.agreement.contexts.is_empty() => {
            return Err((NbdError::Invalid, "no metadata context was chosen"));
        }
        Action::BlockStatus {
            selection: Selection::Payload,
            ..
        } => {
            // Of the length only the payload knows.
            let contexts = transmission.agreement.contexts.len() as u64;
            return match header.length {
                length if (8..=8 + 4 * contexts).contains(&length) && length % 4 == 0 => Ok(()),
                _ => Err((NbdError::Invalid, "a payload of another size")),
            };
        }
        Action::BlockStatus { .. } if header.length == 0 => {
            return Err((NbdError::Invalid, "the status of no bytes"));
        }
        _ => {}
    }
    if is_inside(header.offset, header.length, geometry) {
        return Ok(());
    }
    Err(match action {
        Action::Write(_) | Action::WriteZeroes(_) => {
            (NbdError::NoSpace, "past the end of the export")
        }
        _ => (NbdError::Invalid, "past the end of the export"),
    })
}

pub(super) fn is_inside(offset: u64, length: u64, geometry: &Geometry) -> bool {
    offset
        .checked_add(length)
        .is_some_and(|end| end <= geometry.size)
}
