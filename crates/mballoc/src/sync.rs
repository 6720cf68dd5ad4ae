//! The primitives that threads meet on: those of the standard library, or of the model checker
//! `shuttle`.
//!
//! Nothing else in the crate names a lock or an atomic, so that what the checker explores is what
//! runs.

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

/// A thread that panicked with the lock left its state half changed: no thread may continue with
/// it.
const POISONED: &str = "a thread panicked while it changed the allocator";

/// Waits for the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

/// Does what a drop does, unless a panic has left the allocator half changed: then it is of no use
/// to anybody, and a second panic would end the process.
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

/// Takes the lock; `None` if another thread holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::WouldBlock) => None,
        Err(TryLockError::Poisoned(_)) => panic!("{POISONED}"),
    }
}

/// Waits for the lock and says for how long, when it was not free at once.
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
