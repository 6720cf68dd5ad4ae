//! The two halves of going to the background: the parent process, which waits, and the server,
//! which detaches from the terminal.
//!
//! The server is this program, started again, so there is no fork of a process that has threads.
//! The server has its own session from the start, so that Ctrl-C reaches only the parent, which
//! forwards it. The server's output on stdout is its ready message; it fails by ending without one.

use std::env;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use extant_space::{CancelToken, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::{print, trace};

/// A signal that comes just before a wait is noticed so much later.
/// Maximum delay in handling a signal that arrives just before a wait.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Foreground or background of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunMode {
    Foreground,
    /// Started by a process that waits for its word.
    Background,
}

/// Result of a start.
pub enum Started {
    /// It is ready; its message.
    Ready(String),
    /// It has reported the error, and ended with this status.
    Failed(ExitCode),
}

/// Starts a server by this program's arguments, and waits for its word. A cancel is handed on to
/// it.
pub fn start(arguments: &[OsString], cancel: &CancelToken) -> Result<Started> {
    let fail = |error: io::Error| Error::from(error).during("start the server");
    let mut server = Command::new(env::current_exe().map_err(fail)?)
        .args(arguments)
        .envs(trace::environment())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    let pipe = server.stdout.take().expect("its stdout is a pipe");
    let mut stop = Stop::new(&server, cancel);
    let said = listen(pipe, &mut stop).map_err(fail)?;
    if !said.is_empty() && !stop.is_wanted().map_err(fail)? {
        return Ok(Started::Ready(said));
    }
    let status = server.wait().map_err(fail)?;
    match status.code() {
        // It was stopped right after its start, and has ended in order.
        Some(0) => Err(Error::new(ErrorKind::Cancelled)),
        Some(code) => Ok(Started::Failed(ExitCode::from(code as u8))),
        // It did not catch signals yet, and had touched nothing.
        None if stop.was_told && status.signal() == Some(Signal::TERM.as_raw()) => {
            Err(Error::new(ErrorKind::Cancelled))
        }
        None => Err(Error::new(ErrorKind::Io).detail(format!(
            "the server was ended by signal {}",
            status.signal().unwrap_or_default()
        ))),
    }
}

/// Hands a cancel on to the server, once: a second signal would end it as a crash would.
struct Stop<'c> {
    server: Pid,
    cancel: &'c CancelToken,
    was_told: bool,
}

impl<'c> Stop<'c> {
    /// For a server that is not waited for before the value is used for the last time: its number
    /// is its own till then.
    fn new(server: &Child, cancel: &'c CancelToken) -> Self {
        Self {
            server: Pid::from_child(server),
            cancel,
            was_told: false,
        }
    }

    /// Whether the server is to stop, of which it knows then.
    fn is_wanted(&mut self) -> io::Result<bool> {
        if self.cancel.is_cancelled() && !self.was_told {
            self.was_told = true;
            kill_process(self.server, Signal::TERM)?;
        }
        Ok(self.was_told)
    }
}

/// The server's output until it closes the pipe.
fn listen(mut pipe: ChildStdout, stop: &mut Stop<'_>) -> io::Result<String> {
    let look = Timespec::try_from(POLL_INTERVAL).expect("a short time");
    let mut said = Vec::new();
    loop {
        stop.is_wanted()?;
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&look)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut buffer = [0; 4096];
        match pipe.read(&mut buffer)? {
            0 => break,
            count => said.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&said).trim_end().to_owned())
}

/// The server's first step.
pub fn leave_terminal() {
    // It fails for a leader of a process group, which needs no new session.
    let _ = setsid();
}

/// Announces that the server is ready; one in the background detaches from the terminal.
pub fn announce(mode: RunMode, ready: &str) -> Result<()> {
    match mode {
        RunMode::Foreground => {
            // The reader may have closed the output.
            print::text(ready);
            Ok(())
        }
        RunMode::Background => let_go(ready),
    }
}

/// Announces that the server is ready, and detaches from the terminal.
pub fn let_go(ready: &str) -> Result<()> {
    let let_go = || -> io::Result<()> {
        // A directory in use could not be unmounted, nor removed.
        env::set_current_dir("/")?;
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        dup2_stdin(&null)?;
        dup2_stderr(&null)?;
        trace::leave_standard_error();
        let mut out = io::stdout().lock();
        // The waiting process may have ended; the server continues.
        let _ = writeln!(out, "{ready}").and_then(|()| out.flush());
        dup2_stdout(&null)?;
        Ok(())
    };
    let_go().map_err(|error| Error::from(error).during("go to the background"))
}
