//! Location of the journal's blocks on the device.
//!
//! Model: the journal is a file of the file system it serves: runs of blocks, in file order. The
//! journal and the blocks it protects are on one device; an external journal is not supported.

use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, ErrorKind, Result};

/// Contiguous blocks of the journal on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first block, counted from the start of the device.
    pub first: PhysicalBlock,
    /// How many.
    pub blocks: u32,
}

impl Run {
    /// The first block behind it. Checked when it became part of a [`JournalLocation`].
    fn end(&self) -> u64 {
        self.first.0 + u64::from(self.blocks)
    }
}

/// Location of the journal.
#[derive(Clone, Debug)]
pub struct JournalLocation {
    block_bytes: u32,
    blocks: u32,
    /// Each run with the journal's block that it begins with, in that order.
    runs: Vec<(u32, Run)>,
    /// The same runs in the order of the device.
    on_device: Vec<Run>,
}

impl JournalLocation {
    /// The location made of `runs`, in blocks of `block_bytes`, which is also the block of the file
    /// system.
    ///
    /// # Errors
    /// `InvalidArgument` for a block that is no power of two from 1,024 to 65,536, `Corrupt` for
    /// runs that are empty, overlap, or have more blocks than a journal can.
    pub fn new(block_bytes: u32, runs: &[Run]) -> Result<Self> {
        if !block_bytes.is_power_of_two() || !(1024..=65536).contains(&block_bytes) {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail(format!("journal in blocks of {block_bytes} bytes")));
        }
        let corrupt = |problem: String| Error::new(ErrorKind::Corrupt).detail(problem);
        let mut placed = Vec::with_capacity(runs.len());
        let mut blocks = 0u32;
        for run in runs {
            let end = run.first.0.checked_add(u64::from(run.blocks));
            let end_bytes = end.and_then(|end| end.checked_mul(u64::from(block_bytes)));
            if run.blocks == 0 || end_bytes.is_none() {
                return Err(corrupt(format!(
                    "journal has a run of {} blocks at block {}",
                    run.blocks, run.first
                )));
            }
            placed.push((blocks, *run));
            blocks = blocks
                .checked_add(run.blocks)
                .ok_or_else(|| corrupt("journal has more than 2^32 blocks".into()))?;
        }
        if blocks == 0 {
            return Err(corrupt("journal without blocks".into()));
        }
        let mut on_device = runs.to_vec();
        on_device.sort_by_key(|run| run.first.0);
        if let Some(pair) = on_device
            .windows(2)
            .find(|pair| pair[0].end() > pair[1].first.0)
        {
            return Err(corrupt(format!(
                "journal has block {} twice",
                pair[1].first
            )));
        }
        Ok(Self {
            block_bytes,
            blocks,
            runs: placed,
            on_device,
        })
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Whether a block of the device belongs to the journal.
    pub fn contains(&self, block: PhysicalBlock) -> bool {
        let after = self.on_device.partition_point(|run| run.first <= block);
        after > 0 && block.0 < self.on_device[after - 1].end()
    }

    /// Runs of `count` blocks of the journal from `first` on, in order.
    ///
    /// # Panics
    /// If the journal has fewer blocks.
    pub fn runs(&self, first: u32, count: u32) -> impl Iterator<Item = Run> + '_ {
        assert!(
            count <= self.blocks && first <= self.blocks - count,
            "{count} blocks from {first} in a journal of {}",
            self.blocks
        );
        let (mut at, end) = (first, first + count);
        let mut number = self.runs.partition_point(|(logical, _)| *logical <= first) - 1;
        std::iter::from_fn(move || {
            if at == end {
                return None;
            }
            let (logical, run) = self.runs[number];
            let skipped = at - logical;
            let blocks = (run.blocks - skipped).min(end - at);
            at += blocks;
            number += 1;
            Some(Run {
                first: PhysicalBlock(run.first.0 + u64::from(skipped)),
                blocks,
            })
        })
    }

    /// The first byte behind all runs.
    pub(crate) fn end_bytes(&self) -> u64 {
        let end = self.on_device.last().map_or(0, Run::end);
        end * u64::from(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, blocks: u32) -> Run {
        Run {
            first: PhysicalBlock(first),
            blocks,
        }
    }

    fn location() -> JournalLocation {
        JournalLocation::new(1024, &[run(100, 10), run(50, 5), run(200, 1)]).unwrap()
    }

    #[test]
    fn runs_follow_the_order_of_the_file() {
        let location = location();
        let all: Vec<_> = location.runs(0, 16).collect();
        assert_eq!(all, [run(100, 10), run(50, 5), run(200, 1)]);
        let middle: Vec<_> = location.runs(9, 3).collect();
        assert_eq!(middle, [run(109, 1), run(50, 2)]);
        assert_eq!(location.runs(16, 0).count(), 0);
    }

    #[test]
    fn contains_is_true_for_blocks_of_the_runs_alone() {
        let location = location();
        for block in 0..300 {
            let expected = (100..110).contains(&block) || (50..55).contains(&block) || block == 200;
            assert_eq!(location.contains(PhysicalBlock(block)), expected, "{block}");
        }
    }

    #[test]
    fn impossible_places_are_refused() {
        let kind = |block, runs: &[Run]| JournalLocation::new(block, runs).unwrap_err().kind();
        assert_eq!(kind(1000, &[run(1, 1)]), ErrorKind::InvalidArgument);
        assert_eq!(kind(1024, &[]), ErrorKind::Corrupt);
        assert_eq!(kind(1024, &[run(1, 0)]), ErrorKind::Corrupt);
        assert_eq!(kind(1024, &[run(u64::MAX, 2)]), ErrorKind::Corrupt);
        assert_eq!(kind(1024, &[run(u64::MAX >> 4, 2)]), ErrorKind::Corrupt);
        assert_eq!(
            kind(1024, &[run(10, u32::MAX), run(1 << 40, 9)]),
            ErrorKind::Corrupt
        );
        assert_eq!(kind(1024, &[run(10, 5), run(14, 1)]), ErrorKind::Corrupt);
    }
}
