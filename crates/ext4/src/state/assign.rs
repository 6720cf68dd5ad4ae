//! Assigning blocks on the device, according to the options, and discarding unused ones.
//!
//! With [`Assign::Require`] no accepted operation fails later because a layer below is full. The
//! existing metadata is assigned as a whole on opening: superblocks, descriptors, bitmaps, inode
//! tables, journal. Later metadata (tree nodes, blocks of directories and attributes) is assigned
//! before anything refers to it: the operation that needs it fails with `NoSpace`. Other such
//! blocks were written before, so they have space.

use std::ops::Range;

use extant_blockdev::{Assigned, Device, Operation, Request};
use extant_mballoc::BlockRange;
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{ByteRange, Error, ErrorKind, Result, traced};

use super::FsState;
use crate::options::Assign;

/// Ranges of the file system's own that are given their place together.
const RANGES_MAX: usize = 64;

impl FsState {
    /// Gives new blocks of a file their place.
    ///
    /// # Errors
    /// With [`Assign::Require`]: `NoSpace` and others of the device, `Unsupported` when it does not
    /// assign. Nothing may then refer to the blocks.
    pub(crate) fn assign(&self, first: PhysicalBlock, blocks: u64) -> Result<()> {
        if self.options.assign == Assign::Off {
            return Ok(());
        }
        let blocks = first.0..first.0 + blocks;
        if self.assigned.has(&blocks) {
            return Ok(());
        }
        let bits = self.layout.block_bits();
        let range = ByteRange::new(blocks.start << bits, blocks.end << bits);
        let assigned = traced!(
            DEBUG,
            "assign",
            (device_bytes = range.start(), length_bytes = range.len()),
            self.device.assign(range)
        );
        match assigned {
            Ok(Assigned::Done) => self.assigned.note(&blocks),
            Ok(Assigned::Refused) => {}
            Err(_) => {
                // Space assigned before the failure is needed by others below. Nothing refers to
                // these blocks yet.
                self.assigned.forget(&blocks);
                let _ = self.device.discard(range);
            }
        }
        match (self.options.assign, assigned) {
            (Assign::Require, Err(error)) => Err(error),
            (Assign::Require, Ok(Assigned::Refused)) => Err(refused(range)),
            _ => Ok(()),
        }
    }

    /// The same for a metadata block, which is written later, when errors cannot be reported.
    pub(crate) fn assign_metadata(&self, block: PhysicalBlock) -> Result<()> {
        match self.options.assign {
            Assign::Require => self.assign(block, 1),
            Assign::Off | Assign::Try => Ok(()),
        }
    }

    /// Notes that the device may take the place of blocks back.
    pub(crate) fn forget_place(&self, blocks: &Range<u64>) {
        self.assigned.forget(blocks);
    }

    /// Assigns the fixed metadata of the file system, if required.
    ///
    /// # Errors
    /// As [`assign`](Self::assign).
    pub(crate) fn assign_system(&self) -> Result<()> {
        if self.options.assign != Assign::Require {
            return Ok(());
        }
        let bits = self.layout.block_bits();
        let zone = self.groups.zone().within(0..self.layout.blocks());
        let ranges: Vec<_> = zone
            .map(|blocks| ByteRange::new(blocks.start << bits, blocks.end << bits))
            .collect();
        for together in ranges.chunks(RANGES_MAX) {
            let assign = |range: &ByteRange| Request::new(Operation::Assign(*range));
            let mut requests: Vec<_> = together.iter().map(assign).collect();
            self.device.submit(&mut requests);
            for (request, range) in requests.into_iter().zip(together) {
                request.into_result().map_err(|error| match error.kind() {
                    ErrorKind::Unsupported => refused(*range),
                    _ => error,
                })?;
            }
        }
        Ok(())
    }

    /// Discards free blocks; returns their size in bytes.
    ///
    /// # Errors
    /// Errors of the device; some blocks are discarded then.
    pub(crate) fn discard(&self, ranges: &[BlockRange]) -> Result<u64> {
        let bits = self.layout.block_bits();
        let bytes =
            |range: &BlockRange| ByteRange::new(range.start().0 << bits, range.end().0 << bits);
        for range in ranges {
            self.assigned.forget(&(range.start().0..range.end().0));
        }
        let discard = |range| Request::new(Operation::Discard(bytes(range)));
        let mut requests: Vec<_> = ranges.iter().map(discard).collect();
        self.device.submit(&mut requests);
        requests.into_iter().try_for_each(Request::into_result)?;
        Ok(ranges.iter().map(|range| bytes(range).len()).sum())
    }
}

fn refused(range: ByteRange) -> Error {
    Error::new(ErrorKind::Unsupported)
        .detail("the device does not assign")
        .in_range(range)
}
