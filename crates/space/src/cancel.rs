//! A flag that asks a long operation to stop.
//!
//! Operations check the token at least every 20 ms, between the requests
//! they have in flight, and return [`ErrorKind::Cancelled`] within 100 ms.
//!
//! [`ErrorKind::Cancelled`]: crate::ErrorKind::Cancelled

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, ErrorKind, Result};

/// Longest time between two checks of the flag in [`CancelToken::sleep`].
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A request to stop, shared between the waiting and the working thread.
///
/// Clones share one flag. Cancelling cannot be undone.
#[derive(Clone, Debug, Default)]
pub struct CancelToken {
    flag: Arc<AtomicBool>,
    parent: Option<Arc<CancelToken>>,
}

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wraps a flag that something else sets, such as a signal handler.
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self { flag, parent: None }
    }

    /// A token that is cancelled with this one, or by itself, which this one does not see.
    pub fn child(&self) -> Self {
        Self {
            flag: Arc::default(),
            parent: Some(Arc::new(self.clone())),
        }
    }

    /// Asks every holder of a clone to stop.
    pub fn cancel(&self) {
        self.flag.store(true, Ordering::Relaxed);
    }

    /// True once [`cancel`](Self::cancel) was called.
    pub fn is_cancelled(&self) -> bool {
        self.flag.load(Ordering::Relaxed) || self.parent.as_deref().is_some_and(Self::is_cancelled)
    }

    /// `Err` of kind [`ErrorKind::Cancelled`] once cancelled.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            Err(Error::new(ErrorKind::Cancelled))
        } else {
            Ok(())
        }
    }

    /// Sleeps for `duration`, or until it is cancelled.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn sleep(&self, duration: Duration) -> Result<()> {
        let started = Instant::now();
        loop {
            self.check()?;
            let rest = duration.saturating_sub(started.elapsed());
            if rest.is_zero() {
                return Ok(());
            }
            thread::sleep(rest.min(CHECK_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancel_of_a_clone_is_seen_by_all() {
        let token = CancelToken::new();
        let other = token.clone();
        assert!(token.check().is_ok());
        other.cancel();
        assert_eq!(token.check().unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn cancel_of_a_child_stays_there_and_that_of_its_parent_reaches_it() {
        let token = CancelToken::new();
        let (one, other) = (token.child(), token.child());
        one.cancel();
        assert!(one.is_cancelled() && !token.is_cancelled() && !other.is_cancelled());
        token.cancel();
        assert!(other.child().is_cancelled());
    }
}
