//! Groups by the lengths of their free runs.
//!
//! For every class of lengths (`classes`) there is an ordered set of the groups that have such a
//! run. A search goes from the lowest sufficient class to higher ones, so that long runs stay whole
//! as long as shorter ones suffice, and within a class from the goal onward, as the linear scan
//! does.
//!
//! The kernel has two such tables, by the largest free chunk of a group and by its average free
//! run. An index of all runs finds a hole of the right length wherever there is one, and nearly the
//! best fit of the whole disk: an old disk that is 90 % full keeps its free space in long runs
//! (`docs/benchmarks.md`, "mballoc").
//!
//! Of a group whose bitmap was not read only the number of free blocks is known. Such uninitialised
//! groups (*claims*) are in sets of their own, and are searched when no known group suffices:
//! reading a bitmap costs more than a search.
//!
//! Invariant: a group is in the sets of its published classes (`Loaded::published`) and in no
//! others, or in the set of its claim; one without free blocks is in none. Changed under the lock
//! of the group, whatever the policy, so that the policy can be switched at any time. Derived from
//! the bitmaps; may be rebuilt.

mod classes;
mod lists;
mod ordered;

use crate::options::IndexKind;

use lists::OrderLists;
use ordered::{OrderedSet, Summary};

pub(crate) use classes::{CLASSES, ClassMask, class_of, shortest_of};

pub(crate) struct RunIndex {
    sets: Box<[OrderedSet]>,
    /// Classes that some group has.
    filled: Summary,
    /// For each order the unread groups with that many free blocks.
    claims: Box<[OrderedSet]>,
    /// The lists of old know a group by its longest run alone.
    lists: Option<OrderLists>,
}

impl RunIndex {
    /// For groups below `capacity` with runs of up to `longest` blocks.
    pub(crate) fn new(kind: IndexKind, longest: u32, capacity: u32) -> Self {
        let classes = class_of(longest) + 1;
        Self {
            sets: (0..classes).map(|_| OrderedSet::new(capacity)).collect(),
            filled: Summary::new(classes),
            claims: (0..=longest.ilog2())
                .map(|_| OrderedSet::new(capacity))
                .collect(),
            lists: (kind == IndexKind::Lists).then(OrderLists::new),
        }
    }

    /// Makes room for groups below `capacity`. One caller at a time.
    pub(crate) fn grow(&self, capacity: u32) {
        let all = self.sets.iter().chain(&self.claims);
        all.for_each(|set| set.grow(capacity));
    }

    /// Enters a group that is not read and says to have `free` free blocks.
    pub(crate) fn claim(&self, group: u32, free: u32) {
        if let Some(order) = free.checked_ilog2() {
            self.claims[order as usize].insert(group);
        }
    }

    /// Takes the claim of a group back.
    pub(crate) fn drop_claim(&self, group: u32, free: u32) {
        if let Some(order) = free.checked_ilog2() {
            self.claims[order as usize].remove(group);
        }
    }

    /// The next group that is not read and claims 2^`order` free blocks or nearly twice as many,
    /// from `from` on, before `end`.
    pub(crate) fn next_claim(&self, order: usize, from: u32, end: u32) -> Option<u32> {
        let next = self.claims.get(order)?.next(from)?;
        (next < end).then_some(next)
    }

    /// Number of orders that claims have.
    pub(crate) fn claim_orders(&self) -> usize {
        self.claims.len()
    }

    /// Moves a group; under the lock of the group.
    pub(crate) fn change(&self, group: u32, from: ClassMask, to: ClassMask) {
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

    /// The old lists, where they are in use.
    pub(crate) fn lists(&self) -> Option<&OrderLists> {
        self.lists.as_ref()
    }

    /// Compares the index with a group's classes or claim; only without concurrent changes.
    pub(crate) fn check(&self, group: u32, classes: ClassMask, claim: u32) -> Result<(), String> {
        let claimed = claim.checked_ilog2().map(|order| order as usize);
        let mut claims = self.claims.iter().enumerate();
        if let Some((order, _)) =
            claims.find(|(order, set)| set.contains(group) != (claimed == Some(*order)))
        {
            return Err(format!(
                "group {group} is wrong in the claims of order {order}"
            ));
        }
        if let Some(lists) = &self.lists {
            lists.check(group, classes.largest())?;
        }
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
        self.claims.iter().try_for_each(OrderedSet::check)?;
        for (class, set) in self.sets.iter().enumerate() {
            set.check()?;
            if self.filled.has(class) == set.is_empty() {
                return Err(format!("summary of the sets is wrong about class {class}"));
            }
        }
        Ok(())
    }
}
