//! Replies of the transmission phase: simple, structured and extended. The server encodes whole
//! replies, the client parses the header of each chunk.
//!
//! A reply is one or more chunks. The server knows the result before it sends the first byte, so
//! the last data chunk always carries `NBD_REPLY_FLAG_DONE`. A simple reply is encoded as a chunk
//! without a type.

use std::mem::size_of;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::NbdError;

pub const NBD_SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const NBD_STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub const NBD_EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

pub const NBD_REPLY_FLAG_DONE: u16 = 1 << 0;

pub const NBD_REPLY_TYPE_NONE: u16 = 0;
pub const NBD_REPLY_TYPE_OFFSET_DATA: u16 = 1;
pub const NBD_REPLY_TYPE_OFFSET_HOLE: u16 = 2;
pub const NBD_REPLY_TYPE_BLOCK_STATUS: u16 = 5;
pub const NBD_REPLY_TYPE_BLOCK_STATUS_EXT: u16 = 6;
/// Set in the type of every chunk that carries an error.
pub const NBD_REPLY_TYPE_IS_ERROR: u16 = 1 << 15;
pub const NBD_REPLY_TYPE_ERROR: u16 = (1 << 15) + 1;
pub const NBD_REPLY_TYPE_ERROR_OFFSET: u16 = (1 << 15) + 2;

/// The negotiated format of requests and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyStyle {
    Simple,
    Structured,
    /// Structured, with 64-bit lengths.
    Extended,
}

/// Which request a reply is for.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo {
    pub cookie: u64,
    pub offset: u64,
}

/// Whether more chunks of the same reply follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    Middle,
    Last,
}

/// A length and its status flags in a metadata context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub length: u64,
    pub flags: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SimpleReply {
    magic: U32,
    error: U32,
    cookie: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct StructuredChunk {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    length: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ExtendedChunk {
    magic: U32,
    flags: U16,
    kind: U16,
    cookie: U64,
    offset: U64,
    length: U64,
}

/// Bytes of the shortest header of a reply; the type of the header is known from the first four.
pub const REPLY_HEADER_BYTES_MIN: usize = size_of::<SimpleReply>();
/// Bytes of the longest one.
pub const REPLY_HEADER_BYTES_MAX: usize = size_of::<ExtendedChunk>();

/// The header of a reply or of one of its chunks, of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    Simple {
        error: u32,
        cookie: u64,
    },
    Chunk {
        flags: u16,
        kind: u16,
        cookie: u64,
        length: u64,
    },
}

impl ReplyHeader {
    /// Bytes of the header with this magic number; `None` for one that `style` does not have.
    pub fn size(style: ReplyStyle, magic: [u8; 4]) -> Option<usize> {
        match (u32::from_be_bytes(magic), style) {
            (NBD_SIMPLE_REPLY_MAGIC, ReplyStyle::Simple | ReplyStyle::Structured) => {
                Some(size_of::<SimpleReply>())
            }
            (NBD_STRUCTURED_REPLY_MAGIC, ReplyStyle::Structured) => {
                Some(size_of::<StructuredChunk>())
            }
            (NBD_EXTENDED_REPLY_MAGIC, ReplyStyle::Extended) => Some(size_of::<ExtendedChunk>()),
            _ => None,
        }
    }

    /// Parses a header; `bytes` are as many as [`size`](Self::size) says.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if let Ok(raw) = SimpleReply::ref_from_bytes(bytes) {
            return Some(Self::Simple {
                error: raw.error.get(),
                cookie: raw.cookie.get(),
            });
        }
        if let Ok(raw) = StructuredChunk::ref_from_bytes(bytes) {
            return Some(Self::Chunk {
                flags: raw.flags.get(),
                kind: raw.kind.get(),
                cookie: raw.cookie.get(),
                length: raw.length.get().into(),
            });
        }
        let raw = ExtendedChunk::ref_from_bytes(bytes).ok()?;
        Some(Self::Chunk {
            flags: raw.flags.get(),
            kind: raw.kind.get(),
            cookie: raw.cookie.get(),
            length: raw.length.get(),
        })
    }
}

