//! The runner of test programs: a time limit, and no process that outlives its test.
//!
//! Cargo starts each test program through `xtask run-test` (its `runner` setting). A program that
//! exceeds the limit is reported with its threads and killed, so that a hang fails CI with a name
//! instead of using up CI's time. Processes that a program leaves behind are reported and killed:
//! they would take the processor from the programs after it. Tests that fail are run once more, one
//! at a time: a test that passes then depends on the load of the machine and is reported as such.
//! A program that crashed is not run again, as it left out the tests after the crash.

use std::collections::HashMap;
use std::fs;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::process::{self as unix, Pid, Signal, WaitOptions, WaitStatus};

use crate::{claims, libtest};

/// Seconds that replace [`LIMIT`], for test programs that run longer than in CI.
const LIMIT_VARIABLE: &str = "EXTANT_TEST_LIMIT";
/// A file to which the names of tests are added that passed only when they were run again.
const RETRIED_VARIABLE: &str = "EXTANT_TEST_RETRIED";
/// The exit code of libtest after failed tests.
const TESTS_FAILED: u8 = 101;
/// Longer than any test program takes in CI, short enough to leave time for the programs after it.
const LIMIT: Duration = Duration::from_secs(15 * 60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long processes may take to end, by themselves or killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const FUSE_CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The result of a test program.
struct Outcome {
    /// `None` where the program was killed.
    code: Option<u8>,
    said: Said,
}

/// The tests of a program, by its output.
#[derive(Default)]
struct Said {
    running: Option<usize>,
    failed_tests: Vec<String>,
    failures: Option<usize>,
}

impl Outcome {
    /// The tests that failed, where all that is wrong is that they failed.
    fn failed_tests(&self) -> Option<&[String]> {
        let failed = self.said.failed_tests.as_slice();
        // With `--nocapture`, output may stand between the name of a test and its result.
        let is_complete = self.said.failures == Some(failed.len());
        (self.code == Some(TESTS_FAILED) && is_complete && !failed.is_empty()).then_some(failed)
    }
}

/// Makes the runner of `cargo`'s programs add to `file` what passed only when it was run again.
pub fn note_retried(cargo: &mut Command, file: &Path) {
    cargo.env(RETRIED_VARIABLE, file);
}

/// Runs a test program with the limit, unless another runner has it; its exit code.
pub fn run(program: &Path, args: &[String]) -> Result<ExitCode> {
    if !claims::claim(program)? {
        return Ok(ExitCode::SUCCESS);
    }
    let limit = match std::env::var(LIMIT_VARIABLE) {
        Ok(seconds) => Duration::from_secs(seconds.parse().context(LIMIT_VARIABLE)?),
        Err(_) => LIMIT,
    };
    let start = Instant::now();
    let first = supervise(Command::new(program).args(args), limit)?;
    eprintln!(
        "xtask: {} of {} took {:.1} s, {:.1} s of processors",
        program.file_stem().unwrap_or_default().display(),
        std::env::var("CARGO_PKG_NAME").unwrap_or_default(),
        start.elapsed().as_secs_f64(),
        processor_seconds()
    );
    let code = first.code.map_or(ExitCode::FAILURE, ExitCode::from);
    let Some(failed_tests) = first.failed_tests() else {
        return Ok(code);
    };
    eprintln!(
        "\nxtask: {} failed and run again, one at a time",
        failed_tests.join(", ")
    );
    let mut again = Command::new(program);
    again
        .args(["--exact", "--test-threads=1", "--include-ignored"])
        .args(failed_tests);
    let second = supervise(&mut again, limit)?;
    if second.code == Some(0) && second.said.running == Some(failed_tests.len()) {
        eprintln!("xtask: they pass now: they depend on the load of the machine");
        note(program, failed_tests)?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(code)
}

/// Adds tests to the list of those that passed only when they were run again, if there is one.
fn note(program: &Path, tests: &[String]) -> Result<()> {
    let Some(list) = std::env::var_os(RETRIED_VARIABLE) else {
        return Ok(());
    };
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo puts a hash after the name.
    let name = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let lines: String = tests
        .iter()
        .map(|test| format!("{test} of {name} of {package}\n"))
        .collect();
    // Several runners may add to it; a line is short enough to be written whole.
    let file = OpenOptions::new().append(true).open(&list);
    let written = file.and_then(|mut file| file.write_all(lines.as_bytes()));
    written.with_context(|| PathBuf::from(list).display().to_string())
}

fn supervise(command: &mut Command, limit: Duration) -> Result<Outcome> {
    // Children whose parent ends become ours, so that none is lost from sight.
    unix::set_child_subreaper(Some(unix::getpid())).context("child subreaper")?;
    let connections = fuse_connections();
    // A test that uses this runner claims and notes nothing.
    command.env_remove(claims::VARIABLE);
    command.env_remove(RETRIED_VARIABLE);
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("{command:?} does not start"))?;
    let output = child
        .stdout
        .take()
        .context("standard output of the test program")?;
    let said = Arc::new(Mutex::new(Said::default()));
    let copy = thread::spawn({
        let said = Arc::clone(&said);
        move || copy_output(output, &said)
    });
    let child = Pid::from_child(&child);

    let start = Instant::now();
    let ended = wait_until(start + limit, || reap(child));
    if ended.is_none() {
        report(&format!(
            "the test program exceeds its limit of {} s and is killed",
            limit.as_secs()
        ));
        kill_descendants(&connections);
    } else if wait_until(Instant::now() + END_TIMEOUT, no_descendants).is_none() {
        report("test processes outlive their program and are killed");
        kill_descendants(&connections);
    }
    // A process that could not be killed may keep the pipe open.
    wait_until(Instant::now() + END_TIMEOUT, || {
        copy.is_finished().then_some(())
    });
    let said = std::mem::take(&mut *said.lock().expect("the copier does not panic"));
    Ok(Outcome {
        code: ended.map(exit_code),
        said,
    })
}

/// Processor time of the processes that have ended, in seconds.
fn processor_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the caller is known");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    micros as f64 / 1e6
}

