//! The requests that fail, and their faults.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_space::{ByteRange, ErrorKind};
use fastrand::Rng;

use crate::{Operation, OperationKind};

/// A fault and the requests that it affects.
#[derive(Clone, Debug, PartialEq)]
pub struct FaultRule {
    kinds: Vec<OperationKind>,
    range: Option<ByteRange>,
    when: When,
    fault: Fault,
}

/// Selection among the matching requests of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// All.
    Always,
    /// One alone, counted from 1.
    Nth(u64),
    /// One and all after it, counted from 1.
    From(u64),
    /// Each with this probability, from 0 to 1.
    Probability(f64),
}

/// Kind of fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request fails.
    Fail {
        /// The error.
        kind: ErrorKind,
        /// The part that is done despite the error.
        done: Done,
    },
    /// A change or a flush succeeds and was not done.
    Lose,
    /// A change succeeds and was done in part only; of a single unit, perhaps not at all.
    Tear {
        /// Unit that is written atomically, at most a logical block, which is the default (`None`).
        /// Less than a block applies to data only.
        atomic_bytes: Option<u32>,
    },
    /// A read or write succeeds but accesses another place, where a write destroys the existing
    /// data.
    Misdirect,
    /// A read succeeds with this number of wrong bits, drawn one by one. The stored data does not
    /// change.
    FlipBits(u32),
    /// The request is delayed by a time between the two. Other faults apply to it as well.
    Delay {
        /// At least.
        least: Duration,
        /// At most.
        most: Duration,
    },
}

/// The part of a failed change that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Nothing.
    Nothing,
    /// Some of its blocks.
    Part,
    /// Everything.
    All,
}

impl FaultRule {
    /// `fault` for every request that it can affect.
    ///
    /// # Panics
    /// When a delay is at least longer than at most, or the unit of whole writes is not a power of
    /// two.
    pub fn new(fault: Fault) -> Self {
        match &fault {
            Fault::Delay { least, most } => {
                assert!(
                    least <= most,
                    "a delay of at least {least:?} and at most {most:?}"
                );
            }
            Fault::Tear {
                atomic_bytes: Some(unit),
            } => assert!(unit.is_power_of_two(), "{unit} bytes written whole"),
            _ => {}
        }
        Self {
            kinds: OperationKind::ALL.to_vec(),
            range: None,
            when: When::Always,
            fault,
        }
    }

    /// Only operations of these kinds.
    #[must_use]
    pub fn on(mut self, kinds: &[OperationKind]) -> Self {
        self.kinds = kinds.to_vec();
        self
    }

    /// Only requests that touch `range`; a flush touches none.
    #[must_use]
    pub fn touching(mut self, range: ByteRange) -> Self {
        self.range = Some(range);
        self
    }

    /// Only some of them.
    ///
    /// # Panics
    /// When a probability is not from 0 to 1.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        if let When::Probability(probability) = when {
            assert!(
                (0.0..=1.0).contains(&probability),
                "a probability of {probability}"
            );
        }
        self.when = when;
        self
    }
}

impl Fault {
    fn can_strike(&self, kind: OperationKind) -> bool {
        match self {
            Self::Fail { .. } | Self::Delay { .. } => true,
            Self::Lose => kind != OperationKind::Read,
            Self::Tear { .. } => !matches!(kind, OperationKind::Read | OperationKind::Flush),
            Self::Misdirect => matches!(kind, OperationKind::Read | OperationKind::Write),
            Self::FlipBits(_) => kind == OperationKind::Read,
        }
    }
}

/// A rule at work.
pub(super) struct ActiveRule {
    rule: FaultRule,
    seen: AtomicU64,
    strikes: AtomicU64,
}

impl ActiveRule {
    pub(super) fn new(rule: FaultRule) -> Self {
        Self {
            rule,
            seen: AtomicU64::new(0),
            strikes: AtomicU64::new(0),
        }
    }

    /// The number, from 1, of `operation` among those that the rule is about; `None` when it is
    /// not.
    pub(super) fn counts(&self, operation: &Operation<'_>) -> Option<u64> {
        let rule = &self.rule;
        let kind = OperationKind::of(operation);
        if !rule.kinds.contains(&kind) || !rule.fault.can_strike(kind) {
            return None;
        }
        if let Some(wanted) = rule.range {
            operation.range()?.intersection(wanted)?;
        }
        Some(self.seen.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(super) fn decides(&self, count: u64, random: &mut Rng) -> bool {
        match self.rule.when {
            When::Always => true,
            When::Nth(number) => count == number,
            When::From(number) => count >= number,
            When::Probability(probability) => random.f64() < probability,
        }
    }

    pub(super) fn fault(&self) -> &Fault {
        &self.rule.fault
    }

    pub(super) fn struck(&self) {
        self.strikes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn strikes(&self) -> u64 {
        self.strikes.load(Ordering::Relaxed)
    }
}
