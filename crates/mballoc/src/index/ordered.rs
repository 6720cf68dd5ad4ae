//! A lock-free ordered set of group numbers, which finds the next member from any number on.
//!
//! A tree with 64 children per node: a leaf bit represents a group, a bit above it a nonempty word.
//! Members are set and cleared by atomic operations on single words, so a level may temporarily
//! differ from the one below it:
//! - a bit above an empty word makes a search continue with the next word;
//! - a search may miss a member being added, or find one being removed.
//!
//! When no thread changes the set, the levels agree (`check`): a thread that empties a word or
//! fills an empty one writes the bit above, reads the word again, and repeats until both agree
//! ([`settle`]).

use crate::segments::Segments;
use crate::sync::{AtomicU64, Ordering};

/// 64^5 = 2^30 groups.
const LEVELS: usize = 5;

pub(crate) struct OrderedSet {
    levels: [Segments<AtomicU64>; LEVELS],
}

impl OrderedSet {
    /// A set of numbers below `capacity` that holds the first `full`.
    pub(crate) fn new(capacity: u32) -> Self {
        Self {
            levels: std::array::from_fn(|level| {
                Segments::new(Self::words(capacity, level), |_| AtomicU64::new(0))
            }),
        }
    }

    /// Makes room for numbers below `capacity`. One caller at a time.
    pub(crate) fn grow(&self, capacity: u32) {
        for (level, words) in self.levels.iter().enumerate() {
            words.grow(Self::words(capacity, level), |_| AtomicU64::new(0));
        }
    }

    /// Whether the set may have been empty.
    pub(crate) fn insert(&self, member: u32) -> bool {
        let at = member as usize;
        let before = self.word(0, at).fetch_or(1 << (at % 64), Ordering::AcqRel);
        before == 0 && self.settle_above(0, at)
    }

    /// Whether the set may be empty now.
    pub(crate) fn remove(&self, member: u32) -> bool {
        let at = member as usize;
        let bit = 1 << (at % 64);
        let before = self.word(0, at).fetch_and(!bit, Ordering::AcqRel);
        before == bit && self.settle_above(0, at)
    }

    pub(crate) fn contains(&self, member: u32) -> bool {
        let word = self.levels[0].get(member as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) >> (member % 64) & 1 == 1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let top = self.levels[LEVELS - 1].get(0);
        top.is_none_or(|word| word.load(Ordering::Acquire) == 0)
    }

    /// The smallest member that is at least `from`.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let mut level = 0;
        let mut at = from as usize;
        loop {
            let word = self.levels[level].get(at / 64)?.load(Ordering::Acquire);
            let here = word & u64::MAX << (at % 64);
            if here != 0 {
                at = at / 64 * 64 + here.trailing_zeros() as usize;
                if level == 0 {
                    return u32::try_from(at).ok();
                }
                // Descends to the word of this bit; if that has become empty, the search ascends
                // again.
                level -= 1;
                at *= 64;
                continue;
            }
            at = at / 64 + 1;
            level += 1;
            if level == LEVELS {
                return None;
            }
        }
    }

    /// Compares the levels, while no thread changes the set.
    pub(crate) fn check(&self) -> Result<(), String> {
        for level in 1..LEVELS {
            let mut at = 0;
            while let Some(word) = self.levels[level - 1].get(at) {
                let filled = word.load(Ordering::Acquire) != 0;
                let above = self.levels[level].get(at / 64);
                let shown = above.map_or(0, |word| word.load(Ordering::Acquire)) >> (at % 64) & 1;
                if filled != (shown == 1) {
                    return Err(format!("level {level} of a set is wrong about word {at}"));
                }
                at += 1;
            }
        }
        Ok(())
    }

    fn word(&self, level: usize, at: usize) -> &AtomicU64 {
        self.levels[level]
            .get(at / 64)
            .expect("a member below the capacity")
    }

    /// Updates the levels above the word of bit `at`. Returns whether the top one was or became
    /// empty.
    fn settle_above(&self, level: usize, at: usize) -> bool {
        if level + 1 == LEVELS {
            return true;
        }
        let word = self.word(level, at);
        let above = at / 64;
        let changed = settle(self.word(level + 1, above), above % 64, || {
            word.load(Ordering::Acquire) != 0
        });
        changed && self.settle_above(level + 1, above)
    }

    fn words(capacity: u32, level: usize) -> usize {
        (capacity as usize).div_ceil(64usize.pow(level as u32 + 1))
    }
}

