//! The replies to a batch, sent by one vectored write.
//!
//! The headers are encoded into one buffer; read data is sent from the buffer of the device. Zeros
//! are not sent where the client has structured replies: to find them costs much less than to copy
//! them to the socket and from there.

use std::io::{self, IoSlice};
use std::ops::Range;

use extant_space::Error;
use extant_sys::buffer::is_zero;

use super::block_status::ContextDescriptors;
use super::command::{Action, Command};
use extant_nbd::stream::Stream;
use extant_nbd::wire::error::NbdError;
use extant_nbd::wire::reply::{Encoder, Position, ReplyStyle};

pub(super) struct Replies {
    style: ReplyStyle,
    headers: Vec<u8>,
    /// Position in the headers, and the memory range whose data is sent there.
    data: Vec<(usize, Range<usize>)>,
}

impl Default for Replies {
    fn default() -> Self {
        Self {
            style: ReplyStyle::Simple,
            headers: Vec::new(),
            data: Vec::new(),
        }
    }
}

impl Replies {
    /// Starts the replies to another batch.
    pub(super) fn start(&mut self, style: ReplyStyle) {
        self.style = style;
        self.headers.clear();
        self.data.clear();
    }

    /// `read` is the data of a read.
    pub(super) fn done(&mut self, command: &Command, read: &[u8]) {
        if command.action != Action::Read || read.is_empty() {
            self.encoder().done(command.to);
        } else if self.style != ReplyStyle::Simple && is_zero(read) {
            let length = u32::try_from(read.len()).expect("the length is validated");
            self.encoder().hole(command.to, length);
        } else {
            self.encoder().data(command.to, read.len() as u64);
            self.data.push((self.headers.len(), command.memory.clone()));
        }
    }

    pub(super) fn refused(&mut self, command: &Command, error: NbdError, message: &str) {
        self.encoder().error(command.to, error, message, None);
    }

    /// The client receives the error's kind and its offset in the export, but no server path.
    pub(super) fn failed(&mut self, command: &Command, error: NbdError, cause: &Error) {
        let has_offset = matches!(
            command.action,
            Action::Read
                | Action::Write(_)
                | Action::Trim(_)
                | Action::WriteZeroes(_)
                | Action::Assign
        );
        let offset = match cause.range() {
            Some(range) if has_offset => range.intersection(command.range()),
            _ => None,
        };
        let offset = offset.map(|offset| offset.start());
        let message = cause.kind().description();
        self.encoder().error(command.to, error, message, offset);
    }

    pub(super) fn block_status(&mut self, command: &Command, found: &ContextDescriptors) {
        for (at, (context, descriptors)) in found.iter().enumerate() {
            let position = if at + 1 == found.len() {
                Position::Last
            } else {
                Position::Middle
            };
            self.encoder()
                .block_status(command.to, position, *context, descriptors);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Sends everything; `bytes` resolves a memory range.
    pub(super) fn send<'m>(
        &self,
        stream: &Stream,
        bytes: impl Fn(&Range<usize>) -> &'m [u8],
    ) -> io::Result<()> {
        let mut parts = Vec::with_capacity(2 * self.data.len() + 1);
        let mut sent = 0;
        for (after, data) in &self.data {
            parts.push(IoSlice::new(&self.headers[sent..*after]));
            parts.push(IoSlice::new(bytes(data)));
            sent = *after;
        }
        if sent < self.headers.len() {
            parts.push(IoSlice::new(&self.headers[sent..]));
        }
        stream.write(&mut parts)
    }

    fn encoder(&mut self) -> Encoder<'_> {
        Encoder {
            style: self.style,
            into: &mut self.headers,
        }
    }
}
