//! Requests of the transmission phase, with compact and with extended headers.

use std::mem::size_of;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::reply::ReplyStyle;

const NBD_REQUEST_MAGIC: u32 = 0x2560_9513;
const NBD_EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
    /// Of `extant:assign` (docs/formats/nbd.md).
    pub const EXTANT_ASSIGN: u16 = 0xea00;
    pub const EXTANT_WRITE_ZEROES: u16 = 0xea01;
}

pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CompactRequest {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ExtendedRequest {
    magic: U32,
    flags: U16,
    command: U16,
    cookie: U64,
    offset: U64,
    length: U64,
}

/// The header of a request, of either kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    /// The client's identifier of the request.
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
}

impl RequestHeader {
    /// Bytes of a header.
    pub fn size(style: ReplyStyle) -> usize {
        match style {
            ReplyStyle::Extended => size_of::<ExtendedRequest>(),
            ReplyStyle::Simple | ReplyStyle::Structured => size_of::<CompactRequest>(),
        }
    }

    /// Parses the header at the start of `bytes`, which must be long enough; `None` for another
    /// magic number.
    pub fn parse(style: ReplyStyle, bytes: &[u8]) -> Option<Self> {
        match style {
            ReplyStyle::Extended => {
                let (raw, _) = ExtendedRequest::ref_from_prefix(bytes).ok()?;
                (raw.magic.get() == NBD_EXTENDED_REQUEST_MAGIC).then(|| Self {
                    flags: raw.flags.get(),
                    command: raw.command.get(),
                    cookie: raw.cookie.get(),
                    offset: raw.offset.get(),
                    length: raw.length.get(),
                })
            }
            ReplyStyle::Simple | ReplyStyle::Structured => {
                let (raw, _) = CompactRequest::ref_from_prefix(bytes).ok()?;
                (raw.magic.get() == NBD_REQUEST_MAGIC).then(|| Self {
                    flags: raw.flags.get(),
                    command: raw.command.get(),
                    cookie: raw.cookie.get(),
                    offset: raw.offset.get(),
                    length: raw.length.get().into(),
                })
            }
        }
    }

    /// Appends the header.
    ///
    /// # Panics
    /// When a compact header cannot hold the length.
    pub fn encode(&self, style: ReplyStyle, into: &mut Vec<u8>) {
        match style {
            ReplyStyle::Extended => {
                let raw = ExtendedRequest {
                    magic: NBD_EXTENDED_REQUEST_MAGIC.into(),
                    flags: self.flags.into(),
                    command: self.command.into(),
                    cookie: self.cookie.into(),
                    offset: self.offset.into(),
                    length: self.length.into(),
                };
                into.extend(raw.as_bytes());
            }
            ReplyStyle::Simple | ReplyStyle::Structured => {
                let length = u32::try_from(self.length).expect("split at the limits");
                let raw = CompactRequest {
                    magic: NBD_REQUEST_MAGIC.into(),
                    flags: self.flags.into(),
                    command: self.command.into(),
                    cookie: self.cookie.into(),
                    offset: self.offset.into(),
                    length: length.into(),
                };
                into.extend(raw.as_bytes());
            }
        }
    }

    /// Bytes that follow the header.
    pub fn payload(&self, style: ReplyStyle) -> u64 {
        let has_payload = match style {
            // A write without the flag violates the protocol, but its data follows all the same.
            ReplyStyle::Extended => {
                self.command == command::WRITE || self.flags & command_flag::PAYLOAD_LEN != 0
            }
            ReplyStyle::Simple | ReplyStyle::Structured => self.command == command::WRITE,
        };
        if has_payload { self.length } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_sizes_of_the_specification() {
        assert_eq!(RequestHeader::size(ReplyStyle::Simple), 28);
        assert_eq!(RequestHeader::size(ReplyStyle::Extended), 32);
    }

    #[test]
    fn encoded_header_parses_to_the_same() {
        let header = RequestHeader {
            flags: command_flag::FUA,
            command: command::WRITE,
            cookie: 1 << 40,
            offset: 1 << 50,
            length: 1 << 20,
        };
        for style in [ReplyStyle::Simple, ReplyStyle::Extended] {
            let mut bytes = Vec::new();
            header.encode(style, &mut bytes);
            assert_eq!(bytes.len(), RequestHeader::size(style));
            assert_eq!(RequestHeader::parse(style, &bytes), Some(header));
        }
    }

    #[test]
    fn header_with_another_magic_number_is_none() {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&NBD_REQUEST_MAGIC.to_be_bytes());
        assert!(RequestHeader::parse(ReplyStyle::Structured, &bytes).is_some());
        assert!(RequestHeader::parse(ReplyStyle::Extended, &bytes).is_none());
    }
}
