//! Fragmented disks of any size, 95% full, generated group by group from a seed.
//!
//! 31 of 32 groups have up to 8% free, in runs of 1 to 256 blocks; one has 20% to 52%, in runs of
//! up to 8,192. Lengths are log-uniform. Nothing is stored: a bitmap is generated when it is
//! loaded.

use extant_mballoc::{BitmapSource, Geometry, GroupNumber};
use extant_space::Result;

use super::disk::{self, GROUP};
use crate::random::Random;

/// One group in this number has much free space.
const ROOMY_EVERY: f64 = 32.0;

/// The disk.
pub(super) struct Fragmented {
    pub(super) geometry: Geometry,
    seed: u64,
}

/// A group's parameters, and the generator of its runs.
struct Sketch {
    random: Random,
    free: u32,
    run_max: f64,
}

impl Fragmented {
    /// A disk of `gibibytes`.
    pub(super) fn new(gibibytes: u64, seed: u64) -> Self {
        Self {
            geometry: disk::geometry(gibibytes),
            seed,
        }
    }

    fn sketch(&self, group: GroupNumber) -> Sketch {
        let mut random = Random::new(self.seed ^ u64::from(group.0) << 32);
        let (least, most, run_max) = if random.fraction() * ROOMY_EVERY < 1.0 {
            (0.20, 0.52, 8192.0)
        } else {
            (0.0, 0.08, 256.0)
        };
        let share = least + (most - least) * random.fraction();
        Sketch {
            random,
            free: (share * f64::from(GROUP)) as u32,
            run_max,
        }
    }
}

impl Sketch {
    /// Lengths of the free runs, and of the used runs before each of them.
    fn runs(mut self) -> Vec<(u32, u32)> {
        let mut lengths = Vec::new();
        let mut left = self.free;
        while left > 0 {
            let length = (self.run_max.powf(self.random.fraction()) as u32).clamp(1, left);
            lengths.push(length);
            left -= length;
        }
        // Every gap has a block at least; the excess is divided by random weights.
        let spare = f64::from(GROUP - self.free - lengths.len() as u32);
        let weights: Vec<_> = (0..=lengths.len())
            .map(|_| self.random.fraction())
            .collect();
        let total: f64 = weights.iter().sum();
        let gaps = weights
            .iter()
            .map(|weight| 1 + (spare * weight / total) as u32);
        gaps.zip(lengths).collect()
    }
}

impl BitmapSource for Fragmented {
    fn free_blocks(&self, group: GroupNumber) -> u32 {
        self.sketch(group).free
    }

    fn load(&self, group: GroupNumber, used: &mut [u64]) -> Result<()> {
        used.fill(u64::MAX);
        let mut at = 0;
        for (gap, length) in self.sketch(group).runs() {
            at += gap;
            for block in at..at + length {
                used[block as usize / 64] &= !(1 << (block % 64));
            }
            at += length;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmap_has_as_many_free_blocks_as_promised_and_the_disk_is_95_percent_full() {
        let disk = Fragmented::new(64, 7);
        let (mut free, mut long, mut spread) = (0, 0, 0);
        for group in (0..disk.geometry.groups()).map(GroupNumber) {
            let mut used = vec![0; GROUP as usize / 64];
            disk.load(group, &mut used).unwrap();
            let clear: u32 = used.iter().map(|word| word.count_zeros()).sum();
            assert_eq!(clear, disk.free_blocks(group), "{group}");
            free += u64::from(clear);
            let last_half = &used[used.len() / 2..];
            spread += u32::from(last_half.iter().any(|word| *word != u64::MAX));
            let runs = disk.sketch(group).runs();
            long += runs.iter().filter(|(_, length)| *length >= 2048).count();
        }
        let share = free as f64 / disk.geometry.blocks() as f64;
        assert!((0.04..0.06).contains(&share), "{share}");
        assert!(
            spread > 480,
            "{spread} of 512 groups have room in their last half"
        );
        assert!((8..200).contains(&long), "{long} runs of 2,048 blocks");
    }

    #[test]
    fn groups_differ_and_seeds_repeat() {
        let free = |seed, group| Fragmented::new(64, seed).free_blocks(GroupNumber(group));
        assert_eq!(free(1, 5), free(1, 5));
        assert_ne!(free(1, 5), free(1, 6));
        assert_ne!(free(1, 5), free(2, 5));
    }
}
