//! A rate in bytes per second, fixed or adjustable while the operation runs.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rate that can be changed while operations keep to it. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedRate(Arc<AtomicU64>);

impl SharedRate {
    /// A rate that starts with this value.
    pub fn new(bytes_a_second: NonZeroU64) -> Self {
        Self(Arc::new(AtomicU64::new(bytes_a_second.get())))
    }

    /// Sets the rate from now on.
    pub fn set(&self, bytes_a_second: NonZeroU64) {
        self.0.store(bytes_a_second.get(), Ordering::Relaxed);
    }

    /// Bytes a second.
    pub fn get(&self) -> NonZeroU64 {
        NonZeroU64::new(self.0.load(Ordering::Relaxed)).expect("only such are stored")
    }
}

impl PartialEq for SharedRate {
    /// They are one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedRate {}

pub(super) enum Rate {
    Fixed(NonZeroU64),
    Shared(SharedRate),
}

impl Rate {
    pub(super) fn bytes_a_second(&self) -> u64 {
        match self {
            Self::Fixed(rate) => rate.get(),
            Self::Shared(rate) => rate.get().get(),
        }
    }
}
