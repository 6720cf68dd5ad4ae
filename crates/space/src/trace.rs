//! Events of `tracing`, and the duration of what they report.
//!
//! [`traced!`](crate::traced) runs an operation and reports it when it has ended;
//! [`event!`](crate::event) reports something that takes no time. Without a listener of the level
//! either costs one load and one comparison: fields are evaluated, and the clock is read, only for
//! a listener, on a cold path.
//!
//! Targets, events and fields: `docs/internals/tracing.md`.

pub use std::hint::cold_path;
use std::time::Instant;

pub use tracing::{self, Level};

use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

/// Whether a listener takes events of `level`.
#[inline(always)]
pub fn is_on(level: Level) -> bool {
    level <= STATIC_MAX_LEVEL && level <= LevelFilter::current()
}

/// Start of an operation; reads the clock only for a listener.
#[derive(Clone, Copy, Debug)]
pub struct Timer(Option<Instant>);

impl Timer {
    /// Starts, if a listener takes events of `level`.
    #[inline(always)]
    pub fn start(level: Level) -> Self {
        Self(is_on(level).then(Instant::now))
    }

    /// Whether there was a listener at the start.
    #[inline(always)]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Microseconds since the start; 0 without a listener.
    pub fn microseconds(&self) -> u64 {
        let elapsed = self.0.map(|start| start.elapsed()).unwrap_or_default();
        u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX)
    }
}

/// Reports an event: level, name, and fields as `tracing::event!` takes them.
///
/// ```
/// extant_space::event!(DEBUG, "plan", strategy = "overwrite", length_bytes = 4096);
/// ```
#[macro_export]
macro_rules! event {
    ($level:ident, $name:expr, $($fields:tt)+) => {
        if $crate::trace::is_on($crate::trace::Level::$level) {
            $crate::trace::cold_path();
            $crate::trace::tracing::event!(
                $crate::trace::Level::$level, { $($fields)+ }, "{}", $name
            );
        }
    };
}

/// Reports the end of an operation whose [`Timer`] was started before, with `duration_us`, and
/// `error` if `result` is one.
#[macro_export]
macro_rules! ended {
    ($timer:expr, $result:expr, $level:ident, $name:expr, $($fields:tt)+) => {
        if $timer.is_on() {
            $crate::trace::cold_path();
            let error = $result.as_ref().err().map($crate::trace::tracing::field::display);
            $crate::trace::tracing::event!(
                $crate::trace::Level::$level,
                { $($fields)+, duration_us = $timer.microseconds(), error },
                "{}", $name
            );
        }
    };
}

/// Evaluates an expression of type `Result` and reports it when it has ended, with `duration_us`,
/// and `error` if it is one.
///
/// ```
/// use extant_space::{Result, traced};
///
/// fn flush() -> Result<()> {
///     Ok(())
/// }
/// traced!(DEBUG, "flush", (device = "disk.img"), flush()).unwrap();
/// ```
#[macro_export]
macro_rules! traced {
    ($level:ident, $name:expr, ($($fields:tt)+), $operation:expr) => {{
        let timer = $crate::trace::Timer::start($crate::trace::Level::$level);
        let result = $operation;
        $crate::ended!(timer, result, $level, $name, $($fields)+);
        result
    }};
}
