//! One block group: a header of a few bytes, and a body that is loaded when the group is first
//! needed.
//!
//! The header is read without the lock, as a hint: the number of free blocks, and the class of the
//! longest free run. The bitmap in the body is the truth, behind the lock of the group. A bit is
//! clear there (in use) for blocks that have an owner, are in a window, or wait for a commit.
//!
//! Invariants, whenever the lock is free:
//! - `free` is the number of set bits, `runs` the number of runs of set bits of each class;
//! - the published classes are those of the runs, and the index agrees (`RunIndex`);
//! - pending runs are in use, disjoint, and those of one transaction do not touch.

use std::collections::BTreeMap;

use extant_space::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use crate::bits::{GroupBits, Shape};
use crate::index::{CLASSES, ClassMask, class_of};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::{GroupNumber, TransactionId};

/// The header.
pub(crate) struct Group {
    free: AtomicU32,
    /// Class of the longest run, plus one; 0 for none.
    largest: AtomicU32,
    pub(crate) body: Mutex<Body>,
}

/// What is known of a group.
pub(crate) enum Body {
    /// Nothing but what its descriptor says.
    Untouched,
    /// All of it.
    Loaded(Box<Loaded>),
    /// Its bitmap is corrupt or unreadable: nothing is allocated from it or freed in it.
    OutOfUse,
}

/// A group whose bitmap is in memory.
pub(crate) struct Loaded {
    pub(crate) bits: GroupBits,
    /// Blocks of the group; bits past it are never free.
    pub(crate) length: u32,
    pub(crate) free: u32,
    /// Free runs of each class.
    pub(crate) runs: [u32; CLASSES],
    /// The classes that have any.
    pub(crate) classes: ClassMask,
    /// The classes under which the group is in the index.
    pub(crate) published: ClassMask,
    /// Freed runs that wait for a commit, and withheld ones, by their first block.
    pub(crate) pending: BTreeMap<u32, PendingRun>,
    /// The transactions that have any of those.
    waiting: SmallVec<[TransactionId; 2]>,
}

/// Blocks that are freed, but not free yet, or withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingRun {
    pub(crate) count: u32,
    /// The transaction that has to commit first; `None` once it has, until the blocks are released.
    transaction: Option<TransactionId>,
}

impl Group {
    /// A group with `free` free blocks, by its descriptor.
    pub(crate) fn untouched(free: u32) -> Self {
        let group = Self {
            free: AtomicU32::new(0),
            largest: AtomicU32::new(0),
            body: Mutex::new(Body::Untouched),
        };
        group.set_untouched(free);
        group
    }

    /// Publishes what a descriptor says: the free blocks may be one run.
    pub(crate) fn set_untouched(&self, free: u32) {
        self.set_free(free);
        self.set_largest(ClassMask::of_run(free));
    }

    /// Free blocks, as a hint.
    pub(crate) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    pub(crate) fn set_free(&self, free: u32) {
        self.free.store(free, Ordering::Relaxed);
    }

    /// Whether the longest free run is of `class` or longer, as a hint.
    pub(crate) fn reaches(&self, class: usize) -> bool {
        self.largest.load(Ordering::Relaxed) as usize > class
    }

    /// Publishes the class of the longest run; under the lock, together with the index.
    pub(crate) fn set_largest(&self, classes: ClassMask) {
        let largest = classes.largest().map_or(0, |class| class as u32 + 1);
        self.largest.store(largest, Ordering::Relaxed);
    }
}

