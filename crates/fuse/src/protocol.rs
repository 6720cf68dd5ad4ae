//! The kernel's FUSE protocol: numbers, structures, decoding of requests, encoding of answers.
//!
//! Format: a request is a header, the operation's structure, then names or data without padding; a
//! reply is a header, then a structure, then data. Integers have the byte order of the machine.
//! Fields keep the kernel's names.
//!
//! Requests are untrusted: one that is too short, or has a name without end, is [`Malformed`].
//! Protocol 7.31 (Linux 5.4) is the oldest that is supported.
//!
//! Reference: `include/uapi/linux/fuse.h` of Linux, which is also under a BSD licence.

pub(crate) mod attributes;
pub(crate) mod connection;
pub(crate) mod directories;
pub(crate) mod files;
pub(crate) mod names;
pub(crate) mod notifications;
pub(crate) mod opcode;
pub(crate) mod reply;
pub(crate) mod xattrs;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The header of every request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct RequestHeader {
    pub len: u32,
    pub opcode: u32,
    pub unique: u64,
    pub nodeid: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    /// Length of extensions at the end, in units of 8 bytes.
    pub total_extlen: u16,
    pub padding: u16,
}

/// The header of every reply and notification.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct ReplyHeader {
    pub len: u32,
    /// 0 or the negative errno; of a notification its code.
    pub error: i32,
    /// That of the request; 0 in a notification.
    pub unique: u64,
}

/// Length of header and structure in front of the data of a write, which is aligned.
pub(crate) const WRITE_PREFIX: usize = size_of::<RequestHeader>() + size_of::<files::WriteIn>();

/// A request that is too short, or inconsistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl From<Malformed> for Errno {
    fn from(_: Malformed) -> Self {
        Self::INVAL
    }
}

/// The body of a request, consumed from the front.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Consumes a structure.
    pub fn take<T: FromBytes>(&mut self) -> Result<T, Malformed> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| Malformed)?;
        self.0 = rest;
        Ok(value)
    }

    /// Consumes a name or target: at least one byte before a zero byte.
    pub fn take_name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|&byte| byte == 0);
        match end.ok_or(Malformed)? {
            0 => Err(Malformed),
            end => {
                let (name, rest) = self.0.split_at(end);
                self.0 = &rest[1..];
                Ok(name)
            }
        }
    }

    /// Consumes `len` bytes of data.
    pub fn take_bytes(&mut self, len: u32) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(len as usize).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }
}

/// Splits a request into header and body, without the extensions at its end.
pub(crate) fn split(request: &[u8]) -> Result<(RequestHeader, Body<'_>), Malformed> {
    let (header, rest) = RequestHeader::read_from_prefix(request).map_err(|_| Malformed)?;
    let extensions = usize::from(header.total_extlen) * 8;
    let end = rest.len().checked_sub(extensions).ok_or(Malformed)?;
    if header.len as usize != request.len() {
        return Err(Malformed);
    }
    Ok((header, Body::new(&rest[..end])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<RequestHeader>(), 40);
        assert_eq!(size_of::<ReplyHeader>(), 16);
        assert_eq!(size_of::<attributes::Attr>(), 88);
        assert_eq!(size_of::<attributes::AttrOut>(), 104);
        assert_eq!(size_of::<attributes::EntryOut>(), 128);
        assert_eq!(size_of::<attributes::SetattrIn>(), 88);
        assert_eq!(size_of::<attributes::StatxIn>(), 24);
        assert_eq!(size_of::<attributes::StatxOut>(), 32 + 256);
        assert_eq!(size_of::<attributes::StatfsOut>(), 80);
        assert_eq!(size_of::<connection::InitIn>(), 16);
        assert_eq!(size_of::<connection::InitExtension>(), 48);
        assert_eq!(size_of::<connection::InitOut>(), 64);
        assert_eq!(size_of::<files::WriteIn>(), 40);
        assert_eq!(size_of::<files::CopyIn>(), 56);
        assert_eq!(size_of::<files::FallocateIn>(), 32);
        assert_eq!(size_of::<files::IoctlIn>(), 32);
        assert_eq!(size_of::<directories::Dirent>(), 24);
        assert_eq!(WRITE_PREFIX, 80);
    }

    #[test]
    fn name_without_end_or_without_bytes_is_malformed() {
        assert_eq!(Body::new(b"abc").take_name(), Err(Malformed));
        assert_eq!(Body::new(b"\0abc\0").take_name(), Err(Malformed));
        assert_eq!(Body::new(b"").take_name(), Err(Malformed));
        let mut two = Body::new(b"a\0bc\0");
        assert_eq!(two.take_name(), Ok(&b"a"[..]));
        assert_eq!(two.take_name(), Ok(&b"bc"[..]));
        assert_eq!(two.take_name(), Err(Malformed));
    }

    #[test]
    fn header_with_wrong_length_is_malformed() {
        let mut header = RequestHeader {
            len: 48,
            ..Default::default()
        };
        let bytes = |header: &RequestHeader| [header.as_bytes(), &[7; 8]].concat();
        assert_eq!(split(&bytes(&header)).unwrap().1.0, [7; 8]);
        header.len = 47;
        assert!(split(&bytes(&header)).is_err());
        header.len = 48;
        header.total_extlen = 1;
        assert!(split(&bytes(&header)).unwrap().1.0.is_empty());
        header.total_extlen = 2;
        assert!(split(&bytes(&header)).is_err());
        assert!(split(&bytes(&header)[..39]).is_err());
    }
}
