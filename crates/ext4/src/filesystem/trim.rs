//! Discarding free space: `FITRIM`.
//!
//! Model: a few free runs of a group at a time are withheld from the allocator while the device
//! discards them. No lock is held meanwhile, and a request that finds no space waits for them.
//! Blocks freed by an uncommitted transaction are in use for the allocator, and so are blocks
//! reserved for growing files: neither is discarded.

use std::num::NonZeroU32;
use std::ops::Range;

use extant_blockdev::{Device, Features};
use extant_mballoc::{Block, GroupNumber};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{ByteRange, CancelToken, Error, ErrorKind, Result};

use super::Filesystem;
use crate::state::FsState;

/// Runs that are discarded together.
const RUNS_MAX: usize = 32;

impl Filesystem {
    /// Discards the free space in `range`, in runs of at least `run_bytes_min`; of a run that
    /// extends outside the range the part inside counts. Returns the number of bytes. The range may
    /// extend past the end.
    ///
    /// # Errors
    /// `ReadOnly`; `Unsupported` on a device that does not discard; `InvalidArgument` for a range
    /// that begins past the end or is shorter than a block, and for runs longer than any group has;
    /// `Cancelled`, and errors of the device: then a part is done.
    pub fn trim(&self, range: ByteRange, run_bytes_min: u64, cancel: &CancelToken) -> Result<u64> {
        let fs = &*self.engine.fs;
        if !self.engine.is_writable() {
            return Err(Error::new(ErrorKind::ReadOnly).detail("the file system is read-only"));
        }
        let device = fs.device.geometry();
        if !device.features.contains(Features::DISCARD) {
            return Err(Error::new(ErrorKind::Unsupported).detail("the device does not discard"));
        }
        let layout = &fs.layout;
        let bits = layout.block_bits();
        let group_blocks = u64::from(layout.blocks_per_group());
        let bytes = layout.blocks() << bits;
        if range.start() >= bytes
            || range.len() < u64::from(layout.block_bytes())
            || run_bytes_min > group_blocks << bits
        {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!(
                    "runs of {run_bytes_min} bytes in {range}, in a file system of {bytes} bytes"
                ))
                .during("trim"));
        }
        // The device ignores runs below its granularity.
        let run_bytes_min = run_bytes_min.max(device.limits.discard.granularity);
        let run_blocks_min = run_bytes_min.div_ceil(1 << bits).max(1);
        let run_blocks_min = u32::try_from(run_blocks_min).ok().and_then(NonZeroU32::new);
        let first = fs
            .block_after(range.start())
            .max(layout.first_data_block().0);
        let end = (range.end() >> bits).min(layout.blocks());
        let (Some(run_blocks_min), true) = (run_blocks_min, first < end) else {
            return Ok(0);
        };
        let group = |block| {
            layout
                .locate(PhysicalBlock(block))
                .expect("a block inside")
                .0
                .0
        };
        let mut discarded = 0;
        for number in group(first)..=group(end - 1) {
            discarded += fs.trim_group(number, first..end, run_blocks_min, cancel)?;
        }
        Ok(discarded)
    }
}

impl FsState {
    fn trim_group(
        &self,
        group: u32,
        within: Range<u64>,
        run_blocks_min: NonZeroU32,
        cancel: &CancelToken,
    ) -> Result<u64> {
        let mut discarded = 0;
        let mut at = within.start;
        loop {
            cancel.check()?;
            let withheld = self.allocator.take_for_discard(
                GroupNumber(group),
                Block(at)..Block(within.end),
                run_blocks_min,
                RUNS_MAX,
            );
            let ranges = withheld.ranges();
            let Some(last) = ranges.last() else {
                return Ok(discarded);
            };
            at = last.end().0;
            discarded += self.discard(ranges)?;
        }
    }
}
