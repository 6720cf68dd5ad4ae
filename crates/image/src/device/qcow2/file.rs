//! Reading and writing metadata in the file of an image.

use std::sync::Arc;

use extant_blockdev::{Device, Operation, Persistence, Request};
use extant_space::Result;

use super::cluster_cache::DirtyRange;
use crate::device::Store;

/// The file, for metadata.
#[derive(Clone)]
pub(super) struct MetadataFile(pub(super) Arc<dyn Store>);

impl MetadataFile {
    /// Fills `into` from `offset`; beyond the end of the file it reads as zeros.
    pub(super) fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        read_or_zero(&*self.0, offset, into)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.0.write_at(bytes, offset, Persistence::Cached)
    }

    /// Writes all pieces, as one batch.
    pub(super) fn write_all(&self, pieces: &[DirtyRange]) -> Result<()> {
        let mut requests: Vec<_> = pieces
            .iter()
            .map(|piece| Request::write(piece.offset, &piece.bytes, Persistence::Cached))
            .collect();
        self.0.submit(&mut requests);
        requests.into_iter().try_for_each(Request::into_result)
    }

    /// Alignment of writes to the file.
    pub(super) fn block_bytes(&self) -> u32 {
        self.0.geometry().logical_block.max(512)
    }

    pub(super) fn flush(&self) -> Result<()> {
        self.0.run(Operation::Flush)
    }
}

/// Fills `into` from `offset` of a device; beyond its end it reads as zeros.
pub(super) fn read_or_zero(
    device: &(impl Device + ?Sized),
    offset: u64,
    into: &mut [u8],
) -> Result<()> {
    let size = device.geometry().size;
    let there = size.saturating_sub(offset).min(into.len() as u64) as usize;
    let (data, rest) = into.split_at_mut(there);
    rest.fill(0);
    if data.is_empty() {
        return Ok(());
    }
    device.read_at(data, offset)
}
