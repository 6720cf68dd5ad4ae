//! Counts the requests of a loop device to its file.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_space::{ByteRange, Extent, FallocateMode, Result, SpaceFile, SyncMode};

/// A file, and how often space was asked of it.
pub(super) struct CountingFile<F> {
    inner: F,
    pieces: AtomicU64,
    largest: AtomicU64,
}

/// Allocation requests since the last call of `take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pieces {
    /// Number of requests.
    pub(super) count: u64,
    /// Bytes of the largest.
    pub(super) largest: u64,
}

impl<F> CountingFile<F> {
    pub(super) fn new(inner: F) -> Self {
        Self {
            inner,
            pieces: AtomicU64::new(0),
            largest: AtomicU64::new(0),
        }
    }

    /// Returns the counts and resets them.
    pub(super) fn take(&self) -> Pieces {
        Pieces {
            count: self.pieces.swap(0, Ordering::Relaxed),
            largest: self.largest.swap(0, Ordering::Relaxed),
        }
    }
}

impl<F: SpaceFile> SpaceFile for CountingFile<F> {
    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()> {
        self.inner.write_at(buffer, offset)
    }

    fn resize(&self, size_bytes: u64) -> Result<()> {
        self.inner.resize(size_bytes)
    }

    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        if mode == FallocateMode::AllocateKeepSize {
            self.pieces.fetch_add(1, Ordering::Relaxed);
            self.largest.fetch_max(range.len(), Ordering::Relaxed);
        }
        self.inner.fallocate(mode, range)
    }

    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.for_each_extent(range, visit)
    }

    fn sync(&self, mode: SyncMode) -> Result<()> {
        self.inner.sync(mode)
    }
}
