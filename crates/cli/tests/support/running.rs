//! A running command: watched, signalled, awaited.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::Answer;

/// Longest wait of a test for an event.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
///
/// # Panics
/// With `what` if it takes too long.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < ANSWER_TIMEOUT, "waited in vain: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A run in progress. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    readers: Option<[JoinHandle<Vec<u8>>; 2]>,
    started: Instant,
}

impl Running {
    /// Starts `command`; its output is read as it arrives.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let line = extant_testkit::command::line(command);
        let started = Instant::now();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("`{line}`: {error}"));
        let readers = [
            read_all(child.stdout.take().expect("piped")),
            read_all(child.stderr.take().expect("piped")),
        ];
        Self {
            line,
            child,
            readers: Some(readers),
            started,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// It has not ended.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// Sends `signal`, unless the run has ended already.
    pub fn send(&mut self, signal: Signal) {
        // Not waited for, so the number is still its own.
        if self.is_alive() {
            let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
            kill_process(pid, signal).expect("send a signal to a child");
        }
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(mut self) -> Answer {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(
                start.elapsed() < ANSWER_TIMEOUT,
                "`{}` does not end",
                self.line
            );
            thread::sleep(Duration::from_millis(1));
        };
        let [stdout, stderr] = self.readers.take().expect("taken once");
        let output = std::process::Output {
            status,
            stdout: stdout.join().expect("a reader"),
            stderr: stderr.join().expect("a reader"),
        };
        Answer::of(std::mem::take(&mut self.line), output)
    }

    /// Sends `signal` and waits; also how long the end took.
    #[track_caller]
    pub fn stop(mut self, signal: Signal) -> (Answer, Duration) {
        let start = Instant::now();
        self.send(signal);
        let answer = self.wait();
        (answer, start.elapsed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        let _ = pipe.read_to_end(&mut all);
        all
    })
}
