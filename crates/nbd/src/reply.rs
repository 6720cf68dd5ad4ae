//! Replies of one connection, parsed and validated against their requests.
//!
//! Nothing is allocated by the word of the server alone: data by the length of the request, and
//! everything else up to fixed limits. Every reply is finite: data chunks do not overlap, a context
//! has one status, and errors are counted.

use std::collections::BTreeMap;
use std::io;

use extant_space::{Error, Result};

use crate::handshake::{Contexts, message, violation};
use crate::socket::Wait;
use crate::stream::Stream;
use crate::wire::STRING_MAX;
use crate::wire::error::NbdError;
use crate::wire::reply::*;
use crate::wire::request::command;

/// Input that is received at a time; longer data is received in place.
const BUFFER_BYTES: usize = 64 << 10;
/// Most bytes of one chunk with a status: a million descriptors, the most that nbdkit sends.
const STATUS_BYTES_MAX: u64 = (16 << 20) + 8;
/// Most bytes of a chunk with an error: number, message and offset.
const ERROR_BYTES_MAX: u64 = 4 + 2 + STRING_MAX as u64 + 8;
/// Most errors in one reply.
const ERRORS_MAX: usize = 1024;

/// The request of a reply.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub command: u16,
    pub offset: u64,
    pub length: u64,
}

/// The result of a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Payload),
    Failed(Error),
    /// There was no reply, or the server is shutting down.
    Lost,
}

/// Contents of a successful reply.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    /// Of a read, as long as it.
    pub data: Vec<u8>,
    /// Of `base:allocation`.
    pub allocation: Option<Vec<StatusRun>>,
    /// Of `extant:state`.
    pub state: Option<Vec<StatusRun>>,
}

/// A length and its flags in a metadata context. The length is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StatusRun {
    pub length: u64,
    pub flags: u64,
}

/// A reply of which not all chunks have arrived.
#[derive(Debug)]
pub(crate) struct Partial {
    expected: Expected,
    payload: Payload,
    has_assign_status: bool,
    /// Start and end of the data that has arrived, relative to the request.
    covered: BTreeMap<u64, u64>,
    covered_bytes: u64,
    errors: usize,
    error: Option<(u32, String)>,
}

impl Partial {
    pub(crate) fn new(expected: Expected) -> Self {
        Self {
            expected,
            payload: Payload::default(),
            has_assign_status: false,
            covered: BTreeMap::new(),
            covered_bytes: 0,
            errors: 0,
            error: None,
        }
    }

    /// Receives the rest of a reply or chunk whose header is known. Returns whether the reply is
    /// complete.
    pub(crate) fn receive(
        &mut self,
        header: &ReplyHeader,
        style: ReplyStyle,
        contexts: &Contexts,
        input: &mut Input<'_>,
    ) -> Result<bool> {
        match *header {
            ReplyHeader::Simple { error, .. } => {
                self.receive_simple(error, style, input)?;
                Ok(true)
            }
            ReplyHeader::Chunk {
                flags,
                kind,
                length,
                ..
            } => {
                self.receive_chunk(kind, length, style, contexts, input)?;
                let is_last = flags & NBD_REPLY_FLAG_DONE != 0;
                if kind == NBD_REPLY_TYPE_NONE && !is_last {
                    return Err(violation("an empty chunk that is not the last one"));
                }
                Ok(is_last)
            }
        }
    }

    fn receive_simple(
        &mut self,
        error: u32,
        style: ReplyStyle,
        input: &mut Input<'_>,
    ) -> Result<()> {
        let needs_chunks = matches!(self.expected.command, command::READ | command::BLOCK_STATUS);
        if style != ReplyStyle::Simple && needs_chunks {
            return Err(violation("a simple reply to a read or block status"));
        }
        if error != 0 {
            self.error = Some((error, String::new()));
        } else if self.expected.command == command::READ {
            let length = self.expected.length;
            input.read_exact(self.reserve(0, length)?)?;
        }
        Ok(())
    }