/// Writes bit `bit` of `above` until it agrees with `filled`. Returns whether `above` was or became
/// empty.
fn settle(above: &AtomicU64, bit: usize, filled: impl Fn() -> bool) -> bool {
    let mask = 1 << bit;
    let mut changed = false;
    loop {
        // Written even if it is already right, so that the last writer sees all earlier changes.
        let is = filled();
        changed |= if is {
            above.fetch_or(mask, Ordering::AcqRel) == 0
        } else {
            above.fetch_and(!mask, Ordering::AcqRel) & !mask == 0
        };
        if filled() == is {
            return changed;
        }
    }
}

/// The non-empty ones of a few hundred sets.
pub(crate) struct Summary {
    words: Box<[AtomicU64]>,
}

impl Summary {
    /// For sets below `count`.
    pub(crate) fn new(count: usize) -> Self {
        let words = (0..count.div_ceil(64)).map(|_| AtomicU64::new(0));
        Self {
            words: words.collect(),
        }
    }

    /// Brings the bit of a set up to date.
    pub(crate) fn update(&self, number: usize, set: &OrderedSet) {
        settle(&self.words[number / 64], number % 64, || !set.is_empty());
    }

    pub(crate) fn has(&self, number: usize) -> bool {
        self.words[number / 64].load(Ordering::Acquire) >> (number % 64) & 1 == 1
    }

    /// The lowest from `from` on.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        (from / 64..self.words.len()).find_map(|at| {
            let word = self.words[at].load(Ordering::Acquire);
            let word = if at == from / 64 {
                word & u64::MAX << (from % 64)
            } else {
                word
            };
            (word != 0).then(|| at * 64 + word.trailing_zeros() as usize)
        })
    }

    /// The highest below `end`.
    pub(crate) fn last(&self, end: usize) -> Option<usize> {
        (0..end.div_ceil(64).min(self.words.len()))
            .rev()
            .find_map(|at| {
                let word = self.words[at].load(Ordering::Acquire);
                let below = (at + 1) * 64;
                let word = if end < below {
                    word & u64::MAX >> (below - end)
                } else {
                    word
                };
                (word != 0).then(|| at * 64 + word.ilog2() as usize)
            })
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn set_is_an_ordered_set(
            capacity in 1u32..20_000,
            steps in prop::collection::vec((0.0..1.0f64, any::<bool>()), 0..300),
        ) {
            let set = OrderedSet::new(capacity / 2);
            set.grow(capacity);
            let mut model = BTreeSet::new();
            for (at, insert) in steps {
                let member = (f64::from(capacity) * at) as u32;
                if insert {
                    set.insert(member);
                    model.insert(member);
                } else {
                    let victim = model.range(member..).next().copied().unwrap_or(member);
                    set.remove(victim);
                    model.remove(&victim);
                }
                prop_assert_eq!(set.check(), Ok(()));
                prop_assert_eq!(set.next(member), model.range(member..).next().copied());
                prop_assert_eq!(set.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn summary_finds_the_sets_on_both_sides_of_any_number() {
        let sets: Vec<_> = (0..130).map(|_| OrderedSet::new(1)).collect();
        let summary = Summary::new(sets.len());
        for number in [0, 5, 63, 64, 100, 129] {
            sets[number].insert(0);
            summary.update(number, &sets[number]);
        }
        sets[100].remove(0);
        summary.update(100, &sets[100]);
        let filled = [0, 5, 63, 64, 129];
        for number in 0..130 {
            let next = filled.iter().copied().find(|&other| other >= number);
            let last = filled.iter().copied().rfind(|&other| other < number);
            assert_eq!(
                (summary.next(number), summary.last(number)),
                (next, last),
                "{number}"
            );
            assert_eq!(summary.has(number), filled.contains(&number));
        }
        assert_eq!(summary.last(130), Some(129));
    }

    #[test]
    fn largest_number_of_all_levels_is_reached() {
        let set = OrderedSet::new(64 * 64 * 64 * 65);
        let last = 64 * 64 * 64 * 65 - 1;
        set.insert(last);
        assert_eq!(set.next(0), Some(last));
        assert_eq!(set.next(last), Some(last));
        assert_eq!(set.next(last + 1), None);
        set.remove(last);
        assert!(set.is_empty());
    }

    #[test]
    fn members_of_many_threads_are_all_there_in_the_end() {
        let set = OrderedSet::new(10_000);
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let set = &set;
                scope.spawn(move || {
                    for round in 0..20_000u32 {
                        let member = (round * 7 + thread) % 2_500 * 4 + thread;
                        match round % 2 {
                            0 => set.insert(member),
                            _ => set.remove(member),
                        };
                    }
                    (0..2_500).for_each(|at| {
                        set.remove(at * 4 + thread);
                    });
                    set.insert(thread * 64 + thread);
                });
            }
        });
        set.check().unwrap();
        assert_eq!(set.next(0), Some(0));
        assert_eq!(set.next(1), Some(65));
        assert_eq!(set.next(196), None);
    }
}
