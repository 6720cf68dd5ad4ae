//! Memory aligned for direct I/O, and whether it is zero.

use std::fmt;
use std::io;
use std::ptr::{self, NonNull};
use std::slice;

/// Memory of its own pages, aligned to its own length; zero at first.
pub struct AlignedBuffer {
    map: NonNull<libc::c_void>,
    map_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by the value and reached through it alone.
unsafe impl Send for AlignedBuffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// `len` zero bytes, which take memory when they are touched.
    ///
    /// # Panics
    /// When `len` is no power of two, or less than a page.
    pub fn new(len: usize) -> io::Result<Self> {
        assert!(
            len.is_power_of_two() && len >= 4096,
            "a buffer of {len} bytes"
        );
        let map_len = 2 * len;
        // SAFETY: a new private anonymous mapping touches no memory in use.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                map_len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map).expect("mmap never returns address 0 here");
        let start = map.as_ptr().cast::<u8>();
        let skip = start.align_offset(len);
        // SAFETY: `skip < len`, so `start + skip` and the `len` bytes after it are in the mapping.
        let start = unsafe { NonNull::new_unchecked(start.add(skip)) };
        Ok(Self {
            map,
            map_len,
            start,
            len,
        })
    }

    /// As [`new`](Self::new), with memory of its own at once, in huge pages if the kernel has free
    /// ones: a 2 MiB request is then one segment instead of 512.
    pub fn resident(len: usize) -> io::Result<Self> {
        let mut buffer = Self::new(len)?;
        // SAFETY: advice on memory that is ours alone; it may fail, and changes no contents.
        unsafe { libc::madvise(buffer.start.as_ptr().cast(), len, libc::MADV_HUGEPAGE) };
        // The write gives the buffer real pages instead of the zero page.
        buffer.as_mut_slice().fill(0);
        Ok(buffer)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr(), self.map_len) };
    }
}

/// Whether all bytes are zero. The first bytes of data mostly decide.
pub fn is_zero(bytes: &[u8]) -> bool {
    // 64 bytes at a time, which the compiler turns into vector instructions.
    let (blocks, rest) = bytes.as_chunks::<64>();
    blocks.iter().all(|block| *block == [0; 64]) && rest.iter().all(|&byte| byte == 0)
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_zero_aligned_to_its_length_and_keeps_written_bytes() {
        for buffer in [
            AlignedBuffer::new(1 << 20),
            AlignedBuffer::resident(1 << 20),
        ] {
            let mut buffer = buffer.unwrap();
            assert_eq!(buffer.as_slice().len(), 1 << 20);
            assert!(is_zero(buffer.as_slice()));
            assert_eq!(buffer.as_slice().as_ptr() as usize % (1 << 20), 0);
            buffer.as_mut_slice()[(1 << 20) - 1] = 7;
            assert_eq!(buffer.as_slice()[(1 << 20) - 1], 7);
        }
    }

    #[test]
    fn one_bit_anywhere_is_not_zero() {
        let mut bytes = [0; 130];
        assert!(is_zero(&[]) && is_zero(&bytes));
        for at in 0..bytes.len() {
            bytes[at] = 1 << (at % 8);
            assert!(!is_zero(&bytes), "byte {at}");
            bytes[at] = 0;
        }
    }
}
