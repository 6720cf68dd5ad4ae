//! An aged disk: random files created and removed for a long time.
//!
//! Sizes are log-uniform from 4 KiB to 4 MiB: as many files of 4 to 8 KiB as of 2 to 4 MiB. Every
//! file allocates all of its blocks at once. The disk is filled; then a random file is removed
//! whenever it is full, and one is created whenever it is not. The seed determines everything.

use std::ops::ControlFlow;

use anyhow::Result;
use extant_mballoc::{Allocator, BlockRange, Free, Goal, Options, Request, RequestFlags};

use super::disk::{self, Fresh};
use crate::random::Random;

/// Blocks of the largest file.
const BLOCKS_MAX: f64 = 1024.0;
const SEED: u64 = 42;

/// The disk, and its files.
pub(super) struct Aged {
    pub(super) allocator: Allocator,
    files: Vec<Vec<BlockRange>>,
    used_blocks: u64,
    created: u64,
}

impl Aged {
    /// A disk of `gibibytes` that is filled to `share` of its size and aged by `operations`
    /// creations and removals; none for a share of 0.
    pub(super) fn new(
        options: &Options,
        gibibytes: u64,
        share: f64,
        operations: u64,
    ) -> Result<Self> {
        let geometry = disk::geometry(gibibytes);
        let mut aged = Self {
            allocator: Allocator::open(geometry, options.clone(), Fresh(geometry))?,
            files: Vec::new(),
            used_blocks: 0,
            created: 0,
        };
        let target = (geometry.blocks() as f64 * share) as u64;
        let mut random = Random::new(SEED);
        let mut done = 0;
        while target > 0 && (done < operations || aged.used_blocks < target) {
            if aged.used_blocks < target {
                aged.create(&mut random)?;
            } else {
                aged.remove(&mut random)?;
            }
            done += 1;
        }
        Ok(aged)
    }

    /// Number of files.
    pub(super) fn files(&self) -> usize {
        self.files.len()
    }

    /// The free runs in blocks, from the longest down.
    pub(super) fn free_runs(&self) -> Vec<u32> {
        let mut runs = Vec::new();
        self.allocator.for_each_free(|run| {
            runs.push(run.count());
            ControlFlow::Continue(())
        });
        runs.sort_unstable_by(|a, b| b.cmp(a));
        runs
    }

    fn create(&mut self, random: &mut Random) -> Result<()> {
        let blocks = BLOCKS_MAX.powf(random.fraction()).round() as u32;
        let owner = self.allocator.owner(self.created, 0);
        let mut request = Request::data(blocks);
        request.flags |= RequestFlags::NO_NORMALISE;
        let mut file = Vec::with_capacity(1);
        let mut left = blocks;
        while left > 0 {
            request.wanted = left;
            let range = owner.allocate(&request)?.keep();
            left -= range.count();
            request.goal = Goal::Follow(range.end());
            file.push(range);
        }
        self.files.push(file);
        self.used_blocks += u64::from(blocks);
        self.created += 1;
        Ok(())
    }

    fn remove(&mut self, random: &mut Random) -> Result<()> {
        let chosen = (random.fraction() * self.files.len() as f64) as usize;
        for extent in self.files.swap_remove(chosen) {
            self.used_blocks -= u64::from(extent.count());
            self.allocator.free(extent, Free::Now)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aged_disk_is_as_full_as_asked_and_its_blocks_are_those_of_its_files() {
        let aged = Aged::new(&Options::default(), 1, 0.5, 3000).unwrap();
        let half = disk::geometry(1).blocks() / 2;
        assert!((half - 1024..half + 1024).contains(&aged.used_blocks));
        let owned: u64 = aged
            .files
            .iter()
            .flatten()
            .map(|run| u64::from(run.count()))
            .sum();
        assert_eq!(owned, aged.used_blocks);
        let empty = Aged::new(&Options::default(), 1, 0.0, 3000).unwrap();
        let taken = empty.allocator.free_blocks() - aged.allocator.free_blocks();
        assert_eq!(taken, owned);
        aged.allocator.check().unwrap();
    }

    #[test]
    fn free_runs_hold_all_free_blocks_from_the_longest_down() {
        let aged = Aged::new(&Options::default(), 1, 0.5, 3000).unwrap();
        let runs = aged.free_runs();
        assert!(runs.is_sorted_by(|a, b| a >= b));
        let free: u64 = runs.iter().map(|run| u64::from(*run)).sum();
        assert_eq!(free, aged.allocator.free_blocks());
    }
}
