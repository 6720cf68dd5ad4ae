//! Calls that wait for a cluster, and may be given up.
//!
//! librados has no cancellation. A call runs on a thread of its own, with all that it uses, so that
//! the caller can return before the cluster answers. What such a call returns later is dropped on
//! its thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use extant_space::thread::spawn;
use extant_space::{CancelToken, Error, ErrorKind, Result};

use crate::storage::Caller;

/// Interval between two checks for a cancel.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// A rollback gives up when the cluster takes no step for so long.
const ROLLBACK_STALL: Duration = Duration::from_secs(4);
/// Longest wait for the end of a use, which has no result.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The same after a cancel.
const CLOSE_TIMEOUT_CANCELLED: Duration = Duration::from_secs(1);

/// How long the caller waits.
#[derive(Clone, Debug)]
pub(super) struct Patience {
    cancel: CancelToken,
    /// `None`: the time limits of the libraries.
    stall: Option<Duration>,
    has_given_up: Arc<AtomicBool>,
}

/// Counts the steps of a call.
#[derive(Clone, Default)]
pub(super) struct Steps(Arc<AtomicU64>);

impl Steps {
    pub(super) fn tick(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Patience {
    pub(super) fn of(caller: Caller<'_>) -> Self {
        let (cancel, stall) = match caller {
            Caller::Short => (CancelToken::new(), None),
            Caller::Job(cancel) => (cancel.clone(), None),
            Caller::Rollback => (CancelToken::new(), Some(ROLLBACK_STALL)),
        };
        Self {
            cancel,
            stall,
            has_given_up: Arc::default(),
        }
    }

    pub(super) fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// A call was left alone.
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up.load(Ordering::Relaxed)
    }

    /// Waits for `call`.
    ///
    /// # Errors
    /// `Cancelled`; `Io` if it is given up; those of the call.
    pub(super) fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Steps) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.call_reporting(call, &|| {})
    }

    /// The same; `report` is called while it waits.
    pub(super) fn call_reporting<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Steps) -> Result<T> + Send + 'static,
        report: &dyn Fn(),
    ) -> Result<T> {
        self.cancel.check()?;
        let steps = Steps::default();
        let (ended, result) = mpsc::channel();
        let own = steps.clone();
        spawn("rbd call", move || {
            let _ = ended.send(call(&own));
        })?;
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            match result.recv_timeout(CHECK_INTERVAL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => panic!("the call has panicked"),
                Err(RecvTimeoutError::Timeout) => report(),
            }
            if steps.count() != seen {
                (seen, since) = (steps.count(), Instant::now());
            }
            let stalled = self.stall.filter(|&stall| since.elapsed() >= stall);
            let given_up = self.cancel.check().and(match stalled {
                None => Ok(()),
                Some(stall) => Err(Error::new(ErrorKind::Io).detail(format!(
                    "the cluster has not answered within {} s",
                    stall.as_secs()
                ))),
            });
            if let Err(error) = given_up {
                self.has_given_up.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
    }

    /// Drops `used`, which may wait for the cluster, and waits a little for that, also after a
    /// cancel.
    pub(super) fn close<T: Send + 'static>(&self, used: T) {
        let (ended, end) = mpsc::channel();
        let closing = spawn("rbd close", move || {
            drop(used);
            let _ = ended.send(());
        });
        if closing.is_err() {
            // Then `used` has been dropped here.
            return;
        }
        let timeout = if self.cancel.is_cancelled() || self.stall.is_some() {
            CLOSE_TIMEOUT_CANCELLED
        } else {
            CLOSE_TIMEOUT
        };
        if end.recv_timeout(timeout).is_err() {
            self.has_given_up.store(true, Ordering::Relaxed);
        }
    }
}
