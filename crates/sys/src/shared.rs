//! Memory that is shared with a virtual machine, as source or destination of a system call.
//!
//! The machine may change the bytes at any time. No Rust reference to them exists: the kernel gets
//! their addresses, and the copies made here are the volatile ones of `vm-memory`. A caller that
//! decides by the bytes copies them first, once.
//!
//! Safety invariant: each part is within a mapping that `owner` keeps, whatever becomes of the
//! machine's memory meanwhile.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use smallvec::SmallVec;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, VolatileSlice};

/// Ranges of a machine's memory, one after the other.
pub struct SharedMemory {
    owner: Arc<GuestMemoryMmap>,
    parts: SmallVec<[libc::iovec; 1]>,
    /// Parts that were read or written.
    parts_done: usize,
    /// Bytes that were taken off the front of the part after them.
    bytes_done: usize,
}

// SAFETY: the addresses are valid in every thread while `owner` lives, and the bytes behind them
// are reached by the kernel and by volatile accesses only.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// The `ranges` of `memory`. `None` if they are not all in it.
    pub fn new(
        memory: Arc<GuestMemoryMmap>,
        ranges: impl IntoIterator<Item = (GuestAddress, usize)>,
    ) -> Option<Self> {
        let mut parts = SmallVec::new();
        for (address, bytes) in ranges {
            // A range that spans regions has a part in each.
            for slice in memory.get_slices(address, bytes) {
                let slice = slice.ok()?;
                parts.push(libc::iovec {
                    iov_base: slice.ptr_guard_mut().as_ptr().cast(),
                    iov_len: slice.len(),
                });
            }
        }
        Some(Self {
            owner: memory,
            parts,
            parts_done: 0,
            bytes_done: 0,
        })
    }

    /// Bytes still to be read or written.
    pub fn remaining(&self) -> usize {
        self.rest().iter().map(|part| part.iov_len).sum()
    }

    /// Whether each part starts at a multiple of `bytes` and is a multiple of it.
    pub fn is_aligned(&self, bytes: usize) -> bool {
        self.parts.iter().all(|part| {
            part.iov_base.addr().is_multiple_of(bytes) && part.iov_len.is_multiple_of(bytes)
        })
    }

    /// Copies the bytes as they are now; each is read once.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.remaining(), "lengths differ");
        let mut rest = into;
        for slice in self.slices() {
            let (now, later) = rest.split_at_mut(slice.len());
            slice.copy_to(now);
            rest = later;
        }
    }

    /// Replaces the bytes.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy_from(&self, from: &[u8]) {
        assert_eq!(from.len(), self.remaining(), "lengths differ");
        let mut rest = from;
        for slice in self.slices() {
            let (now, later) = rest.split_at(slice.len());
            slice.copy_from(now);
            rest = later;
        }
    }

    /// Replaces the bytes by zeros.
    pub fn fill_zero(&self) {
        const ZEROES: [u8; 4096] = [0; 4096];
        for slice in self.slices() {
            let mut at = 0;
            while let Ok(rest) = slice.offset(at)
                && !rest.is_empty()
            {
                rest.copy_from(&ZEROES[..]);
                at += rest.len().min(ZEROES.len());
            }
        }
    }

    /// Leaves out the first `bytes`.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn advance(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let part = &mut self.parts[self.parts_done];
            let count = bytes.min(part.iov_len);
            part.iov_base = part.iov_base.wrapping_byte_add(count);
            part.iov_len -= count;
            self.bytes_done += count;
            bytes -= count;
            if part.iov_len == 0 {
                self.restore_part();
                self.parts_done += 1;
            }
        }
    }

    /// Takes back every [`advance`](Self::advance).
    pub fn rewind(&mut self) {
        if self.bytes_done > 0 {
            self.restore_part();
        }
        self.parts_done = 0;
    }

    fn restore_part(&mut self) {
        let bytes = std::mem::take(&mut self.bytes_done);
        let part = &mut self.parts[self.parts_done];
        part.iov_base = part.iov_base.wrapping_byte_sub(bytes);
        part.iov_len += bytes;
    }

    fn rest(&self) -> &[libc::iovec] {
        &self.parts[self.parts_done..]
    }

    fn slices(&self) -> impl Iterator<Item = VolatileSlice<'_>> {
        let slice = |part: &libc::iovec| {
            // SAFETY: the part is within a mapping that `owner` keeps for as long as `self` is
            // borrowed, and all accesses to it are volatile or the kernel's.
            unsafe { VolatileSlice::new(part.iov_base.cast(), part.iov_len) }
        };
        self.rest().iter().map(slice)
    }

    /// Parts for one call of the kernel. They stay where they are while `self` is neither
    /// moved nor advanced, and their memory is mapped while it lives.
    pub(crate) fn call_parts(&self) -> &[libc::iovec] {
        let rest = self.rest();
        &rest[..rest.len().min(libc::UIO_MAXIOV as usize)]
    }

    pub(crate) fn read_from(&self, file: &File, offset: u64) -> io::Result<usize> {
        let parts = self.call_parts();
        let (count, offset) = (parts.len() as libc::c_int, offset as libc::off_t);
        // SAFETY: the kernel writes to the parts alone, whose memory is mapped while `self` lives,
        // and of which there are no references.
        let moved = unsafe { libc::preadv(file.as_raw_fd(), parts.as_ptr(), count, offset) };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }

    pub(crate) fn write_to(&self, file: &File, offset: u64, flags: i32) -> io::Result<usize> {
        let parts = self.call_parts();
        let (count, offset) = (parts.len() as libc::c_int, offset as libc::off_t);
        // SAFETY: the kernel reads the parts alone, whose memory is mapped while `self` lives.
        let moved =
            unsafe { libc::pwritev2(file.as_raw_fd(), parts.as_ptr(), count, offset, flags) };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regions = self.owner.num_regions();
        let (bytes, parts) = (self.remaining(), self.rest().len());
        write!(
            f,
            "SharedMemory({bytes} bytes, {parts} parts, {regions} regions)"
        )
    }
}

#[cfg(test)]
mod tests;
