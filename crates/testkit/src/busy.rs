//! What is busy for a moment only.
//!
//! A process that another thread has just forked has every file open until its exec, and the kernel lets go of the files of
//! one that has ended a little later. A mount is busy as long.

use std::thread;
use std::time::{Duration, Instant};

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
