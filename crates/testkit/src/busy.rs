//! What is busy for a moment only.
//!
//! A process that another thread has just forked has every file open until its exec, and the kernel lets go of the files of
//! one that has ended a little later. A mount is busy as long.

use std::thread;
use std::time::{Duration, Instant};

use extant_space::{ErrorKind, Result};

const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Tries until the result is another than busy, or for some seconds; returns the last result.
pub fn try_while_busy<T>(is_busy: impl Fn(&T) -> bool, mut attempt: impl FnMut() -> T) -> T {
    let start = Instant::now();
    loop {
        let result = attempt();
        if !is_busy(&result) || start.elapsed() >= PATIENCE {
            return result;
        }
        thread::sleep(PAUSE);
    }
}

/// The same, where busy is the error of what is in use.
pub fn try_while_in_use<T>(attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let is_busy =
        |result: &Result<T>| matches!(result, Err(error) if error.kind() == ErrorKind::InUse);
    try_while_busy(is_busy, attempt)
}