impl Loaded {
    /// A group of `length` blocks from its bitmap as the file system has it; `promised` is the
    /// number of free blocks that its descriptor says.
    pub(crate) fn new(
        shape: &Shape,
        number: GroupNumber,
        mut words: Vec<u64>,
        length: u32,
        promised: u32,
    ) -> Result<Self> {
        let error = |detail: String| {
            Err(Error::new(ErrorKind::Corrupt)
                .detail(format!("block bitmap of group {number}: {detail}"))
                .advice("check the file system"))
        };
        words.iter_mut().for_each(|word| *word = !*word);
        let past =
            (length as usize..words.len() * 64).find(|at| words[at / 64] >> (at % 64) & 1 == 1);
        if let Some(at) = past {
            return error(format!(
                "bit {at} is clear, past the {length} blocks of the group"
            ));
        }
        let bits = GroupBits::new(shape, &words);
        let free = bits.count_free(shape);
        if free != promised {
            return error(format!(
                "{free} free blocks, where its descriptor says {promised}"
            ));
        }
        let mut loaded = Self {
            bits,
            length,
            free,
            runs: [0; CLASSES],
            classes: ClassMask::NONE,
            published: ClassMask::NONE,
            pending: BTreeMap::new(),
            waiting: SmallVec::new(),
        };
        let mut runs = [0; CLASSES];
        for run in loaded.bits.runs(shape) {
            let class = class_of(run.count);
            runs[class] += 1;
            loaded.classes.set(class, true);
        }
        loaded.runs = runs;
        Ok(loaded)
    }

    /// Changes the state of blocks that are all in the other one.
    pub(crate) fn mark(&mut self, shape: &Shape, start: u32, count: u32, free: bool) {
        let (before, after) = self.bits.mark(shape, start, count, free);
        let whole = before + count + after;
        if free {
            self.free += count;
            self.forget_run(before);
            self.forget_run(after);
            self.count_run(whole);
        } else {
            self.free -= count;
            self.forget_run(whole);
            self.count_run(before);
            self.count_run(after);
        }
    }

    fn count_run(&mut self, count: u32) {
        if count > 0 {
            let class = class_of(count);
            self.runs[class] += 1;
            self.classes.set(class, true);
        }
    }

    fn forget_run(&mut self, count: u32) {
        if count > 0 {
            let class = class_of(count);
            self.runs[class] -= 1;
            self.classes.set(class, self.runs[class] > 0);
        }
    }

    /// Notes blocks that are free after a commit, joined with what is noted beside them. Whether
    /// they are the first that the group has of the transaction.
    pub(crate) fn add_pending(&mut self, start: u32, count: u32, waits_for: TransactionId) -> bool {
        let first = !self.waiting.contains(&waits_for);
        if first {
            self.waiting.push(waits_for);
        }
        let transaction = Some(waits_for);
        let mut joined = (start, count);
        let before = self.pending.range(..start).next_back();
        if let Some((&at, other)) = before
            && at + other.count == start
            && other.transaction == transaction
        {
            joined = (at, other.count + count);
        }
        let end = start + count;
        if let Some(other) = self.pending.get(&end)
            && other.transaction == transaction
        {
            joined.1 += other.count;
            self.pending.remove(&end);
        }
        let (start, count) = joined;
        self.pending
            .insert(start, PendingRun { count, transaction });
        first
    }

    /// The runs of a transaction, which has committed: they wait for their release only.
    pub(crate) fn commit_pending(&mut self, committed: TransactionId) -> Vec<(u32, u32)> {
        self.waiting.retain(|waiting| *waiting != committed);
        let runs = self.pending.iter_mut();
        runs.filter(|(_, run)| run.transaction == Some(committed))
            .map(|(&start, run)| {
                run.transaction = None;
                (start, run.count)
            })
            .collect()
    }

    /// Records a free run as withheld until its release; the caller marks it.
    pub(crate) fn withhold(&mut self, start: u32, count: u32) {
        let transaction = None;
        self.pending
            .insert(start, PendingRun { count, transaction });
    }

    /// Forgets a run that was committed or withheld; it can be marked free.
    pub(crate) fn release_pending(&mut self, start: u32, count: u32) {
        let run = self.pending.remove(&start);
        let released = PendingRun {
            count,
            transaction: None,
        };
        assert_eq!(run, Some(released), "what is released was given out");
    }

    /// Whether any of these blocks waits for a commit.
    pub(crate) fn is_pending(&self, start: u32, count: u32) -> bool {
        let before = self.pending.range(..start + count).next_back();
        before.is_some_and(|(&at, run)| at + run.count > start)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn untouched_group_costs_at_most_64_bytes() {
        let index_bits = CLASSES + CLASSES.div_ceil(32);
        assert!(size_of::<Group>() + index_bits.div_ceil(8) <= 64);
    }
}
