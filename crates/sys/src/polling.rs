//! Polling of a socket or ring before a call that blocks.
//!
//! A client with a few requests in flight sends the next ones microseconds after it has the
//! replies. To sleep and be woken takes longer than that, on both sides.
//!
//! The window of polling adapts as that of the kernel's halt polling does. It grows while the input
//! arrives soon after the thread has begun to sleep, and it is closed by one long sleep: a quiet
//! client costs nothing. Between two attempts the thread yields its processor, on which the client
//! may have to run.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// About the time of a wake-up on another processor.
const WINDOW_MIN: Duration = Duration::from_micros(10);
/// A client that takes longer than that gains little.
const WINDOW_MAX: Duration = Duration::from_micros(80);

/// The window of one source of input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Polling {
    window: Duration,
}

impl Polling {
    /// Calls `attempt` until it does not fail with `WouldBlock`, at most for the window. `None`:
    /// the window has passed, and a call that blocks is due.
    pub fn poll<T>(self, mut attempt: impl FnMut() -> io::Result<T>) -> Option<io::Result<T>> {
        if self.window.is_zero() {
            return None;
        }
        let started = Instant::now();
        while started.elapsed() < self.window {
            match attempt() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::yield_now(),
                result => return Some(result),
            }
        }
        None
    }

    /// Adapts the window to a call that blocked for `slept`.
    pub fn adapt(&mut self, slept: Duration) {
        self.window = if slept > WINDOW_MAX {
            Duration::ZERO
        } else {
            (2 * self.window).clamp(WINDOW_MIN, WINDOW_MAX)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);

    #[test]
    fn window_opens_with_short_sleeps_and_closes_with_a_long_one() {
        let mut polling = Polling::default();
        let attempt = || -> io::Result<()> { panic!("the window is closed") };
        assert!(polling.poll(attempt).is_none());
        polling.adapt(SHORT);
        assert_eq!(polling.window, WINDOW_MIN);
        for _ in 0..9 {
            polling.adapt(SHORT);
        }
        assert_eq!(polling.window, WINDOW_MAX);
        polling.adapt(2 * WINDOW_MAX);
        assert_eq!(polling.window, Duration::ZERO);
    }

    #[test]
    fn poll_returns_input_and_errors_at_once_and_nothing_after_the_window() {
        // Wide enough for any load of the machine.
        let window = Duration::from_secs(60);
        let polling = Polling { window };
        let mut attempts = 0;
        let found = polling.poll(|| {
            attempts += 1;
            match attempts {
                1 => Err(io::ErrorKind::WouldBlock.into()),
                _ => Ok(7),
            }
        });
        assert!(matches!(found, Some(Ok(7))), "{found:?}");
        let failed = polling.poll(|| io::Result::<()>::Err(io::ErrorKind::BrokenPipe.into()));
        assert!(failed.unwrap().is_err());
        let window = WINDOW_MIN;
        let nothing =
            Polling { window }.poll(|| io::Result::<()>::Err(io::ErrorKind::WouldBlock.into()));
        assert!(nothing.is_none());
    }
}
