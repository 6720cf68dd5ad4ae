//! Ownership of blocks: one bit records whether a block is claimed; a second claim is reported.
//!
//! Model: a bitmap for every group with a claim, allocated on demand; a group without claims costs
//! a pointer.

use std::fmt::Display;

use extant_ondisk::ext4::{GroupNumber, Layout, PhysicalBlock};

use crate::findings::{FindingKind, Findings, Location};

const BITS: u32 = u64::BITS;

/// The claimed blocks.
pub(crate) struct Claims {
    layout: Layout,
    groups: Vec<Option<Box<[u64]>>>,
}

/// Blocks that had an owner already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The first of them.
    pub(crate) first: PhysicalBlock,
    /// Number of claimed ones.
    pub(crate) blocks: u64,
}

impl Claims {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self {
            layout: *layout,
            groups: vec![None; layout.groups() as usize],
        }
    }

    /// Claims `blocks` blocks from `start`, which are in groups. Returns those that were claimed
    /// before.
    pub(crate) fn claim(&mut self, start: PhysicalBlock, blocks: u64) -> Option<Taken> {
        let mut taken: Option<Taken> = None;
        let (mut at, end) = (start.0, start.0 + blocks);
        while at < end {
            let (group, from) = self.layout.locate(PhysicalBlock(at)).expect("in a group");
            let to = (u64::from(from) + (end - at)).min(self.layout.blocks_in(group).into()) as u32;
            let words = self.layout.blocks_per_group().div_ceil(BITS) as usize;
            let bits = self.groups[group.0 as usize]
                .get_or_insert_with(|| vec![0; words].into_boxed_slice());
            for word in from / BITS..to.div_ceil(BITS) {
                let low = from.saturating_sub(word * BITS);
                let high = (to - word * BITS).min(BITS);
                let mask = (u64::MAX << low) & (u64::MAX >> (BITS - high));
                let bits = &mut bits[word as usize];
                let before = *bits & mask;
                *bits |= mask;
                if before != 0 {
                    let bit = word * BITS + before.trailing_zeros();
                    let first = PhysicalBlock(at - u64::from(from) + u64::from(bit));
                    let taken = taken.get_or_insert(Taken { first, blocks: 0 });
                    taken.blocks += u64::from(before.count_ones());
                }
            }
            at += u64::from(to - from);
        }
        taken
    }

    /// Claims blocks that belong to `owner`; that others have them too is a finding. Whether
    /// they were all free.
    pub(crate) fn claim_for(
        &mut self,
        owner: impl Display,
        start: PhysicalBlock,
        blocks: u64,
        place: Location,
        findings: &mut Findings,
    ) -> bool {
        let Some(taken) = self.claim(start, blocks) else {
            return true;
        };
        let words = match blocks {
            1 => format!("{owner} belongs to something else too"),
            _ => format!(
                "{owner}: {} of {blocks} blocks belong to something else too",
                taken.blocks
            ),
        };
        findings.add(FindingKind::SharedBlock, place.in_block(taken.first), words);
        false
    }

    /// Bits of `group`, set for claimed blocks; `None` without claims. They are dropped.
    pub(crate) fn take_group(&mut self, group: GroupNumber) -> Option<Box<[u64]>> {
        self.groups[group.0 as usize].take()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use extant_ondisk::ext4::Superblock;

    use super::*;

    /// That of 512 MiB in blocks of 4 KiB.
    fn layout() -> Layout {
        let superblock = include_bytes!("../../ondisk/tests/data/superblock.bin");
        *Superblock::parse(superblock).unwrap().layout()
    }

    #[test]
    fn claims_across_words_and_groups_match_a_set_of_numbers() {
        let layout = layout();
        let mut claims = Claims::new(&layout);
        let mut model = HashSet::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let start = 32_600 + random.u64(..400);
            let blocks = random.u64(..150);
            let before: Vec<_> = (start..start + blocks)
                .filter(|at| model.contains(at))
                .collect();
            let taken = claims.claim(PhysicalBlock(start), blocks);
            assert_eq!(taken.map(|taken| taken.first.0), before.first().copied());
            assert_eq!(taken.map_or(0, |taken| taken.blocks), before.len() as u64);
            model.extend(start..start + blocks);
            if random.u8(..20) == 0 {
                let bits = [0, 1].map(|group| claims.take_group(GroupNumber(group)));
                let bits = bits.into_iter().flatten().flatten();
                let claimed: u32 = bits.map(|word| word.count_ones()).sum();
                assert_eq!(claimed as usize, model.len());
                model.clear();
            }
        }
    }
}
