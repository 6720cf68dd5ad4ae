//! Events of clients, and errors, as lines of the log.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use extant_export::{Event, Observer};
use parking_lot::Mutex;

use crate::log::Log;
use crate::print;
use crate::source::Source;

/// A disk that fails, or is full, fails every request of a client that does not care.
const BETWEEN_FAILURES: Duration = Duration::from_secs(1);

/// Writes to the log; connections and disconnections only if `is_verbose`.
pub(super) fn observer(log: Arc<Log>, is_verbose: bool) -> Observer {
    let failures = Mutex::new(Failures::default());
    Arc::new(move |event| match event {
        Event::Failed { export, error } => failures
            .lock()
            .log(&log, format_args!("export {export:?}: {error}")),
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

/// As [`observer`], for a vhost-user disk.
pub(super) fn disk_observer(log: Arc<Log>, is_verbose: bool) -> extant_vhost::Observer {
    use extant_vhost::Event;
    let failures = Mutex::new(Failures::default());
    Arc::new(move |event| match event {
        Event::Failed { volume, error } => failures
            .lock()
            .log(&log, format_args!("disk {volume:?}: {error}")),
        Event::Broken {
            volume,
            queue,
            reason,
        } => log.error(format_args!(
            "disk {volume:?}: queue {queue} is stopped until the guest resets it: {reason}"
        )),
        Event::Resized { volume, bytes } => {
            log.notice(format_args!("disk {volume:?} has {bytes} bytes now"))
        }
        Event::Opened { volume } if is_verbose => {
            log.notice(format_args!("a client has connected to disk {volume:?}"))
        }
        Event::Closed { volume, error } if is_verbose => match error {
            None => log.notice(format_args!("the client of disk {volume:?} has left")),
            Some(error) => log.notice(format_args!(
                "the client of disk {volume:?} was disconnected: {error}"
            )),
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
    fn log(&mut self, log: &Log, message: fmt::Arguments<'_>) {
        match self.take(Instant::now()) {
            Some(0) => log.error(message),
            Some(untold) => log.error(format_args!("{message}; and {untold} more failures before")),
            None => {}
        }
    }

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
