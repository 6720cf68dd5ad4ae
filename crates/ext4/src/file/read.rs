//! Reading.

use std::ops::ControlFlow;

use extant_blockdev::{Device, Request};
use extant_ondisk::ext4::extent::ExtentKind;
use extant_space::Result;

use crate::inode_cell::InodeCell;
use crate::io;
use crate::mapping;
use crate::state::FsState;
use crate::sync::read;
use crate::tree::Mapping;

/// Pieces of a file that are read together.
const BATCH: usize = 32;

impl FsState {
    /// Reads at `offset` until `into` is full or the file ends; returns the bytes read.
    pub(crate) fn read_file(
        &self,
        cell: &InodeCell,
        into: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        let _shared = read(&cell.operation);
        self.read_data(cell, into, offset)
    }

    /// The same, under the operation lock of the caller, shared or exclusive.
    pub(crate) fn read_data(
        &self,
        cell: &InodeCell,
        into: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        let (size, pieces) = {
            let state = read(&cell.state);
            state.check_data()?;
            let size = state.inode.size_bytes(&self.layout);
            if offset >= size {
                return Ok(0);
            }
            let length = (size - offset).min(into.len() as u64);
            let end = offset + length;
            let bits = self.layout.block_bits();
            let mut pieces = Vec::new();
            let blocks = offset >> bits..self.block_after(end);
            let _ = mapping::walk(
                &state.inode,
                &self.cache,
                self.tree_format(&state),
                blocks,
                |part| {
                    let range = part.logical();
                    let (from, to) = (
                        (range.start << bits).max(offset),
                        (range.end << bits).min(end),
                    );
                    let place = match part {
                        Mapping::Extent(extent) if extent.kind == ExtentKind::Written => {
                            let start = u64::from(extent.logical.0) << bits;
                            Some((extent.physical.0 << bits) + (from - start))
                        }
                        _ => None,
                    };
                    pieces.push(((to - from) as usize, place));
                    ControlFlow::<()>::Continue(())
                },
            )?;
            (length as usize, pieces)
        };
        self.read_pieces(&mut into[..size], &pieces)?;
        Ok(size)
    }

    /// Fills `into` piece by piece; a piece without a place is zeros.
    fn read_pieces(&self, into: &mut [u8], pieces: &[(usize, Option<u64>)]) -> Result<()> {
        let unit = u64::from(self.device.geometry().logical_block);
        let mut rest = into;
        for batch in pieces.chunks(BATCH) {
            let mut requests = Vec::with_capacity(batch.len());
            let mut odd = Vec::new();
            for &(length, place) in batch {
                let (piece, after) = rest.split_at_mut(length);
                rest = after;
                match place {
                    None => piece.fill(0),
                    Some(place)
                        if place.is_multiple_of(unit) && (length as u64).is_multiple_of(unit) =>
                    {
                        requests.push(Request::read(place, piece));
                    }
                    Some(place) => odd.push((place, piece)),
                }
            }
            self.device.submit(&mut requests);
            requests
                .into_iter()
                .try_for_each(|request| request.into_result())?;
            for (place, piece) in odd {
                io::read(&*self.device, place, piece)?;
            }
        }
        Ok(())
    }
}
