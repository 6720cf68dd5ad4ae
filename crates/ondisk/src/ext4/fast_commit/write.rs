//! Making a commit: records into blocks, with padding where one ends, and a tail.

use zerocopy::IntoBytes;

use super::record::TAG_BYTES;
use super::{Change, CommitSum, RawFcTail, RawHead, RawTagLength, Tag};
use crate::jbd2::Sequence;
use crate::narrow::fit16;

/// Whether a commit is the first one after a commit of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It is, and begins with a head.
    First,
    /// It follows another one.
    Later,
}

/// A commit in the making: the bytes of its blocks.
#[derive(Clone, Debug)]
pub struct CommitWriter {
    bytes: Vec<u8>,
    /// Bytes that the sum covers: whole blocks.
    summed: usize,
    sum: CommitSum,
    block_bytes: usize,
    transaction: Sequence,
}

impl CommitWriter {
    /// A commit of nothing yet, on `transaction`, which the journal would commit next, in
    /// blocks of `block_bytes`.
    pub fn new(block_bytes: u32, transaction: Sequence, position: Position) -> Self {
        let mut writer = Self {
            bytes: Vec::new(),
            summed: 0,
            sum: CommitSum::new(),
            block_bytes: block_bytes as usize,
            transaction,
        };
        if position == Position::First {
            let head = RawHead {
                fc_features: 0.into(),
                fc_tid: transaction.0.into(),
            };
            writer.put(Tag::Head, &[head.as_bytes()]);
        }
        writer
    }

    /// Adds a change.
    ///
    /// # Panics
    /// When it cannot be stored: a name that is empty or too long, an inode that does not fit a
    /// block.
    pub fn push(&mut self, change: &Change<'_>) {
        if let Change::Name { name, .. } = change {
            assert!(
                (1..=255).contains(&name.len()),
                "a name of {} bytes",
                name.len()
            );
        }
        let (fields, rest) = change.value();
        self.put(change.tag(), &[&fields, rest]);
    }

    /// Blocks that the commit takes when it ends now.
    pub fn blocks(&self) -> usize {
        let tail = TAG_BYTES + size_of::<RawFcTail>();
        let ended = self.bytes.len() + self.padding_before(tail) + tail;
        ended.div_ceil(self.block_bytes)
    }

    /// Ends the commit. The bytes are whole blocks, to be written one after another into the
    /// journal's last part, the last one with FUA or a flush before and behind it.
    pub fn finish(mut self) -> Vec<u8> {
        let tail = size_of::<RawFcTail>();
        self.make_room(TAG_BYTES + tail);
        // The tail's length includes the rest of the block.
        let length = self.left() - TAG_BYTES;
        self.put_header(Tag::Tail, length);
        self.bytes
            .extend_from_slice(&self.transaction.0.to_le_bytes());
        self.sum.add(&self.bytes[self.summed..]);
        self.bytes
            .extend_from_slice(&self.sum.value().to_le_bytes());
        self.bytes.resize(self.bytes.len() + length - tail, 0);
        self.bytes
    }

    fn put(&mut self, tag: Tag, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum();
        self.make_room(TAG_BYTES + length);
        self.put_header(tag, length);
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
    }

    fn put_header(&mut self, tag: Tag, length: usize) {
        let header = RawTagLength {
            fc_tag: tag.raw().into(),
            fc_len: fit16(length).into(),
        };
        self.bytes.extend_from_slice(header.as_bytes());
    }

    /// Ends the block with padding if a record of `bytes` does not fit it. The tag of the padding
    /// always has room.
    fn make_room(&mut self, bytes: usize) {
        assert!(
            bytes <= self.block_bytes - TAG_BYTES,
            "a record of {bytes} bytes"
        );
        let padding = self.padding_before(bytes);
        if padding > 0 {
            self.put_header(Tag::Pad, padding - TAG_BYTES);
            self.bytes.resize(self.bytes.len() + padding - TAG_BYTES, 0);
            self.sum.add(&self.bytes[self.summed..]);
            self.summed = self.bytes.len();
        }
    }

    fn padding_before(&self, bytes: usize) -> usize {
        if bytes <= self.left() - TAG_BYTES {
            0
        } else {
            self.left()
        }
    }

    /// Bytes left of the block, at least those of a tag.
    fn left(&self) -> usize {
        self.block_bytes - self.bytes.len() % self.block_bytes
    }
}
