//! One block group: a header of a few bytes, and a body that is loaded when the group is first
//! needed.
//!
//! The header is read without the lock, as a hint: the number of free blocks and the class of the
//! longest free run. The bitmap in the body is the truth and is protected by the group's lock. A
//! bit is clear (in use) for blocks that a file owns, that are in a window, or that wait for a
//! commit.
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

/// The state of a group.
pub(crate) enum Body {
    /// The bitmap has not been read: only the number of free blocks is known.
    Unloaded,
    /// The bitmap is in memory.
    Loaded(Box<Loaded>),
    /// The bitmap is corrupt or unreadable: no block of the group is allocated or freed.
    Corrupt,
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
    /// Runs that wait for a commit or a discard, by their first block.
    pub(crate) pending: BTreeMap<u32, PendingRun>,
    /// The transactions that `pending` has runs of.
    waiting: SmallVec<[TransactionId; 2]>,
}

/// Blocks that were freed but are not free yet, or that are being discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingRun {
    pub(crate) count: u32,
    /// The transaction that has to commit first; `None` after that, and for a discard.
    transaction: Option<TransactionId>,
}

impl Group {
    /// A group whose descriptor reports `free` free blocks.
    pub(crate) fn unloaded(free: u32) -> Self {
        let group = Self {
            free: AtomicU32::new(0),
            largest: AtomicU32::new(0),
            body: Mutex::new(Body::Unloaded),
        };
        group.set_unloaded(free);
        group
    }

    /// Publishes the count of a descriptor: the free blocks may be one run.
    pub(crate) fn set_unloaded(&self, free: u32) {
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
    /// A group of `length` blocks from its on-disk bitmap; `promised` is the number of free blocks
    /// in its descriptor.
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

    /// Marks blocks free or in use; all of them must be in the other state.
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

    /// Records blocks that are free after a commit, merged with adjacent ones. Returns whether they
    /// are the first of the transaction in this group.
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

    /// The runs of a committed transaction; they now wait only for their release.
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

    /// Records a free run that is being discarded; the caller marks it in use.
    pub(crate) fn add_discard(&mut self, start: u32, count: u32) {
        let transaction = None;
        self.pending
            .insert(start, PendingRun { count, transaction });
    }

    /// Removes a run that was committed or discarded; the caller marks it free.
    pub(crate) fn release_pending(&mut self, start: u32, count: u32) {
        let run = self.pending.remove(&start);
        let released = PendingRun {
            count,
            transaction: None,
        };
        assert_eq!(run, Some(released), "a released run was pending");
    }

    /// Whether any of these blocks is pending.
    pub(crate) fn is_pending(&self, start: u32, count: u32) -> bool {
        let before = self.pending.range(..start + count).next_back();
        before.is_some_and(|(&at, run)| at + run.count > start)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn unloaded_group_costs_at_most_64_bytes() {
        let index_bits = CLASSES + CLASSES.div_ceil(32);
        assert!(size_of::<Group>() + index_bits.div_ceil(8) <= 64);
    }
}