/// Copies the output of a test program to ours and keeps what it says of the tests.
fn copy_output(output: ChildStdout, said: &Mutex<Said>) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    // A test may print anything, also bytes that are not UTF-8.
    while output
        .read_until(b'\n', &mut line)
        .is_ok_and(|length| length > 0)
    {
        let mut stdout = std::io::stdout().lock();
        // Our output may have no reader; the exit code still counts.
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
        said.lock()
            .expect("the caller does not panic")
            .add(&String::from_utf8_lossy(&line));
        line.clear();
    }
}

impl Said {
    fn add(&mut self, line: &str) {
        if let Some(name) = libtest::failed_test(line) {
            self.failed_tests.push(name.to_owned());
        }
        self.running = libtest::running(line).or(self.running);
        self.failures = libtest::failures(line).or(self.failures);
    }
}

/// Polls until there is a value or the deadline has passed.
fn wait_until<T>(deadline: Instant, mut poll: impl FnMut() -> Option<T>) -> Option<T> {
    loop {
        if let Some(value) = poll() {
            return Some(value);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Collects ended children; the status of `child` once it is among them.
fn reap(child: Pid) -> Option<WaitStatus> {
    while let Ok(Some((pid, status))) = unix::wait(WaitOptions::NOHANG) {
        if pid == child {
            return Some(status);
        }
    }
    None
}

fn no_descendants() -> Option<()> {
    while let Ok(Some(_)) = unix::wait(WaitOptions::NOHANG) {}
    descendants().is_empty().then_some(())
}

fn exit_code(status: WaitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let status = ExitStatus::from_raw(status.as_raw());
    if let Some(signal) = status.signal() {
        eprintln!("xtask: the test program was ended by signal {signal}");
    }
    status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(1)
}

/// Writes the processes below this one and where in the kernel their threads wait.
fn report(problem: &str) {
    eprintln!("\nxtask: {problem}:");
    for pid in descendants() {
        let directory = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let line = fs::read(directory.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        eprintln!("  process {}: {}", pid.as_raw_nonzero(), line.trim_end());
        let tasks = fs::read_dir(directory.join("task"))
            .into_iter()
            .flatten()
            .flatten();
        for task in tasks.map(|task| task.path()) {
            let text = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
            // libtest names a thread after its test.
            eprintln!(
                "    thread {:<16} {}",
                text("comm").trim(),
                text("wchan").trim()
            );
        }
    }
}

/// Kills every process below this one. A process that a request to a FUSE server holds in the
/// kernel does not end by a signal: the connections made since `before` are aborted for it.
fn kill_descendants(before: &[PathBuf]) {
    let kill = || {
        for pid in descendants() {
            // It may have ended since it was listed.
            let _ = unix::kill_process(pid, Signal::KILL);
        }
        no_descendants()
    };
    if wait_until(Instant::now() + END_TIMEOUT, kill).is_some() {
        return;
    }
    for connection in fuse_connections() {
        if !before.contains(&connection) {
            eprintln!("xtask: {} is aborted", connection.display());
            // It may have ended by now.
            let _ = fs::write(connection.join("abort"), "1");
        }
    }
    if wait_until(Instant::now() + END_TIMEOUT, kill).is_none() {
        report("these processes cannot be killed");
    }
}

fn fuse_connections() -> Vec<PathBuf> {
    let entries = fs::read_dir(FUSE_CONNECTIONS).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// The processes below this one, parents first; none that has ended.
fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        if let Some(parent) = parent_of_living(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut parents = vec![unix::getpid().as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        for pid in children.remove(&parent).unwrap_or_default() {
            found.extend(Pid::from_raw(pid));
            parents.push(pid);
        }
    }
    found
}

/// The parent in a line of `/proc/PID/stat`, unless the process is a zombie.
fn parent_of_living(stat: &str) -> Option<i32> {
    // The name is in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.next()?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::parent_of_living;

    #[test]
    fn parent_is_found_behind_any_name_and_zombies_have_none() {
        assert_eq!(parent_of_living("7 (a) S 1) (b) S 42 7 7"), Some(42));
        assert_eq!(parent_of_living("7 (a) Z 42 7 7"), None);
        assert_eq!(parent_of_living(""), None);
    }
}
