//! One system call on one file, with the memory that it uses.
//!
//! A [`Call`] owns or borrows its memory for as long as it lives, so that its executor
//! ([`Call::execute`] or a [ring](crate::ring)) needs no other safety condition. A short read or
//! write is [advanced](Call::advance) past the done part and repeated.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;

use extant_space::ByteRange;
use rustix::fs::FallocateFlags;
use rustix::io::ReadWriteFlags;
use smallvec::SmallVec;

use crate::buffer::AlignedBuffer;
use crate::shared::SharedMemory;

/// Most parts of memory in one call (`IOV_MAX`); a call with more ends short.
pub const PARTS_MAX: usize = 1024;

/// Destination of a read, one part after the other.
pub type ReadParts<'a> = SmallVec<[IoSliceMut<'a>; 1]>;
/// Source of a write, one part after the other.
pub type WriteParts<'a> = SmallVec<[IoSlice<'a>; 1]>;

// _IO(0x12, 119) of linux/fs.h, with a start and a length.
const BLKDISCARD: libc::Ioctl = 0x1277;

/// A call to the kernel. Offsets and lengths are in bytes.
#[derive(Debug)]
pub enum Call<'a> {
    /// `preadv(2)`.
    Read {
        /// First byte in the file.
        offset: u64,
        /// Destination of the data.
        into: Memory<ReadParts<'a>>,
    },
    /// `pwritev2(2)`.
    Write {
        /// First byte in the file.
        offset: u64,
        /// Source of the data.
        from: Memory<WriteParts<'a>>,
        /// Whether the write is durable when it ends.
        durability: Durability,
    },
    /// `fallocate(2)`.
    Fallocate {
        /// Mode of the call.
        mode: FallocateFlags,
        /// To which bytes.
        range: ByteRange,
    },
    /// `BLKDISCARD` on a block device.
    Discard(ByteRange),
    /// `fdatasync(2)`.
    SyncData,
}

/// Memory of a read or write.
#[derive(Debug)]
pub enum Memory<P> {
    /// The caller's.
    Parts(P),
    /// A part of an own buffer.
    Buffer(AlignedBuffer, Range<usize>),
    /// Memory of a virtual machine.
    Shared(SharedMemory),
}

/// Whether a write waits for the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It ends when a read sees it.
    Cached,
    /// It ends when it is durable (`RWF_DSYNC`).
    Durable,
}

impl Durability {
    /// Flags of a write that is handed to the kernel as a description (`RWF_*` of linux/fs.h).
    pub(crate) fn rw_flags(self) -> i32 {
        match self {
            Self::Cached => 0,
            Self::Durable => libc::RWF_DSYNC,
        }
    }
}

