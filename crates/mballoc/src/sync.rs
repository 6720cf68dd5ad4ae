//! Synchronisation primitives: those of the standard library, or of the model checker `shuttle`.
//!
//! No other module names a lock or an atomic, so the checker explores the code that runs.

use std::time::{Duration, Instant};

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::sync::{
    Arc, Mutex, MutexGuard, TryLockError, Weak,
    atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::sync::{
    Arc, Mutex, MutexGuard, TryLockError, Weak,
    atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

/// A thread that panicked with the lock held may have left the state inconsistent.
const POISONED: &str = "a thread panicked while it changed the allocator";

/// Waits for the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

/// Runs the body of a `drop`, unless a panic may have left the allocator inconsistent: a second
/// panic would abort the process.
pub(crate) fn after_panics(drop: impl FnOnce()) {
    if std::thread::panicking() {
        return;
    }
    #[cfg(feature = "shuttle")]
    drop();
    #[cfg(not(feature = "shuttle"))]
    {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(drop));
    }
}

/// Takes the lock; `None` when another thread holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
    }
}

/// Waits for the lock; returns the time waited if it was contended.
pub(crate) fn lock_timed<T>(mutex: &Mutex<T>) -> (MutexGuard<'_, T>, Option<Duration>) {
    match try_lock(mutex) {
        Some(guard) => (guard, None),
        None => {
            let start = Instant::now();
            let guard = lock(mutex);
            (guard, Some(start.elapsed()))
        }
    }
}
