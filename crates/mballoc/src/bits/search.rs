//! Finding free runs in a group.
//!
//! All searches check only the blocks `from..to`; a longer run is truncated there.

use super::{GroupBits, Shape, WORD_ORDER, order_within};

/// Free blocks of a group, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u32,
    pub(crate) count: u32,
}

impl Run {
    pub(crate) fn end(self) -> u32 {
        self.start + self.count
    }
}

impl GroupBits {
    /// Free blocks from `start` on without a gap, up to `to`.
    pub(crate) fn free_from(&self, shape: &Shape, start: u32, to: u32) -> u32 {
        let whole = &self.words[shape.level(WORD_ORDER)];
        let mut at = start;
        while at < to {
            let word = self.words[at as usize / 64] >> (at % 64);
            let free = word.trailing_ones();
            at += free;
            if free == 0 || !at.is_multiple_of(64) {
                break;
            }
            // At the begin of a word: step over whole ones.
            while at < to {
                let word = at as usize / 64;
                let skip = (whole[word / 64] >> (word % 64)).trailing_ones();
                at += skip * 64;
                if skip == 0 || !at.is_multiple_of(4096) {
                    break;
                }
            }
        }
        at.min(to) - start
    }

    /// Free blocks right before `end` without a gap, down to `from`.
    pub(crate) fn free_before(&self, shape: &Shape, end: u32, from: u32) -> u32 {
        let whole = &self.words[shape.level(WORD_ORDER)];
        let mut at = end;
        while at > from {
            let bits = (at - 1) % 64 + 1;
            let word = self.words[(at as usize - 1) / 64] << (64 - bits);
            let free = word.leading_ones().min(bits);
            at -= free;
            if free < bits {
                break;
            }
            // At the begin of a word: step over whole ones before it.
            while at > from {
                let last = at as usize / 64 - 1;
                let bits = last as u32 % 64 + 1;
                let skip = (whole[last / 64] << (64 - bits)).leading_ones().min(bits);
                at -= skip * 64;
                if skip < bits {
                    break;
                }
            }
        }
        end - at.max(from)
    }

    /// First chunk of `order` in `from..to`.
    pub(crate) fn next_chunk(
        &self,
        shape: &Shape,
        order: usize,
        from: u32,
        to: u32,
    ) -> Option<u32> {
        if order > shape.top() {
            return None;
        }
        let start = if order > WORD_ORDER {
            let chunk = (from as usize).div_ceil(1 << order);
            let chunk = self.next_in_level(shape, order, chunk)?;
            chunk << order
        } else {
            self.next_in_words(shape, order, from as usize)?
        };
        let start = u32::try_from(start).ok()?;
        (start + (1 << order) <= to).then_some(start)
    }

    /// First run of at least `count` blocks in `from..to`.
    pub(crate) fn next_run(&self, shape: &Shape, count: u32, from: u32, to: u32) -> Option<Run> {
        let order = order_within(count);
        let mut at = from;
        loop {
            let run = self.run_around(shape, self.next_chunk(shape, order, at, to)?, at, to);
            if run.count >= count {
                return Some(run);
            }
            at = run.end();
        }
    }

    /// The first run in `from..to` of at least `count` and less than `below` blocks; when the first
    /// `tries` of at least `count` are all longer, the shortest of those.
    pub(crate) fn fitting_run(
        &self,
        shape: &Shape,
        count: u32,
        below: u32,
        from: u32,
        to: u32,
        tries: usize,
    ) -> Option<Run> {
        let mut best: Option<Run> = None;
        let mut at = from;
        for _ in 0..tries {
            let Some(run) = self.next_run(shape, count, at, to) else {
                break;
            };
            if run.count < below {
                return Some(run);
            }
            if best.is_none_or(|best| run.count < best.count) {
                best = Some(run);
            }
            at = run.end();
        }
        best
    }

    /// The longest run in `from..to` among the first `tries` candidates. If those are all, no run
    /// is longer.
    pub(crate) fn longest_run(
        &self,
        shape: &Shape,
        from: u32,
        to: u32,
        tries: usize,
    ) -> Option<Run> {
        let order = (0..=shape.top())
            .rev()
            .find(|&order| self.next_chunk(shape, order, from, to).is_some())?;
        // A run without a chunk of this order may be longer than one with, but it has one of the
        // next smaller.
        let order = order.saturating_sub(1);
        let mut best = Run {
            start: from,
            count: 0,
        };
        let mut at = from;
        for _ in 0..tries {
            let Some(chunk) = self.next_chunk(shape, order, at, to) else {
                break;
            };
            let run = self.run_around(shape, chunk, at, to);
            if run.count > best.count {
                best = run;
            }
            at = run.end();
        }
        Some(best)
    }

    /// The run in `from..to` that the free block `at` is part of.
    fn run_around(&self, shape: &Shape, at: u32, from: u32, to: u32) -> Run {
        let before = self.free_before(shape, at, from);
        Run {
            start: at - before,
            count: before + self.free_from(shape, at, to),
        }
    }

