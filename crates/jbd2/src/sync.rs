//! The synchronization primitives: those of the standard library, or of the model checker
//! `shuttle`.
//!
//! Nothing else in the crate names a lock, an atomic or a thread, so that the model checker
//! explores the code that runs.

use std::sync::PoisonError;
use std::time::Duration;

#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
    thread_local,
};

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
    thread_local,
};

/// A thread that panicked with the lock left its state half changed: no thread may continue with
/// it.
const POISONED: &str = "a thread panicked while it changed the journal";

/// Waits for the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect(POISONED)
}

/// Waits for a shared lock.
pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().expect(POISONED)
}

/// Waits for the lock alone.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().expect(POISONED)
}

/// Waits for a lock of which the panic of another holder is known.
pub(crate) fn lock_poisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same, shared.
pub(crate) fn read_poisoned<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// The same, alone.
pub(crate) fn write_poisoned<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for news.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).expect(POISONED)
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// There may be news.
    News,
    /// The time is over.
    TimeOver,
}

/// Waits for news, or until the time is over. The model checker knows no time: there it waits for
/// news.
pub(crate) fn wait_for<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> (MutexGuard<'a, T>, Woken) {
    let (guard, result) = condvar.wait_timeout(guard, time).expect(POISONED);
    if result.timed_out() {
        (guard, Woken::TimeOver)
    } else {
        (guard, Woken::News)
    }
}

/// A number for the calling thread; those of few threads are close together.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn thread_number() -> usize {
    use std::sync::atomic::AtomicUsize;
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

/// A number for the calling thread, the same in every run of the model.
#[cfg(feature = "shuttle")]
pub(crate) fn thread_number() -> usize {
    shuttle::current::me().into()
}
