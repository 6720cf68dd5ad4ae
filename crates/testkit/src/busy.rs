//! Retries of operations on files, devices and mounts that are busy for a moment.
//!
//! A forked child has every file open until its exec, and the kernel closes the files of an ended
//! process with a delay. A mount is busy as long.

use std::thread;
use std::time::{Duration, Instant};

use extant_space::{ErrorKind, Result};

const RETRY_TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Retries while the result is busy, at most `RETRY_TIMEOUT`; returns the last result.
pub fn try_while_busy<T>(is_busy: impl Fn(&T) -> bool, mut attempt: impl FnMut() -> T) -> T {
    let start = Instant::now();
    loop {
        let result = attempt();
        if !is_busy(&result) || start.elapsed() >= RETRY_TIMEOUT {
            return result;
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// The same for errors of kind `InUse`.
pub fn try_while_in_use<T>(attempt: impl FnMut() -> Result<T>) -> Result<T> {
    let is_busy =
        |result: &Result<T>| matches!(result, Err(error) if error.kind() == ErrorKind::InUse);
    try_while_busy(is_busy, attempt)
}