impl Call<'_> {
    /// Makes the call here and now. Returns the bytes read or written, 0 for other calls.
    pub fn execute(&mut self, file: &File) -> io::Result<usize> {
        let moved = match self {
            Self::Read { offset, into } => match into {
                Memory::Parts(parts) => {
                    let count = parts.len().min(PARTS_MAX);
                    rustix::io::preadv(file, &mut parts[..count], *offset)?
                }
                Memory::Buffer(buffer, part) => {
                    rustix::io::pread(file, &mut buffer.as_mut_slice()[part.clone()], *offset)?
                }
                Memory::Shared(shared) => shared.read_from(file, *offset)?,
            },
            Self::Write {
                offset,
                from,
                durability,
            } => {
                let flags = match durability {
                    Durability::Cached => ReadWriteFlags::empty(),
                    Durability::Durable => ReadWriteFlags::DSYNC,
                };
                let (parts, part);
                let parts: &[IoSlice<'_>] = match from {
                    Memory::Parts(all) => {
                        parts = all;
                        &parts[..parts.len().min(PARTS_MAX)]
                    }
                    Memory::Buffer(buffer, range) => {
                        part = [IoSlice::new(&buffer.as_slice()[range.clone()])];
                        &part
                    }
                    Memory::Shared(shared) => {
                        return shared.write_to(file, *offset, durability.rw_flags());
                    }
                };
                rustix::io::pwritev2(file, parts, *offset, flags)?
            }
            Self::Fallocate { mode, range } => {
                rustix::fs::fallocate(file, *mode, range.start(), range.len())?;
                0
            }
            Self::Discard(range) => {
                discard(file, *range)?;
                0
            }
            Self::SyncData => {
                rustix::fs::fdatasync(file)?;
                0
            }
        };
        Ok(moved)
    }

    /// Leaves out the first `bytes` of a read or write.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn advance(&mut self, bytes: usize) {
        match self {
            Self::Read { offset, into } => {
                *offset += bytes as u64;
                match into {
                    Memory::Parts(parts) => {
                        let count = parts.len();
                        let mut rest = &mut parts[..];
                        IoSliceMut::advance_slices(&mut rest, bytes);
                        let done = count - rest.len();
                        parts.drain(..done);
                    }
                    Memory::Buffer(_, part) => advance(part, bytes),
                    Memory::Shared(shared) => shared.advance(bytes),
                }
            }
            Self::Write { offset, from, .. } => {
                *offset += bytes as u64;
                match from {
                    Memory::Parts(parts) => {
                        let count = parts.len();
                        let mut rest = &mut parts[..];
                        IoSlice::advance_slices(&mut rest, bytes);
                        let done = count - rest.len();
                        parts.drain(..done);
                    }
                    Memory::Buffer(_, part) => advance(part, bytes),
                    Memory::Shared(shared) => shared.advance(bytes),
                }
            }
            Self::Fallocate { .. } | Self::Discard(_) | Self::SyncData => {
                assert_eq!(bytes, 0, "a call without data moves none");
            }
        }
    }

    /// Bytes still to be read or written.
    pub fn remaining(&self) -> usize {
        match self {
            Self::Read { into, .. } => match into {
                Memory::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
                Memory::Buffer(_, part) => part.len(),
                Memory::Shared(shared) => shared.remaining(),
            },
            Self::Write { from, .. } => match from {
                Memory::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
                Memory::Buffer(_, part) => part.len(),
                Memory::Shared(shared) => shared.remaining(),
            },
            Self::Fallocate { .. } | Self::Discard(_) | Self::SyncData => 0,
        }
    }

    /// The own buffer of a read or write.
    pub fn into_buffer(self) -> Option<AlignedBuffer> {
        match self {
            Self::Read {
                into: Memory::Buffer(buffer, _),
                ..
            }
            | Self::Write {
                from: Memory::Buffer(buffer, _),
                ..
            } => Some(buffer),
            _ => None,
        }
    }
}

fn advance(part: &mut Range<usize>, bytes: usize) {
    assert!(bytes <= part.len(), "{bytes} bytes of {part:?}");
    part.start += bytes;
}

fn discard(file: &File, range: ByteRange) -> io::Result<()> {
    let range = [range.start(), range.len()];
    // SAFETY: the kernel reads two numbers from memory that lives for the call; the descriptor does
    // as well.
    match unsafe { libc::ioctl(file.as_raw_fd(), BLKDISCARD, range.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn read_resumes_in_the_middle_of_a_part_after_it_is_advanced() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abcdefgh").unwrap();
        let (mut a, mut b, mut c) = ([0; 2], [0; 3], [0; 3]);
        let parts = [&mut a[..], &mut b[..], &mut c[..]].map(IoSliceMut::new);
        let mut call = Call::Read {
            offset: 0,
            into: Memory::Parts(parts.into_iter().collect()),
        };
        call.advance(3);
        assert_eq!(call.remaining(), 5);
        assert_eq!(call.execute(&file).unwrap(), 5);
        drop(call);
        assert_eq!((&a, &b, &c), (b"\0\0", b"\0de", b"fgh"));
    }

    #[test]
    fn write_from_a_part_of_a_buffer_lands_at_the_offset() {
        let file = tempfile::tempfile().unwrap();
        let mut buffer = AlignedBuffer::new(4096).unwrap();
        buffer.as_mut_slice()[..4].copy_from_slice(b"abcd");
        let mut call = Call::Write {
            offset: 10,
            from: Memory::Buffer(buffer, 0..4),
            durability: Durability::Durable,
        };
        call.advance(1);
        assert_eq!(call.execute(&file).unwrap(), 3);
        let mut bytes = [0; 14];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
        assert_eq!(&bytes, b"\0\0\0\0\0\0\0\0\0\0\0bcd");
        assert_eq!(call.into_buffer().unwrap().as_slice()[0], b'a');
    }

    #[test]
    fn discard_of_a_regular_file_is_refused_by_the_kernel() {
        let file = tempfile::tempfile().unwrap();
        let error = Call::Discard(ByteRange::new(0, 4096)).execute(&file);
        assert!(matches!(
            error.unwrap_err().raw_os_error(),
            Some(libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP)
        ));
    }
}
