//! Aligned memory for callers with unaligned memory.

use std::io;

use extant_sys::buffer::AlignedBuffer;
use extant_sys::call::PARTS_MAX;
use extant_sys::direct::DirectIo;
use parking_lot::Mutex;

use super::limits::TRANSFER;

/// Buffers kept for the next request; more are freed.
const KEPT: usize = 16;

/// Whether direct I/O accepts these parts of memory without a copy. Each must start aligned, and be
/// whole blocks.
pub(super) fn is_aligned<'p>(
    direct: DirectIo,
    logical_block: u32,
    mut parts: impl ExactSizeIterator<Item = &'p [u8]>,
) -> bool {
    if parts.len() > PARTS_MAX {
        // A call accepts fewer parts, and would end at any of them.
        return false;
    }
    parts.all(|part| {
        part.as_ptr()
            .addr()
            .is_multiple_of(direct.memory_bytes.max(1) as usize)
            && part.len().is_multiple_of(logical_block as usize)
    })
}

/// Buffers of [`TRANSFER`] bytes, whose memory is allocated on first use.
#[derive(Default)]
pub(super) struct BounceBuffers(Mutex<Vec<AlignedBuffer>>);

impl BounceBuffers {
    pub(super) fn take(&self) -> io::Result<AlignedBuffer> {
        let kept = self.0.lock().pop();
        match kept {
            Some(buffer) => Ok(buffer),
            None => AlignedBuffer::new(TRANSFER),
        }
    }

    pub(super) fn put(&self, buffer: AlignedBuffer) {
        let mut kept = self.0.lock();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    }
}