    fn receive_chunk(
        &mut self,
        kind: u16,
        length: u64,
        style: ReplyStyle,
        contexts: &Contexts,
        input: &mut Input<'_>,
    ) -> Result<()> {
        let has = |command| self.expected.command == command;
        match kind {
            NBD_REPLY_TYPE_NONE if length == 0 => Ok(()),
            NBD_REPLY_TYPE_OFFSET_DATA if has(command::READ) && length > 8 => {
                let offset = u64::from_be_bytes(input.read_array()?);
                input.read_exact(self.reserve_at(offset, length - 8)?)
            }
            NBD_REPLY_TYPE_OFFSET_HOLE if has(command::READ) && length == 12 => {
                let offset = u64::from_be_bytes(input.read_array()?);
                let length = u32::from_be_bytes(input.read_array()?);
                // The bytes are zeros from the start.
                self.reserve_at(offset, length.into()).map(drop)
            }
            NBD_REPLY_TYPE_BLOCK_STATUS
                if has(command::BLOCK_STATUS) && style == ReplyStyle::Structured =>
            {
                let descriptors = length.checked_sub(4).unwrap_or(1);
                check_descriptors(length, descriptors, 8)?;
                let context = u32::from_be_bytes(input.read_array()?);
                let mut bytes = vec![0; descriptors as usize];
                input.read_exact(&mut bytes)?;
                let runs = bytes
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|[a, b, c, d, rest @ ..]| StatusRun {
                        length: u32::from_be_bytes([*a, *b, *c, *d]).into(),
                        flags: u32::from_be_bytes(*rest).into(),
                    });
                self.add_status(context, contexts, runs.collect())
            }
            NBD_REPLY_TYPE_BLOCK_STATUS_EXT
                if has(command::BLOCK_STATUS) && style == ReplyStyle::Extended =>
            {
                let descriptors = length.checked_sub(8).unwrap_or(1);
                check_descriptors(length, descriptors, 16)?;
                let context = u32::from_be_bytes(input.read_array()?);
                let count = u32::from_be_bytes(input.read_array()?);
                if u64::from(count) * 16 != descriptors {
                    return Err(violation("a status with another number of descriptors"));
                }
                let mut bytes = vec![0; descriptors as usize];
                input.read_exact(&mut bytes)?;
                let runs = bytes.as_chunks::<16>().0.iter().map(|bytes| {
                    let value = u128::from_be_bytes(*bytes);
                    StatusRun {
                        length: (value >> 64) as u64,
                        flags: value as u64,
                    }
                });
                self.add_status(context, contexts, runs.collect())
            }
            kind if kind & NBD_REPLY_TYPE_IS_ERROR != 0 => self.receive_error(kind, length, input),
            _ => Err(violation(format!(
                "a chunk of type {kind} with {length} bytes in the reply to command {}",
                self.expected.command
            ))),
        }
    }

    /// Errors of unknown types begin as the known ones do.
    fn receive_error(&mut self, kind: u16, length: u64, input: &mut Input<'_>) -> Result<()> {
        if !(6..=ERROR_BYTES_MAX).contains(&length) {
            return Err(violation(format!("an error of {length} bytes")));
        }
        self.errors += 1;
        if self.errors > ERRORS_MAX {
            return Err(violation(format!(
                "more than {ERRORS_MAX} errors in a reply"
            )));
        }
        let mut bytes = vec![0; length as usize];
        input.read_exact(&mut bytes)?;
        let (number, rest) = bytes.split_first_chunk().expect("six bytes");
        let (text_bytes, rest) = rest.split_first_chunk().expect("six bytes");
        let number = u32::from_be_bytes(*number);
        let text_bytes = usize::from(u16::from_be_bytes(*text_bytes));
        let Some((text, rest)) = rest.split_at_checked(text_bytes) else {
            return Err(violation("an error shorter than its message"));
        };
        let expected_rest = match kind {
            NBD_REPLY_TYPE_ERROR => Some(0),
            NBD_REPLY_TYPE_ERROR_OFFSET => Some(8),
            _ => None,
        };
        if number == 0 || expected_rest.is_some_and(|bytes| bytes != rest.len()) {
            return Err(violation("an error of another size, or without a number"));
        }
        self.error.get_or_insert_with(|| (number, message(text)));
        Ok(())
    }

    fn add_status(
        &mut self,
        context: u32,
        contexts: &Contexts,
        runs: Vec<StatusRun>,
    ) -> Result<()> {
        if runs.iter().any(|run| run.length == 0) {
            return Err(violation("the status of no bytes"));
        }
        let twice = || violation("two statuses in one context");
        let id = Some(context);
        let slot = if id == contexts.allocation {
            &mut self.payload.allocation
        } else if id == contexts.state {
            &mut self.payload.state
        } else if id == contexts.assign && !self.has_assign_status {
            // It says nothing (docs/formats/nbd.md).
            self.has_assign_status = true;
            return Ok(());
        } else {
            return Err(violation(format!(
                "a status in context {context}, which was not chosen"
            )));
        };
        match slot.replace(runs) {
            None => Ok(()),
            Some(_) => Err(twice()),
        }
    }

    fn reserve_at(&mut self, offset: u64, length: u64) -> Result<&mut [u8]> {
        let start = offset.checked_sub(self.expected.offset);
        let start = start.ok_or_else(|| violation("data from before the requested range"))?;
        self.reserve(start, length)
    }

    /// The place of data that arrives: inside the request, where nothing has arrived yet.
    fn reserve(&mut self, start: u64, length: u64) -> Result<&mut [u8]> {
        let end = start
            .checked_add(length)
            .filter(|end| *end <= self.expected.length);
        let Some(end) = end.filter(|_| length > 0) else {
            return Err(violation(format!(
                "{length} bytes at {start} of a read of {}",
                self.expected.length
            )));
        };
        let before = self.covered.range(..end).next_back();
        if before.is_some_and(|(_, covered)| *covered > start) {
            return Err(violation("data of a read that overlaps other data of it"));
        }
        self.covered.insert(start, end);
        self.covered_bytes += length;
        if self.payload.data.is_empty() {
            self.payload.data = vec![0; self.expected.length as usize];
        }
        Ok(&mut self.payload.data[start as usize..end as usize])
    }

    /// The result, when all chunks have arrived.
    pub(crate) fn finish(self, contexts: &Contexts) -> Result<Outcome> {
        if let Some((number, text)) = self.error {
            if number == NbdError::Shutdown as u32 {
                return Ok(Outcome::Lost);
            }
            let error = NbdError::to_error(number);
            let detail = format!("{}{text}", error.kind().description());
            return Ok(Outcome::Failed(error.detail(detail)));
        }
        match self.expected.command {
            command::READ if self.covered_bytes != self.expected.length => Err(violation(format!(
                "{} bytes in reply to a read of {}",
                self.covered_bytes, self.expected.length
            ))),
            command::BLOCK_STATUS => {
                let payload = &self.payload;
                let is_missing = |id: Option<u32>, runs: &Option<Vec<StatusRun>>| {
                    id.is_some() && runs.as_ref().is_none_or(Vec::is_empty)
                };
                if is_missing(contexts.allocation, &payload.allocation)
                    || is_missing(contexts.state, &payload.state)
                {
                    return Err(violation("no status in a context that was chosen"));
                }
                Ok(Outcome::Done(self.payload))
            }
            _ => Ok(Outcome::Done(self.payload)),
        }
    }
}

