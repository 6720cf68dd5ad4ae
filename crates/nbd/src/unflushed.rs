//! Changes that the server has acknowledged and not yet made durable.
//!
//! A server that ends and starts again may have lost them. They are remembered until a flush, and
//! repeated after a reconnect, in the order in which they were acknowledged. The order matters only
//! where changes overlap, and a caller that wants an order waits for the first one.

use std::collections::VecDeque;
use std::sync::Arc;

use extant_space::ByteRange;
use smallvec::smallvec;

use crate::connection::Job;
use crate::limits::{ZEROES_BYTES_MAX, zeroes};
use crate::wire::request::command;

/// Approximate memory of a change without its data.
const CHANGE_BYTES: u64 = 128;
/// Zeros that count as one byte of memory: repeating them takes time.
const ZEROES_PER_BYTE: u64 = 64;

/// A change that owns its data.
pub(crate) struct Change {
    command: u16,
    flags: u16,
    offset: u64,
    length: u64,
    data: Data,
}

enum Data {
    None,
    Bytes(Box<[u8]>),
    Zeroes,
}

impl Change {
    fn new(job: &Job<'_>) -> Self {
        let is_zeroes = job.from.iter().all(|part| is_zeroes(part));
        let data = match job.command {
            command::WRITE if is_zeroes && job.length <= ZEROES_BYTES_MAX => Data::Zeroes,
            command::WRITE => Data::Bytes(job.from.concat().into()),
            _ => Data::None,
        };
        Self {
            command: job.command,
            flags: job.flags,
            offset: job.offset,
            length: job.length,
            data,
        }
    }

    pub(crate) fn range(&self) -> ByteRange {
        ByteRange::new(self.offset, self.offset + self.length)
    }

    /// The request that makes the change.
    pub(crate) fn job(&self) -> Job<'_> {
        Job {
            command: self.command,
            flags: self.flags,
            offset: self.offset,
            length: self.length,
            from: match &self.data {
                Data::None => smallvec![],
                Data::Bytes(bytes) => smallvec![&**bytes],
                Data::Zeroes => zeroes(self.length),
            },
        }
    }

    fn memory_bytes(&self) -> u64 {
        CHANGE_BYTES
            + match &self.data {
                Data::Bytes(bytes) => bytes.len() as u64,
                Data::None | Data::Zeroes => self.length / ZEROES_PER_BYTE,
            }
    }
}

fn is_zeroes(part: &[u8]) -> bool {
    // The usual answer takes one comparison.
    part.first().is_none_or(|byte| *byte == 0) && part.iter().all(|byte| *byte == 0)
}

/// The changes, in order.
#[derive(Default)]
pub(crate) struct Unflushed {
    /// Of the session whose results are remembered.
    epoch: u64,
    /// Number of the first change.
    first: u64,
    changes: VecDeque<Arc<Change>>,
    bytes: u64,
}

/// A point between two changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

impl Unflushed {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// From now on the results of older sessions are not remembered; returns what is.
    pub(crate) fn begin_epoch(&mut self) -> (u64, Vec<Arc<Change>>) {
        self.epoch += 1;
        (self.epoch, self.changes.iter().cloned().collect())
    }

    /// Remembers an acknowledged change. False when its session has ended meanwhile: the server
    /// may have lost the change, and what is repeated does not have it.
    #[must_use]
    pub(crate) fn remember(&mut self, epoch: u64, job: &Job<'_>) -> bool {
        if epoch != self.epoch {
            return false;
        }
        let change = Change::new(job);
        self.bytes += change.memory_bytes();
        self.changes.push_back(Arc::new(change));
        true
    }

    /// The point after all changes so far, to be taken before a flush is sent.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.first + self.changes.len() as u64)
    }

    /// A flush that was sent after `mark` has succeeded.
    pub(crate) fn flushed(&mut self, mark: Mark) {
        while self.first < mark.0
            && let Some(change) = self.changes.pop_front()
        {
            self.first += 1;
            self.bytes -= change.memory_bytes();
        }
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(offset: u64, data: &[u8]) -> Job<'_> {
        Job {
            command: command::WRITE,
            flags: 0,
            offset,
            length: data.len() as u64,
            from: smallvec![data],
        }
    }

    #[test]
    fn flush_forgets_what_was_acknowledged_before_it_was_sent() {
        let mut unflushed = Unflushed::default();
        assert!(unflushed.remember(0, &write(0, b"a")));
        let mark = unflushed.mark();
        assert!(unflushed.remember(0, &write(1, b"b")));
        unflushed.flushed(mark);
        unflushed.flushed(mark);
        let (_, changes) = unflushed.begin_epoch();
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].job().from.concat(), b"b");
        assert_eq!(unflushed.bytes(), CHANGE_BYTES + 1);
    }

    #[test]
    fn result_of_an_older_session_is_not_remembered() {
        let mut unflushed = Unflushed::default();
        let (epoch, _) = unflushed.begin_epoch();
        assert!(!unflushed.remember(epoch - 1, &write(0, b"a")));
        assert_eq!(unflushed.bytes(), 0);
    }

    #[test]
    fn zeros_cost_little_and_come_back() {
        let mut unflushed = Unflushed::default();
        let zeros = vec![0; 200_000];
        assert!(unflushed.remember(0, &write(0, &zeros)));
        let cost = CHANGE_BYTES + 200_000 / ZEROES_PER_BYTE;
        assert_eq!(unflushed.bytes(), cost);
        let (_, changes) = unflushed.begin_epoch();
        assert_eq!(changes[0].job().from.concat(), zeros);
    }
}