/// Appends encoded replies to a buffer.
pub struct Encoder<'a> {
    pub style: ReplyStyle,
    pub into: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    /// A reply without data.
    pub fn done(&mut self, to: ReplyTo) {
        match self.style {
            ReplyStyle::Simple => self.simple(to, 0),
            _ => self.chunk(to, Position::Last, NBD_REPLY_TYPE_NONE, 0),
        }
    }

    /// The header before the `length` bytes of a read, at least one, in a single chunk.
    pub fn data(&mut self, to: ReplyTo, length: u64) {
        match self.style {
            ReplyStyle::Simple => self.simple(to, 0),
            _ => {
                self.chunk(to, Position::Last, NBD_REPLY_TYPE_OFFSET_DATA, 8 + length);
                self.into.extend(to.offset.to_be_bytes());
            }
        }
    }

    /// `length` zero bytes of a read, at least one, without data. Not in the simple style.
    pub fn hole(&mut self, to: ReplyTo, length: u32) {
        self.chunk(to, Position::Last, NBD_REPLY_TYPE_OFFSET_HOLE, 12);
        self.into.extend(to.offset.to_be_bytes());
        self.into.extend(length.to_be_bytes());
    }

    /// An error with a message for the user, and its offset if that is known.
    pub fn error(&mut self, to: ReplyTo, error: NbdError, message: &str, at: Option<u64>) {
        if self.style == ReplyStyle::Simple {
            return self.simple(to, error as u32);
        }
        let message = truncate(message, super::STRING_MAX);
        let length = 6 + message.len() as u64;
        match at {
            Some(_) => self.chunk(to, Position::Last, NBD_REPLY_TYPE_ERROR_OFFSET, length + 8),
            None => self.chunk(to, Position::Last, NBD_REPLY_TYPE_ERROR, length),
        }
        self.into.extend((error as u32).to_be_bytes());
        self.into.extend((message.len() as u16).to_be_bytes());
        self.into.extend(message.as_bytes());
        if let Some(at) = at {
            self.into.extend(at.to_be_bytes());
        }
    }

    /// The status of a range in one context; at least one descriptor.
    pub fn block_status(
        &mut self,
        to: ReplyTo,
        position: Position,
        context: u32,
        descriptors: &[Descriptor],
    ) {
        let count = descriptors.len() as u64;
        if self.style == ReplyStyle::Extended {
            let kind = NBD_REPLY_TYPE_BLOCK_STATUS_EXT;
            self.chunk(to, position, kind, 8 + 16 * count);
            self.into.extend(context.to_be_bytes());
            self.into.extend((count as u32).to_be_bytes());
            for descriptor in descriptors {
                self.into.extend(descriptor.length.to_be_bytes());
                self.into.extend(u64::from(descriptor.flags).to_be_bytes());
            }
        } else {
            self.chunk(to, position, NBD_REPLY_TYPE_BLOCK_STATUS, 4 + 8 * count);
            self.into.extend(context.to_be_bytes());
            for descriptor in descriptors {
                let length = u32::try_from(descriptor.length)
                    .expect("a range that was asked for with 32 bits");
                self.into.extend(length.to_be_bytes());
                self.into.extend(descriptor.flags.to_be_bytes());
            }
        }
    }

    fn simple(&mut self, to: ReplyTo, error: u32) {
        let reply = SimpleReply {
            magic: NBD_SIMPLE_REPLY_MAGIC.into(),
            error: error.into(),
            cookie: to.cookie.into(),
        };
        self.into.extend(reply.as_bytes());
    }

    fn chunk(&mut self, to: ReplyTo, position: Position, kind: u16, length: u64) {
        let flags = match position {
            Position::Middle => 0,
            Position::Last => NBD_REPLY_FLAG_DONE,
        };
        if self.style == ReplyStyle::Extended {
            let chunk = ExtendedChunk {
                magic: NBD_EXTENDED_REPLY_MAGIC.into(),
                flags: flags.into(),
                kind: kind.into(),
                cookie: to.cookie.into(),
                offset: to.offset.into(),
                length: length.into(),
            };
            self.into.extend(chunk.as_bytes());
        } else {
            let length =
                u32::try_from(length).expect("replies are smaller than the largest request");
            let chunk = StructuredChunk {
                magic: NBD_STRUCTURED_REPLY_MAGIC.into(),
                flags: flags.into(),
                kind: kind.into(),
                cookie: to.cookie.into(),
                length: length.into(),
            };
            self.into.extend(chunk.as_bytes());
        }
    }
}

/// The start of `text`, at most `bytes` long.
pub fn truncate(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: ReplyTo = ReplyTo {
        cookie: 7,
        offset: 512,
    };

    fn encoded(style: ReplyStyle, encode: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
        let mut into = Vec::new();
        encode(&mut Encoder {
            style,
            into: &mut into,
        });
        into
    }

    #[test]
    fn headers_have_the_sizes_of_the_specification() {
        let sizes = [
            (ReplyStyle::Simple, 16),
            (ReplyStyle::Structured, 20),
            (ReplyStyle::Extended, 32),
        ];
        for (style, size) in sizes {
            assert_eq!(encoded(style, |encoder| encoder.done(TO)).len(), size);
        }
    }

    #[test]
    fn encoded_header_parses_to_the_same() {
        let parse = |style| {
            let bytes = encoded(style, |encoder| encoder.done(TO));
            let magic = bytes[..4].try_into().unwrap();
            assert_eq!(ReplyHeader::size(style, magic), Some(bytes.len()));
            ReplyHeader::parse(&bytes).unwrap()
        };
        let simple = ReplyHeader::Simple {
            error: 0,
            cookie: 7,
        };
        let chunk = ReplyHeader::Chunk {
            flags: NBD_REPLY_FLAG_DONE,
            kind: NBD_REPLY_TYPE_NONE,
            cookie: 7,
            length: 0,
        };
        assert_eq!(parse(ReplyStyle::Simple), simple);
        assert_eq!(parse(ReplyStyle::Structured), chunk);
        assert_eq!(parse(ReplyStyle::Extended), chunk);
        let extended = NBD_EXTENDED_REPLY_MAGIC.to_be_bytes();
        assert_eq!(ReplyHeader::size(ReplyStyle::Structured, extended), None);
    }

    #[test]
    fn error_chunk_carries_number_message_and_offset() {
        let bytes = encoded(ReplyStyle::Structured, |encoder| {
            encoder.error(TO, NbdError::NoSpace, "full", Some(4096));
        });
        assert_eq!(bytes[4..8], [0, 1, 0x80, 2]);
        assert_eq!(bytes[16..20], 18u32.to_be_bytes());
        assert_eq!(bytes[20..26], [0, 0, 0, 28, 0, 4]);
        assert_eq!(&bytes[26..30], b"full");
        assert_eq!(bytes[30..], 4096u64.to_be_bytes());
    }

    #[test]
    fn message_is_cut_between_characters() {
        assert_eq!(truncate("aä", 2), "a");
        assert_eq!(truncate("aä", 3), "aä");
    }
}
