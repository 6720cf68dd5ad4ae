//! Classes of runs by their length.
//!
//! Each length up to 15 blocks is a class of its own. Above that each order (2^k to 2^(k+1) - 1
//! blocks) has 8 classes, so that the runs of a class differ by less than an eighth. From 2^16
//! blocks on, which occur only with blocks of 64 KiB, an order is one class.
//!
//! The width determines how a disk ages. If a request can select only the order, remainders consume
//! the long runs: a disk that is 90% full has none after a million creates and deletes. With 4
//! classes per order most stay, with 8 nearly as many as with a true best fit.

/// Classes an order has, as a power of two.
const SPLIT: u32 = 3;
/// Below this length each is a class of its own.
const EXACT: u32 = 1 << (SPLIT + 1);
/// Orders from here on are one class each.
const WHOLE_ORDER: u32 = 16;
/// Number of classes up to that order.
const SPLIT_CLASSES: u32 = EXACT - 1 + ((WHOLE_ORDER - SPLIT - 1) << SPLIT);
/// Number of classes; the longest run is a group of 2^19 blocks.
pub(crate) const CLASSES: usize = SPLIT_CLASSES as usize + 4;

/// The class of a run of `count` blocks, at least one.
pub(crate) fn class_of(count: u32) -> usize {
    let order = count.ilog2();
    let class = if count < EXACT {
        count - 1
    } else if order < WHOLE_ORDER {
        let part = count >> (order - SPLIT) & ((1 << SPLIT) - 1);
        EXACT - 1 + ((order - SPLIT - 1) << SPLIT) + part
    } else {
        SPLIT_CLASSES + order - WHOLE_ORDER
    };
    class as usize
}

/// Blocks of the shortest run of a class; of the class past the last, more than any run has.
pub(crate) fn shortest_of(class: usize) -> u32 {
    let class = class as u32;
    if class < EXACT - 1 {
        class + 1
    } else if class < SPLIT_CLASSES {
        let past = class - (EXACT - 1);
        let (order, part) = ((past >> SPLIT) + SPLIT + 1, past & ((1 << SPLIT) - 1));
        (1 << SPLIT | part) << (order - SPLIT)
    } else {
        1 << (class - SPLIT_CLASSES + WHOLE_ORDER)
    }
}

/// Classes, a bit for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassMask(u128);

impl ClassMask {
    pub(crate) const NONE: Self = Self(0);

    /// The class of one run; none for no blocks.
    pub(crate) fn of_run(count: u32) -> Self {
        match count {
            0 => Self::NONE,
            count => Self(1 << class_of(count)),
        }
    }

    pub(crate) fn set(&mut self, class: usize, is: bool) {
        self.0 = self.0 & !(1 << class) | u128::from(is) << class;
    }

    pub(crate) fn has(self, class: usize) -> bool {
        self.0 >> class & 1 == 1
    }

    /// The largest class.
    pub(crate) fn largest(self) -> Option<usize> {
        self.0.checked_ilog2().map(|class| class as usize)
    }

    /// These classes without those of `other`.
    pub(crate) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    #[cfg(feature = "ablation")]
    /// The largest class alone.
    pub(crate) fn only_largest(self) -> Self {
        Self(self.largest().map_or(0, |class| 1 << class))
    }

    pub(crate) fn classes(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let class = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(class)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_in_the_class_that_its_bounds_say() {
        let mut before = 0;
        for count in 1..=1u32 << 19 {
            let class = class_of(count);
            assert!(class == before || class == before + 1, "{count}");
            assert_eq!(count == shortest_of(class), class != before || count == 1);
            assert!(count < shortest_of(class + 1), "{count}");
            before = class;
        }
        assert_eq!(before, CLASSES - 1);
    }

    #[test]
    fn classes_are_an_eighth_wide_at_most() {
        for class in class_of(16)..class_of(1 << WHOLE_ORDER) {
            let (from, to) = (shortest_of(class), shortest_of(class + 1));
            assert!((to - from) * 8 <= from, "class {class}: {from} to {to}");
        }
    }

    #[test]
    fn mask_lists_its_classes_in_order() {
        let mut mask = ClassMask::of_run(5);
        mask.set(CLASSES - 1, true);
        mask.set(70, true);
        mask.set(70, false);
        assert_eq!(mask.classes().collect::<Vec<_>>(), [4, CLASSES - 1]);
        assert_eq!(mask.largest(), Some(CLASSES - 1));
        assert_eq!(mask.only_largest(), mask.without(ClassMask::of_run(5)));
        assert_eq!(ClassMask::of_run(0), ClassMask::NONE);
    }
}
