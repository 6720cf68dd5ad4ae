//! Events of clients, and errors, as lines of the log.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use extant_export::{Event, Observer};
use parking_lot::Mutex;

use super::source::Source;
use crate::log::Log;
use crate::print;

/// A disk that fails, or is full, fails every request of a client that does not care.
const BETWEEN_FAILURES: Duration = Duration::from_secs(1);

/// Writes to the log; connections and disconnections only if `is_verbose`.
pub(super) fn observer(log: Arc<Log>, is_verbose: bool) -> Observer {
    let failures = Mutex::new(Failures::default());
    Arc::new(move |event| match event {
        Event::Failed { export, error } => {
            let mut failures = failures.lock();
            match failures.take(Instant::now()) {
                Some(0) => log.error(format_args!("export {export:?}: {error}")),
                Some(untold) => log.error(format_args!(
                    "export {export:?}: {error}; and {untold} more failures before"
                )),
                None => {}
            }
        }
        Event::Refused { peer } => log.notice(format_args!(
            "{peer} was refused: the limit of --connections is reached"
        )),
        Event::AcceptFailed { error } => log.error(error),
        Event::Opened { peer, export } if is_verbose => {
            log.notice(format_args!("{peer} has opened export {export:?}"))
        }
        Event::Closed { peer, error } if is_verbose => match error {
            None => log.notice(format_args!("{peer} has left")),
            Some(error) => log.notice(format_args!("{peer} was lost: {error}")),
        },
        _ => {}
    })
}

/// Logs how reads and writes reach the kernel.
pub(super) fn tell_engines(log: &Log, sources: &[Source]) {
    for source in sources {
        if let Some(aio) = source.aio.as_ref().and_then(ValueEnum::to_possible_value) {
            let place = print::path(&source.path);
            log.notice(format_args!("{place}: --aio {}", aio.get_name()));
        }
    }
}

/// Logs the clients' statistics.
pub(super) fn tell_statistics(log: &Log, sources: &[Source]) {
    for source in sources {
        let counted = source.device.snapshot();
        let place = print::path(&source.path);
        match counted.iter().next() {
            None => log.notice(format_args!("{place}: no requests")),
            Some(_) => {
                log.notice(format_args!("{place}:"));
                counted
                    .to_string()
                    .lines()
                    .for_each(|line| log.notice(line));
            }
        }
    }
}

/// Lets one failure a second pass.
#[derive(Default)]
struct Failures {
    told: Option<Instant>,
    untold: u64,
}

impl Failures {
    /// The number of suppressed messages before this one, if it is to be logged.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now - told < BETWEEN_FAILURES) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_once_a_second_and_counted_between() {
        let mut failures = Failures::default();
        let start = Instant::now();
        assert_eq!(failures.take(start), Some(0));
        for _ in 0..5 {
            assert_eq!(failures.take(start + BETWEEN_FAILURES / 2), None);
        }
        assert_eq!(failures.take(start + BETWEEN_FAILURES), Some(5));
        assert_eq!(failures.take(start + 2 * BETWEEN_FAILURES), Some(0));
    }
}