    /// First block of the first chunk of `order` (at most a word) at or after block `from`.
    fn next_in_words(&self, shape: &Shape, order: usize, from: usize) -> Option<usize> {
        let word = from / 64;
        if word >= shape.words() {
            return None;
        }
        let chunks = |word: usize| match order {
            WORD_ORDER => u64::from(self.words[word] == u64::MAX),
            _ => self.chunks_in_word(word, order),
        };
        let here = chunks(word) & u64::MAX << (from % 64);
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let next = self.next_in_level(shape, order, word + 1)?;
        Some(next * 64 + chunks(next).trailing_zeros() as usize)
    }

    /// First bit of a level at or after `from`.
    fn next_in_level(&self, shape: &Shape, order: usize, from: usize) -> Option<usize> {
        let level = &self.words[shape.level(order)];
        let mut at = from / 64;
        let mut word = level.get(at)? & u64::MAX << (from % 64);
        while word == 0 {
            at += 1;
            word = *level.get(at)?;
        }
        Some(at * 64 + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A group and its blocks one by one.
    fn group(blocks: u32, runs: &[(u32, u32)]) -> (Shape, GroupBits, Vec<bool>) {
        let shape = Shape::new(blocks);
        let mut free = vec![false; blocks as usize];
        for &(start, count) in runs {
            for at in start..(start + count).min(blocks) {
                free[at as usize] = true;
            }
        }
        let mut words = vec![0u64; shape.words()];
        for at in (0..free.len()).filter(|&at| free[at]) {
            words[at / 64] |= 1 << (at % 64);
        }
        let bits = GroupBits::new(&shape, &words);
        (shape, bits, free)
    }

    fn naive_runs(free: &[bool], from: u32, to: u32) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for at in (from..to).filter(|&at| free[at as usize]) {
            match runs.last_mut() {
                Some(run) if run.end() == at => run.count += 1,
                _ => runs.push(Run {
                    start: at,
                    count: 1,
                }),
            }
        }
        runs
    }

    fn any_group() -> impl Strategy<Value = (u32, Vec<(u32, u32)>)> {
        // Lengths that are and are not multiples of a word and of a power of two.
        prop::sample::select(vec![8u32, 64, 100, 1000, 1024, 4096, 8184]).prop_flat_map(|blocks| {
            let run = (0..blocks, 1..blocks.div_ceil(3));
            (Just(blocks), prop::collection::vec(run, 0..12))
        })
    }

    proptest! {
        #[test]
        fn searches_agree_with_a_walk_over_all_blocks(
            (blocks, runs) in any_group(),
            from in 0.0..1.0f64,
            length in 0.0..1.0f64,
            count in 1u32..600,
        ) {
            let (shape, bits, free) = group(blocks, &runs);
            let from = (f64::from(blocks) * from) as u32;
            let to = from + (f64::from(blocks - from) * length) as u32;
            let naive = naive_runs(&free, from, to);
            prop_assert_eq!(bits.check(&shape), Ok(()));
            prop_assert_eq!(bits.runs(&shape).collect::<Vec<_>>(), naive_runs(&free, 0, blocks));
            prop_assert_eq!(
                bits.next_run(&shape, count, from, to),
                naive.iter().copied().find(|run| run.count >= count)
            );
            let below = count + count / 8 + 1;
            prop_assert_eq!(
                bits.fitting_run(&shape, count, below, from, to, usize::MAX),
                naive.iter().copied().find(|run| (count..below).contains(&run.count)).or_else(|| {
                    naive.iter().copied().filter(|run| run.count >= count).min_by_key(|run| run.count)
                })
            );
            let longest = bits.longest_run(&shape, from, to, usize::MAX);
            prop_assert_eq!(
                longest.map(|run| run.count),
                naive.iter().map(|run| run.count).max()
            );
            for order in 0..=shape.top() {
                let length = 1 << order;
                let chunk = (from.next_multiple_of(length)..to.saturating_sub(length - 1))
                    .step_by(length as usize)
                    .find(|&start| (start..start + length).all(|at| free[at as usize]));
                prop_assert_eq!(bits.next_chunk(&shape, order, from, to), chunk, "order {}", order);
            }
        }

        #[test]
        fn marking_keeps_the_summary_and_returns_adjacent_runs(
            (blocks, runs) in any_group(),
            marks in prop::collection::vec((0.0..1.0f64, 1u32..2000), 1..20),
        ) {
            let (shape, mut bits, mut free) = group(blocks, &runs);
            for (at, count) in marks {
                let start = (f64::from(blocks) * at) as u32;
                let to = !free[start as usize];
                let same = free[start as usize..].iter().take_while(|&&is| is != to).count() as u32;
                let count = count.min(same);
                let end = start + count;
                let (before, after) = bits.mark(&shape, start, count, to);
                let free_before = free[..start as usize].iter().rev().take_while(|&&is| is).count();
                let free_after = free[end as usize..].iter().take_while(|&&is| is).count();
                prop_assert_eq!((before as usize, after as usize), (free_before, free_after));
                free[start as usize..end as usize].fill(to);
                prop_assert_eq!(bits.check(&shape), Ok(()));
                prop_assert_eq!(bits.count_free(&shape) as usize, free.iter().filter(|&&is| is).count());
            }
        }
    }
}
