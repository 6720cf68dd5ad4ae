//! Replies to a batch, sent by as few calls as they need.
//!
//! Headers are gathered in one place; the data of reads is sent from where the device has put it.

use std::io::{self, IoSlice};
use std::ops::Range;

use extant_space::Error;

use super::block_status::Found;
use super::command::{Action, Command};
use crate::stream::Stream;
use crate::wire::error::NbdError;
use crate::wire::reply::{Encoder, Position, ReplyStyle};

pub(super) struct Replies {
    style: ReplyStyle,
    headers: Vec<u8>,
    /// After which byte of the headers the data of which place in memory is sent.
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
    /// Begins with the replies of another batch.
    pub(super) fn start(&mut self, style: ReplyStyle) {
        self.style = style;
        self.headers.clear();
        self.data.clear();
    }

    pub(super) fn done(&mut self, command: &Command) {
        if command.action == Action::Read && !command.memory.is_empty() {
            self.encoder().data(command.to, command.memory.len() as u64);
            self.data.push((self.headers.len(), command.memory.clone()));
        } else {
            self.encoder().done(command.to);
        }
    }

    pub(super) fn refused(&mut self, command: &Command, error: NbdError, words: &str) {
        self.encoder().error(command.to, error, words, None);
    }

    /// The client learns the kind of the error and its place in the export; of the server's files nothing.
    pub(super) fn failed(&mut self, command: &Command, error: NbdError, cause: &Error) {
        let has_place = matches!(
            command.action,
            Action::Read | Action::Write(_) | Action::Trim(_) | Action::WriteZeroes(_)
        );
        let place = match cause.range() {
            Some(range) if has_place => range.intersection(command.range()),
            _ => None,
        };
        let place = place.map(|place| place.start());
        let words = cause.kind().description();
        self.encoder().error(command.to, error, words, place);
    }

    pub(super) fn block_status(&mut self, command: &Command, found: &Found) {
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

    /// Sends everything; `bytes` are those of a place in memory.
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
