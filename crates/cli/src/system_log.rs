//! The log of the system.
//!
//! Format: RFC 3164, in the short form that `/dev/log` takes.

use std::fmt::Display;
use std::os::unix::net::UnixDatagram;
use std::process;

const SOCKET: &str = "/dev/log";
/// Facility 3, programs in the background.
const DAEMON: u8 = 3 << 3;

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    Error = 3,
    Notice = 5,
    Debug = 7,
}

/// A connection to the log.
#[derive(Debug)]
pub struct SystemLog(UnixDatagram);

impl SystemLog {
    /// `None` where the system has no log.
    pub fn connect() -> Option<Self> {
        let socket = UnixDatagram::unbound().ok()?;
        // A log that does not read must not hold up the server.
        socket.set_nonblocking(true).ok()?;
        socket.connect(SOCKET).ok()?;
        Some(Self(socket))
    }

    /// Logs a line, unless the log does not take it now.
    pub fn send(&self, severity: Severity, line: impl Display) {
        let priority = DAEMON | severity as u8;
        let message = format!("<{priority}>extant[{}]: {line}", process::id());
        let _ = self.0.send(message.as_bytes());
    }
}
