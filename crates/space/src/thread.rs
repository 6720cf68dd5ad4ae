//! Threads whose start can fail.
//!
//! `std::thread::spawn` panics where the system has no thread left; these functions return an
//! error. The closure is dropped then.

use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

use crate::{Error, Result};

/// Starts a thread. Linux shows the first 15 bytes of `name`.
///
/// # Errors
/// Those of the system: the limit of processes, no memory.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>> {
    let started = Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|error| Error::from(error).during("start a thread"))
}

/// Starts a thread that ends before `scope` does.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let started = Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, run);
    started.map_err(|error| Error::from(error).during("start a thread"))
}