fn check_descriptors(length: u64, descriptors: u64, size: u64) -> Result<()> {
    if length > STATUS_BYTES_MAX || descriptors == 0 || !descriptors.is_multiple_of(size) {
        return Err(violation(format!("a status of {length} bytes")));
    }
    Ok(())
}

/// The bytes that a server sends.
pub(crate) struct Input<'a> {
    stream: &'a Stream,
    /// False when the server takes too long.
    is_patient: &'a dyn Fn() -> bool,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl<'a> Input<'a> {
    pub(crate) fn new(stream: &'a Stream, is_patient: &'a dyn Fn() -> bool) -> Self {
        Self {
            stream,
            is_patient,
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
        }
    }

    /// The header of the next reply or chunk.
    pub(crate) fn read_header(&mut self, style: ReplyStyle) -> Result<ReplyHeader> {
        let mut bytes = [0; REPLY_HEADER_BYTES_MAX];
        let (magic, rest) = bytes.split_first_chunk_mut::<4>().expect("longer");
        self.read_exact(magic)?;
        let size = ReplyHeader::size(style, *magic).ok_or_else(|| {
            violation(format!("no reply where one is expected, but {magic:02x?}"))
        })?;
        self.read_exact(&mut rest[..size - 4])?;
        Ok(ReplyHeader::parse(&bytes[..size]).expect("a header of that size"))
    }

    fn read_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn read_exact(&mut self, mut into: &mut [u8]) -> Result<()> {
        while !into.is_empty() {
            if self.start < self.end {
                let bytes = into.len().min(self.end - self.start);
                let (now, later) = into.split_at_mut(bytes);
                now.copy_from_slice(&self.buffer[self.start..self.start + bytes]);
                self.start += bytes;
                into = later;
            } else if into.len() >= BUFFER_BYTES {
                let bytes = self.receive(into)?;
                into = &mut into[bytes..];
            } else {
                let mut buffer = std::mem::take(&mut self.buffer);
                let received = self.receive(&mut buffer);
                self.buffer = buffer;
                self.start = 0;
                self.end = received?;
            }
        }
        Ok(())
    }

    fn receive(&self, into: &mut [u8]) -> Result<usize> {
        loop {
            match self.stream.read(into, Wait::Forever) {
                Ok(0) => return Err(lost("the server disconnected", None)),
                // A reply that comes byte by byte is none.
                Ok(bytes) if (self.is_patient)() => return Ok(bytes),
                Ok(_) => return Err(lost("the server does not reply", None)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !(self.is_patient)() {
                        return Err(lost("the server does not reply", Some(error)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(violation(error.to_string()));
                }
                Err(error) => return Err(lost(&error.to_string(), Some(error))),
            }
        }
    }
}

fn lost(why: &str, source: Option<io::Error>) -> Error {
    let source = source.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into());
    Error::from(io::Error::other(source)).detail(format!("the connection is lost: {why}"))
}
