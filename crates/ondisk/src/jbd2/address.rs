//! Numbers of transactions and of the journal's own blocks.

use std::fmt;

/// The number of a transaction. Numbers wrap after 2^32, so that only two that are less than 2^31
/// apart can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Sequence(pub u32);

impl Sequence {
    /// The number of the next transaction.
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether the transaction is later than `other`.
    pub fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A block of the journal, counted from its superblock, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct JournalBlock(pub u32);

impl fmt::Display for JournalBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_compared_round_the_end() {
        let last = Sequence(u32::MAX);
        assert_eq!(last.next(), Sequence(0));
        assert!(last.next().is_after(last));
        assert!(!last.is_after(last.next()));
        assert!(!last.is_after(last));
        assert!(Sequence(5).is_after(Sequence(u32::MAX - 5)));
    }
}
