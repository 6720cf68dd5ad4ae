//! The one buffer of zeros that every write of a run shares.
//!
//! Page-aligned, as direct I/O wants it, and in one huge page where the kernel
//! has one to give: a 2 MiB request is then one segment instead of 512.

use std::io;
use std::ptr::{self, NonNull};
use std::slice;

/// Read-only zeros, aligned to their own length.
pub(crate) struct ZeroBuffer {
    map: NonNull<libc::c_void>,
    map_len: usize,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned by the value and never written after construction.
unsafe impl Send for ZeroBuffer {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for ZeroBuffer {}

impl ZeroBuffer {
    /// `len` zero bytes; a power of two, at least a page.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        assert!(len.is_power_of_two() && len >= 4096);
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
        // SAFETY: `skip < len`, so `start + skip` and the `len` bytes after it lie in the mapping.
        let start = unsafe { NonNull::new_unchecked(start.add(skip)) };
        // SAFETY: advice on, and a write of zeros to, memory that is ours alone. The advice may
        // fail (no huge pages); the write gives the buffer real pages instead of the zero page.
        unsafe {
            libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
            ptr::write_bytes(start.as_ptr(), 0, len);
        }
        Ok(Self {
            map,
            map_len,
            start,
            len,
        })
    }

    /// The zeros.
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that live as long as `self`.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for ZeroBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` and nothing refers to it any more.
        unsafe { libc::munmap(self.map.as_ptr(), self.map_len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_zero_and_aligned_to_its_length() {
        let buffer = ZeroBuffer::new(1 << 20).unwrap();
        assert_eq!(buffer.as_slice().len(), 1 << 20);
        assert!(buffer.as_slice().iter().all(|&byte| byte == 0));
        assert_eq!(buffer.as_slice().as_ptr() as usize % (1 << 20), 0);
    }
}
