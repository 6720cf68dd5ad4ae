//! The background load: a program that creates a big file while fio runs.
//!
//! `extant create --background` is slow enough to run until it is stopped. The other programs
//! finish early and start again, which replaces the file.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use extant_space::BackgroundShare;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::bench::{Context, Options, size_word};
use crate::peers;
use crate::process::written_bytes;

/// The program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Background,
    /// In the background, with [`share`].
    Share,
    Plain,
    Dd,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Background, Self::Share, Self::Plain, Self::Dd];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Background => "extant create --background",
            Self::Share => "extant create --background=SHARE",
            Self::Plain => "extant create",
            Self::Dd => "dd direct",
        }
    }

    fn command(self, context: &Context, file: &std::path::Path, bytes: u64) -> Command {
        if self == Self::Dd {
            return peers::dd(file, bytes);
        }
        let mut command = context.extant();
        command.arg("create").arg(file).arg(size_word(bytes));
        command.args(["--force", "--progress", "json"]);
        match self {
            Self::Background => command.arg("--background"),
            Self::Share => command.arg(format!("--background={}", share(&context.options))),
            _ => &mut command,
        };
        command
    }
}

/// The share of the command line, or 5 %.
pub(super) fn share(options: &Options) -> BackgroundShare {
    let default = || BackgroundShare::from_basis_points(500).expect("5 % is a share");
    options.background_share.unwrap_or_else(default)
}

/// A line of `--progress json`.
#[derive(Deserialize)]
struct ProgressLine {
    phase: String,
    done_bytes: u64,
}

/// State shared by the running program and its observer.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    /// Bytes of runs that ended.
    finished: AtomicU64,
    /// Bytes of the current run.
    current: AtomicU64,
    child: Mutex<Option<Child>>,
}

/// A program that runs concurrently with the job.
pub(super) struct BackgroundLoad {
    shared: Arc<Shared>,
    keeper: JoinHandle<Result<()>>,
    started: Instant,
    file: PathBuf,
    shown: String,
}

impl BackgroundLoad {
    pub(super) fn start(context: &Context, kind: Kind, bytes: u64) -> Result<Self> {
        let file = context.file("big.raw");
        let shown = context.shown(&kind.command(context, &file, bytes));
        let shared = Arc::new(Shared::default());
        let mut command = kind.command(context, &file, bytes);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let keeper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || run_repeatedly(&shared, command, kind, bytes))
        };
        Ok(Self {
            shared,
            keeper,
            started: Instant::now(),
            file,
            shown,
        })
    }

    /// Stops it until [`resume`](Self::resume).
    pub(super) fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    pub(super) fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match &*self.shared.child.lock() {
            Some(child) => Ok(kill_process(Pid::from_child(child), signal)?),
            // Between two runs.
            None => Ok(()),
        }
    }

    /// Bytes that the current run has sent to the disk.
    pub(super) fn written_bytes(&self) -> Result<u64> {
        match &*self.shared.child.lock() {
            Some(child) => written_bytes(child.id()),
            None => Ok(0),
        }
    }

    /// Ends it; the MiB a second that it made, and its command.
    pub(super) fn stop(self) -> Result<(f64, String)> {
        self.shared.stop.store(true, Ordering::SeqCst);
        let seconds = self.started.elapsed().as_secs_f64();
        // It may have ended, and it may be stopped.
        let _ = self.signal(Signal::INT);
        let _ = self.resume();
        self.keeper.join().expect("the keeper does not panic")?;
        let bytes = self.shared.finished.load(Ordering::SeqCst)
            + self.shared.current.load(Ordering::SeqCst);
        if self.file.exists() {
            fs::remove_file(&self.file)?;
        }
        Ok((bytes as f64 / f64::from(1 << 20) / seconds, self.shown))
    }
}

/// Runs the command repeatedly until stopped.
fn run_repeatedly(shared: &Shared, mut command: Command, kind: Kind, bytes: u64) -> Result<()> {
    while !shared.stop.load(Ordering::SeqCst) {
        let mut child = command.spawn().context(kind.name())?;
        let errors = child.stderr.take().context("stderr is piped")?;
        let pid = Pid::from_child(&child);
        *shared.child.lock() = Some(child);
        if shared.stop.load(Ordering::SeqCst) {
            let _ = kill_process(pid, Signal::INT);
        }
        let said = match kind {
            Kind::Dd => watch_count(shared, errors),
            _ => watch_progress(shared, errors),
        };
        let child = shared.child.lock().take();
        let status = child.context("put there above")?.wait()?;
        if status.success() {
            shared.finished.fetch_add(bytes, Ordering::SeqCst);
            shared.current.store(0, Ordering::SeqCst);
        } else if !shared.stop.load(Ordering::SeqCst) {
            bail!("{} ended with {status}: {said}", kind.name());
        }
    }
    Ok(())
}

/// Follows the progress lines; returns the last other line.
fn watch_progress(shared: &Shared, errors: impl Read) -> String {
    let mut said = String::new();
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        match serde_json::from_str::<ProgressLine>(&line) {
            Ok(progress) if progress.phase == "write" => {
                shared.current.store(progress.done_bytes, Ordering::SeqCst);
            }
            Ok(_) => {}
            Err(_) => said = line,
        }
    }
    said
}

/// Parses the final output of dd, also if interrupted: its count of bytes.
fn watch_count(shared: &Shared, mut errors: impl Read) -> String {
    let mut said = String::new();
    let _ = errors.read_to_string(&mut said);
    let bytes = copied_bytes(&said).unwrap_or_default();
    shared.current.store(bytes, Ordering::SeqCst);
    said
}

/// The number in `N bytes (...) copied`.
fn copied_bytes(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    let (bytes, _) = lines.find_map(|line| line.split_once(" bytes "))?;
    bytes.parse().ok()
}

/// The rate of `--background` with the disk to itself, and its command. For some seconds
/// only: on a disk that others use it would take its time.
pub(super) fn alone(context: &Context, bytes: u64) -> Result<(f64, String)> {
    context.step("extant create --background, idle disk");
    let company = BackgroundLoad::start(context, Kind::Background, bytes)?;
    thread::sleep(Duration::from_secs(context.options.pick(10, 3)));
    company.stop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_lines_count_and_other_lines_are_kept() {
        let shared = Shared::default();
        let lines = "{\"event\":\"progress\",\"phase\":\"write\",\"done_bytes\":7,\"total_bytes\":9}\n\
            {\"event\":\"progress\",\"phase\":\"sync\",\"done_bytes\":9,\"total_bytes\":9}\nno space\n";
        assert_eq!(watch_progress(&shared, lines.as_bytes()), "no space");
        assert_eq!(shared.current.load(Ordering::SeqCst), 7);
    }

    #[test]
    fn count_of_dd_is_read() {
        let said = "3+0 records in\n3+0 records out\n6291456 bytes (6.3 MB, 6.0 MiB) copied, 1 s, 6 MB/s\n";
        assert_eq!(copied_bytes(said), Some(6 << 20));
        assert_eq!(copied_bytes("dd: no space\n"), None);
    }
}
