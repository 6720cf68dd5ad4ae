//! A validated request: the action to run, or the reason for its refusal.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_blockdev::{DiscardPolicy, Geometry, Persistence, Speed, ZeroedSpace, Zeroing};
use extant_space::ByteRange;

use super::Transmission;
use crate::handshake::Context;
use extant_nbd::wire::error::NbdError;
use extant_nbd::wire::reply::{ReplyStyle, ReplyTo};
use extant_nbd::wire::request::{RequestHeader, command, command_flag as flag};

/// Expected cost of a command. Commands of one batch wait for each other, so a batch has one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Cached reads and writes, and refusals.
    Transfer,
    /// Commands that may take long: flush, FUA, trim, write zeroes, assign, cache, block status.
    Heavy,
}

/// Effect of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write(Persistence),
    Flush,
    Trim(Persistence),
    Cache,
    WriteZeroes(Zeroing),
    Assign,
    BlockStatus {
        descriptors: Descriptors,
        selection: Selection,
    },
    Refuse(NbdError, &'static str),
}

/// How many descriptors per context a client requests (`NBD_CMD_FLAG_REQ_ONE`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Descriptors {
    One,
    Many,
}

/// Which contexts a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    All,
    /// Those in the payload, which also holds the length (`NBD_CMD_FLAG_PAYLOAD_LEN`).
    Payload,
}

#[derive(Debug)]
pub(super) struct Command {
    pub to: ReplyTo,
    pub length: u64,
    pub action: Action,
    /// Its data, in the memory of its batch.
    pub memory: Range<usize>,
}

impl Action {
    /// Validates a request against the current `geometry`.
    pub(super) fn of(
        header: &RequestHeader,
        transmission: &Transmission<'_>,
        geometry: &Geometry,
    ) -> Self {
        match validate(header, transmission, geometry) {
            Ok(action) => action,
            Err((error, message)) => Self::Refuse(error, message),
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
    /// Its range, validated to be inside the export.
    pub(super) fn range(&self) -> ByteRange {
        ByteRange::new(self.to.offset, self.to.offset + self.length)
    }
}

fn validate(
    header: &RequestHeader,
    transmission: &Transmission<'_>,
    geometry: &Geometry,
) -> Result<Action, (NbdError, &'static str)> {
    let agreement = transmission.agreement;
    if transmission.is_stopping.load(Ordering::Relaxed) {
        return Err((NbdError::Shutdown, "the server is shutting down"));
    }
    let is_offered = |command| match command {
        command::EXTANT_ASSIGN | command::EXTANT_WRITE_ZEROES => {
            agreement.contexts.contains(&Context::Assign)
        }
        _ => true,
    };
    let valid = valid_flags(header.command, agreement.style)
        .filter(|_| is_offered(header.command))
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
        command::EXTANT_ASSIGN => Action::Assign,
        command::WRITE_ZEROES | command::EXTANT_WRITE_ZEROES => Action::WriteZeroes(Zeroing {
            space: if header.command == command::EXTANT_WRITE_ZEROES {
                ZeroedSpace::Written
            } else {
                let policy = agreement.export.discard_policy();
                policy.zeroed_space(!has(flag::NO_HOLE))
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
    check_export(header, action, transmission, geometry)?;
    Ok(action)
}

/// Valid flags of a command; `None` for an unknown command.
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
        command::EXTANT_WRITE_ZEROES => flag::FUA | flag::FAST_ZERO,
        command::EXTANT_ASSIGN => 0,
        command::BLOCK_STATUS => flag::FUA | flag::REQ_ONE | extended(flag::PAYLOAD_LEN),
        _ => return None,
    })
}

/// Refuses what the export or the negotiated options do not permit.
fn check_export(
    header: &RequestHeader,
    action: Action,
    transmission: &Transmission<'_>,
    geometry: &Geometry,
) -> Result<(), (NbdError, &'static str)> {
    let changes = matches!(
        action,
        Action::Write(_) | Action::Trim(_) | Action::WriteZeroes(_) | Action::Assign
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
        Action::Trim(_)
            if transmission.agreement.export.discard_policy() == DiscardPolicy::Ignore =>
        {
            return Err((NbdError::Invalid, "trims are not offered"));
        }
        Action::BlockStatus { .. } if transmission.agreement.contexts.is_empty() => {
            return Err((NbdError::Invalid, "no metadata context was chosen"));
        }
        Action::BlockStatus {
            selection: Selection::Payload,
            ..
        } => {
            // The length is in the payload, which has not been received yet.
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
