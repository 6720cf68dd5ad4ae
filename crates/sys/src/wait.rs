//! Waiting for state without notification, such as a lock of another process.

use std::thread;
use std::time::{Duration, Instant};

/// Repeats `attempt` every `interval` until it returns a value; `None` after `timeout`.
pub fn poll_until<T>(
    timeout: Duration,
    interval: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let found = attempt();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_end_with_the_first_value_or_the_timeout() {
        let mut attempts = 0;
        let third = poll_until(Duration::from_secs(60), Duration::ZERO, || {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        });
        assert_eq!(third, Some(3));
        let never = poll_until(Duration::ZERO, Duration::ZERO, || None::<()>);
        assert_eq!(never, None);
    }
}
