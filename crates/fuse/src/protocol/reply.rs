//! The buffer of a reply: header, structure and data, contiguous.
//!
//! Data is aligned for direct I/O, so that the file system can read from a device straight into a
//! reply; the header is right before it. The transport owns the memory.

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::ReplyHeader;

/// Length of the header, in bytes.
pub(crate) const HEADER_LENGTH: usize = size_of::<ReplyHeader>();

/// The memory of a reply.
#[derive(Debug)]
pub(crate) struct Reply<'m>(&'m mut [u8]);

impl<'m> Reply<'m> {
    /// A reply in `memory`, whose part after the header is aligned.
    pub fn new(memory: &'m mut [u8]) -> Self {
        Self(memory)
    }

    /// Reborrows the memory.
    pub fn reborrow(&mut self) -> Reply<'_> {
        Reply(self.0)
    }

    /// The memory after the header, with content of earlier replies.
    pub fn payload(&mut self) -> &mut [u8] {
        &mut self.0[HEADER_LENGTH..]
    }

    /// The first `len` bytes after the header. `INVAL` if that is more than was negotiated.
    pub fn data(&mut self, len: u32) -> Result<&mut [u8], Errno> {
        self.payload().get_mut(..len as usize).ok_or(Errno::INVAL)
    }

    /// Puts a structure after the header. Returns its length.
    pub fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> usize {
        self.put_at(0, value)
    }

    /// Puts a structure `offset` bytes after the header. Returns the offset of its end.
    pub fn put_at<T: IntoBytes + Immutable>(&mut self, offset: usize, value: &T) -> usize {
        let end = offset + size_of::<T>();
        self.payload()[offset..end].copy_from_slice(value.as_bytes());
        end
    }

    /// Puts bytes after the header, for a caller with room for `room_len`. Returns their number.
    ///
    /// # Errors
    /// `RANGE` if the room is too small.
    pub fn put_bytes(&mut self, bytes: &[u8], room_len: u32) -> Result<usize, Errno> {
        let room = self.payload();
        if bytes.len() > room_len as usize || bytes.len() > room.len() {
            return Err(Errno::RANGE);
        }
        room[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    /// The reply to request `unique`: this number of bytes after the header, or an error.
    pub fn finish(self, unique: u64, outcome: Result<usize, Errno>) -> &'m [u8] {
        let (payload_len, error) = match outcome {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.raw_os_error()),
        };
        let end = HEADER_LENGTH + payload_len;
        let header = ReplyHeader {
            len: end as u32,
            error,
            unique,
        };
        self.0[..HEADER_LENGTH].copy_from_slice(header.as_bytes());
        &self.0[..end]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_follows_the_header() {
        let mut memory = [0xee; 64];
        let mut reply = Reply::new(&mut memory);
        reply.data(3).unwrap().copy_from_slice(b"abc");
        let bytes = reply.finish(7, Ok(3));
        assert_eq!(bytes[..4], 19_u32.to_ne_bytes());
        assert_eq!(bytes[4..8], [0; 4]);
        assert_eq!(bytes[8..16], 7_u64.to_ne_bytes());
        assert_eq!(&bytes[16..], b"abc");
        let bytes = Reply::new(&mut memory).finish(7, Err(Errno::NOENT));
        assert_eq!(bytes.len(), 16);
        assert_eq!(bytes[4..8], (-2_i32).to_ne_bytes());
    }

    #[test]
    fn more_than_was_negotiated_is_rejected() {
        let mut memory = [0; HEADER_LENGTH + 8192];
        let mut reply = Reply::new(&mut memory);
        assert_eq!(reply.data(8192).unwrap().len(), 8192);
        assert_eq!(reply.data(8193).unwrap_err(), Errno::INVAL);
        assert_eq!(reply.put_bytes(b"abc", 2), Err(Errno::RANGE));
        assert_eq!(reply.put_bytes(b"abc", 3), Ok(3));
    }
}
