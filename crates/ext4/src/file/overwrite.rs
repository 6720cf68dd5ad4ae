//! Overwriting in place: writes that change no mapping exclude no other writer.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::{Device, Persistence, Request};
use extant_ondisk::ext4::extent::ExtentKind;
use extant_space::Result;
use smallvec::SmallVec;

use super::stamp::{Stamp, WriteTimes};
use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::mapping;
use crate::sync::read;
use crate::tree::Mapping;

/// Pieces that are written together; a range in more is left to the long way.
const PIECES_MAX: usize = 32;

/// Whether anything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    Yes,
    /// It is not for this way, and nothing has happened.
    No,
}

impl Engine {
    /// Writes `from` at `offset` if all of it is written already, in whole blocks of the device:
    /// only such writes can run concurrently.
    pub(super) fn overwrite(
        &self,
        cell: &Arc<InodeCell>,
        from: &[u8],
        offset: u64,
        times: WriteTimes,
    ) -> Result<Done> {
        let fs = &*self.fs;
        let unit = u64::from(fs.device.geometry().logical_block);
        let end = match offset.checked_add(from.len() as u64) {
            Some(end) if offset.is_multiple_of(unit) && end.is_multiple_of(unit) => end,
            _ => return Ok(Done::No),
        };
        let _shared = read(&cell.operation);
        let mut pieces: SmallVec<[(u64, usize); 4]> = SmallVec::new();
        {
            let state = read(&cell.state);
            state.check_writable(offset, &fs.layout)?;
            if end > state.inode.size_bytes(&fs.layout) {
                return Ok(Done::No);
            }
            let bits = fs.layout.block_bits();
            let blocks = offset >> bits..fs.block_after(end);
            let format = fs.tree_format(&state);
            let found =
                mapping::walk(&state.inode, &fs.cache, format, blocks, |part| match part {
                    Mapping::Extent(extent)
                        if extent.kind == ExtentKind::Written && pieces.len() < PIECES_MAX =>
                    {
                        let start = u64::from(extent.logical.0) << bits;
                        let (from, to) =
                            (start.max(offset), (extent.logical_end() << bits).min(end));
                        let place = (extent.physical.0 << bits) + (from - start);
                        pieces.push((place, (to - from) as usize));
                        ControlFlow::Continue(())
                    }
                    _ => ControlFlow::Break(()),
                })?;
            let covered: usize = pieces.iter().map(|(_, length)| length).sum();
            if found.is_break() || covered != from.len() {
                return Ok(Done::No);
            }
        }
        let mut rest = from;
        let mut requests: SmallVec<[Request<'_>; 4]> = SmallVec::new();
        for (place, length) in pieces {
            let (piece, after) = rest.split_at(length);
            requests.push(Request::write(place, piece, Persistence::Cached));
            rest = after;
        }
        fs.device.submit(&mut requests);
        requests.into_iter().try_for_each(Request::into_result)?;
        self.stamp(cell, Stamp::of_write(end, times))?;
        Ok(Done::Yes)
    }
}
