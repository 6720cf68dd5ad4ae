//! The trait that joins host files and files inside images.

use std::ops::ControlFlow;

use crate::{ByteRange, Extent, FallocateMode, Result};

/// What must be durable after a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Data and what is needed to read it back (`fdatasync`).
    Data,
    /// Data and all attributes (`fsync`).
    All,
}

/// A file whose space can be seen and managed.
///
/// All methods take `&self` and may be called from several threads.
pub trait SpaceFile: Send + Sync {
    /// Size in bytes.
    fn size(&self) -> Result<u64>;

    /// Reads at `offset` until `buffer` is full or the file ends; returns the bytes read.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;

    /// Writes all of `buffer` at `offset`, growing the file as needed.
    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<()>;

    /// Cuts the file or makes it longer by a hole.
    fn resize(&self, size_bytes: u64) -> Result<()>;

    /// One operation of `fallocate(2)`, as the file system below does it:
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where it does not.
    fn fallocate(&self, mode: FallocateMode, range: ByteRange) -> Result<()>;

    /// Visits the extents of `range` in order, holes included, until `visit` breaks.
    /// Neighbouring extents may share state and place; nothing is merged.
    fn for_each_extent(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Makes what was written durable.
    fn sync(&self, mode: SyncMode) -> Result<()>;

    /// The extents of `range` in a list. For maps of unknown length prefer
    /// [`for_each_extent`](Self::for_each_extent), which needs no memory.
    fn extents(&self, range: ByteRange) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        self.for_each_extent(range, &mut |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        })?;
        Ok(extents)
    }
}
