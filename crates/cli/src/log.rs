//! Destination of a server's error messages: on stderr, and in the background to the system's log
//! as well.
//!
//! Format of the log: RFC 3164, in the short form that `/dev/log` takes.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::background::RunMode;
use crate::system_log::{Severity, SystemLog};

/// Takes messages from any thread.
pub struct Log {
    system: Option<SystemLog>,
    had_error: AtomicBool,
}

impl Log {
    pub fn new(mode: RunMode) -> Self {
        Self {
            system: match mode {
                RunMode::Foreground => None,
                RunMode::Background => SystemLog::connect(),
            },
            had_error: AtomicBool::new(false),
        }
    }

    /// An error of the device or of the file system.
    pub fn error(&self, error: impl Display) {
        self.had_error.store(true, Ordering::Relaxed);
        self.tell(Severity::Error, error);
    }

    /// A notice for the user.
    pub fn notice(&self, line: impl Display) {
        self.tell(Severity::Notice, line);
    }

    pub fn had_error(&self) -> bool {
        self.had_error.load(Ordering::Relaxed)
    }

    fn tell(&self, severity: Severity, line: impl Display) {
        // Without stderr the failure cannot be reported.
        let _ = writeln!(io::stderr(), "extant: {line}");
        if let Some(system) = &self.system {
            system.send(severity, line);
        }
    }
}
