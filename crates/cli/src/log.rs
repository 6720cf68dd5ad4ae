//! Destination of a server's error messages: on stderr, and in the background to the system's log
//! as well.
//!
//! Format of the log: RFC 3164, in the short form that `/dev/log` takes.

use std::fmt::Display;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::background::RunMode;

const SOCKET: &str = "/dev/log";
/// Facility 3, programs in the background.
const DAEMON: u8 = 3 << 3;
const PRIORITY_ERROR: u8 = DAEMON | 3;
const PRIORITY_NOTICE: u8 = DAEMON | 5;

/// Takes messages from any thread.
pub struct Log {
    socket: Option<UnixDatagram>,
    had_error: AtomicBool,
}

impl Log {
    pub fn new(mode: RunMode) -> Self {
        Self {
            socket: match mode {
                RunMode::Foreground => None,
                RunMode::Background => connect(),
            },
            had_error: AtomicBool::new(false),
        }
    }

    /// An error of the device or of the file system.
    pub fn error(&self, error: impl Display) {
        self.had_error.store(true, Ordering::Relaxed);
        self.tell(PRIORITY_ERROR, error);
    }

    /// A notice for the user.
    pub fn notice(&self, line: impl Display) {
        self.tell(PRIORITY_NOTICE, line);
    }

    pub fn had_error(&self) -> bool {
        self.had_error.load(Ordering::Relaxed)
    }

    fn tell(&self, priority: u8, line: impl Display) {
        // Without stderr the failure cannot be reported.
        let _ = writeln!(io::stderr(), "extant: {line}");
        if let Some(socket) = &self.socket {
            let _ =
                socket.send(format!("<{priority}>extant[{}]: {line}", process::id()).as_bytes());
        }
    }
}

fn connect() -> Option<UnixDatagram> {
    let socket = UnixDatagram::unbound().ok()?;
    // A log that does not read must not hold up the server.
    socket.set_nonblocking(true).ok()?;
    socket.connect(SOCKET).ok()?;
    Some(socket)
}
