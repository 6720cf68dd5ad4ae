//! Groups by the lengths of their free runs.
//!
//! Each class of lengths (`classes`) has an ordered set of the groups with such a run. A search
//! goes from the lowest sufficient class to higher ones, so that long runs stay whole while shorter
//! ones exist, and within a class from the goal onward, like the linear scan.
//!
//! The kernel has two such tables: by the largest free chunk of a group and by its average free
//! run. An index of all runs finds a hole of the right length in any group, and nearly the best fit
//! of the whole disk: an aged disk that is 90% full keeps its free space in long runs
//! (`docs/benchmarks.md`, "mballoc").
//!
//! For a group whose bitmap has not been read, only the number of free blocks is known. Such
//! *unloaded* groups are in sets by that number, and are scanned when no loaded group suffices:
//! reading a bitmap costs more than a search.
//!
//! Invariant: a group is in exactly the sets of its published classes (`Loaded::published`), or in
//! the set of unloaded groups for its free blocks; a group without free blocks is in none. The
//! index changes under the lock of the group, with any policy, so that the policy can change at any
//! time. It is derived from the bitmaps and may be rebuilt.

mod classes;
#[cfg(feature = "ablation")]
mod lists;
mod ordered;

#[cfg(feature = "ablation")]
use crate::options::IndexKind;

#[cfg(feature = "ablation")]
use lists::OrderLists;
use ordered::{OrderedSet, Summary};

pub(crate) use classes::{CLASSES, ClassMask, class_of, shortest_of};

pub(crate) struct RunIndex {
    sets: Box<[OrderedSet]>,
    /// Classes that some group has.
    filled: Summary,
    /// For each order n, the unloaded groups with at least 2^n and less than 2^(n+1) free blocks.
    unloaded: Box<[OrderedSet]>,
    /// The order lists, which hold a group by its longest run only.
    #[cfg(feature = "ablation")]
    lists: Option<OrderLists>,
}

impl RunIndex {
    /// For groups below `capacity` with runs of up to `longest` blocks.
    pub(crate) fn new(
        #[cfg(feature = "ablation")] kind: IndexKind,
        longest: u32,
        capacity: u32,
    ) -> Self {
        let classes = class_of(longest) + 1;
        Self {
            sets: (0..classes).map(|_| OrderedSet::new(capacity)).collect(),
            filled: Summary::new(classes),
            unloaded: (0..=longest.ilog2())
                .map(|_| OrderedSet::new(capacity))
                .collect(),
            #[cfg(feature = "ablation")]
            lists: (kind == IndexKind::Lists).then(OrderLists::new),
        }
    }

    /// Makes room for groups below `capacity`. One caller at a time.
    pub(crate) fn grow(&self, capacity: u32) {
        let all = self.sets.iter().chain(&self.unloaded);
        all.for_each(|set| set.grow(capacity));
    }

    /// Enters an unloaded group whose descriptor reports `free` free blocks.
    pub(crate) fn insert_unloaded(&self, group: u32, free: u32) {
        if let Some(order) = free.checked_ilog2() {
            self.unloaded[order as usize].insert(group);
        }
    }

    /// Removes an unloaded group.
    pub(crate) fn remove_unloaded(&self, group: u32, free: u32) {
        if let Some(order) = free.checked_ilog2() {
            self.unloaded[order as usize].remove(group);
        }
    }

    /// The next unloaded group with at least 2^`order` and less than twice as many free blocks,
    /// from `from` on, before `end`.
    pub(crate) fn next_unloaded(&self, order: usize, from: u32, end: u32) -> Option<u32> {
        let next = self.unloaded.get(order)?.next(from)?;
        (next < end).then_some(next)
    }

    /// Number of orders of unloaded groups.
    pub(crate) fn unloaded_orders(&self) -> usize {
        self.unloaded.len()
    }

    /// Moves a group; under the lock of the group.
    pub(crate) fn change(&self, group: u32, from: ClassMask, to: ClassMask) {
        #[cfg(feature = "ablation")]
        let (from, to) = match &self.lists {
            None => (from, to),
            Some(lists) => {
                lists.change(group, from.largest(), to.largest());
                (from.only_largest(), to.only_largest())
            }
        };
        for class in from.without(to).classes() {
            if self.sets[class].remove(group) {
                self.filled.update(class, &self.sets[class]);
            }
        }
        for class in to.without(from).classes() {
            if self.sets[class].insert(group) {
                self.filled.update(class, &self.sets[class]);
            }
        }
    }

    /// The next group with a run of `class` from `from` on, before `end`.
    pub(crate) fn next(&self, class: usize, from: u32, end: u32) -> Option<u32> {
        let next = self.sets.get(class)?.next(from)?;
        (next < end).then_some(next)
    }

    /// The lowest class from `class` on that some group has.
    pub(crate) fn lowest_filled(&self, class: usize) -> Option<usize> {
        self.filled.next(class)
    }

    /// The highest class below `end` that some group has.
    pub(crate) fn highest_filled(&self, end: usize) -> Option<usize> {
        self.filled.last(end)
    }

    /// The order lists, if they are in use.
    #[cfg(feature = "ablation")]
    pub(crate) fn lists(&self) -> Option<&OrderLists> {
        self.lists.as_ref()
    }

    /// Compares the index with a group's classes, or with the free blocks of an unloaded group,
    /// while no thread changes them.
    pub(crate) fn check(&self, group: u32, classes: ClassMask, free: u32) -> Result<(), String> {
        let expected_order = free.checked_ilog2().map(|order| order as usize);
        let mut unloaded = self.unloaded.iter().enumerate();
        if let Some((order, _)) =
            unloaded.find(|(order, set)| set.contains(group) != (expected_order == Some(*order)))
        {
            return Err(format!(
                "group {group} is wrong in the unloaded groups of order {order}"
            ));
        }
        #[cfg(feature = "ablation")]
        if let Some(lists) = &self.lists {
            lists.check(group, classes.largest())?;
        }
        #[cfg(not(feature = "ablation"))]
        let expected = classes;
        #[cfg(feature = "ablation")]
        let expected = match self.lists {
            Some(_) => classes.only_largest(),
            None => classes,
        };
        let wrong =
            |(class, set): &(usize, &OrderedSet)| set.contains(group) != expected.has(*class);
        match self.sets.iter().enumerate().find(wrong) {
            None => Ok(()),
            Some((class, _)) => Err(format!(
                "group {group} is wrong in the set of class {class}"
            )),
        }
    }

    /// Compares the levels of the sets and their summary.
    pub(crate) fn check_sets(&self) -> Result<(), String> {
        self.unloaded.iter().try_for_each(OrderedSet::check)?;
        for (class, set) in self.sets.iter().enumerate() {
            set.check()?;
            if self.filled.has(class) == set.is_empty() {
                return Err(format!("summary of the sets is wrong about class {class}"));
            }
        }
        Ok(())
    }
}
