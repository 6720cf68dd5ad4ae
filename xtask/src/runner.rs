//! The runner of test programs: a time limit, and no process that outlives its test.
//!
//! Cargo starts each test program through `xtask run-test` (its `runner` setting). A program that
//! exceeds the limit is reported with its threads and killed, so that a hang fails CI with a name
//! instead of using up CI's time. Processes that a program leaves behind are reported and killed:
//! they would take the processor from the programs after it. Tests that fail are run once more, one
//! at a time: a test that passes then depends on the load of the machine and is reported as such.

use std::collections::HashMap;
use std::fs;
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

use crate::claims;

/// Seconds that replace [`LIMIT`], for test programs that run longer than in CI.
const LIMIT_VARIABLE: &str = "EXTANT_TEST_LIMIT";
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
    failed_tests: Vec<String>,
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
    let (Some(code), false) = (first.code, first.failed_tests.is_empty()) else {
        return Ok(first.code.map_or(ExitCode::FAILURE, ExitCode::from));
    };
    eprintln!(
        "\nxtask: {} failed and run again, one at a time",
        first.failed_tests.join(", ")
    );
    let mut again = Command::new(program);
    again
        .args(["--exact", "--test-threads=1"])
        .args(&first.failed_tests);
    if supervise(&mut again, limit)?.code == Some(0) {
        eprintln!("xtask: they pass now: they depend on the load of the machine");
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(code))
}

fn supervise(command: &mut Command, limit: Duration) -> Result<Outcome> {
    // Children whose parent ends become ours, so that none is lost from sight.
    unix::set_child_subreaper(Some(unix::getpid())).context("child subreaper")?;
    let connections = fuse_connections();
    // A test that uses this runner claims nothing.
    command.env_remove(claims::VARIABLE);
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("{command:?} does not start"))?;
    let output = child
        .stdout
        .take()
        .context("standard output of the test program")?;
    let failed = Arc::new(Mutex::new(Vec::new()));
    let copy = thread::spawn({
        let failed = Arc::clone(&failed);
        move || copy_output(output, &failed)
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
    let failed_tests = std::mem::take(&mut *failed.lock().expect("the copier does not panic"));
    Ok(Outcome {
        code: ended.map(exit_code),
        failed_tests,
    })
}

/// Processor time of the processes that have ended, in seconds.
fn processor_seconds() -> f64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("the caller is known");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    micros as f64 / 1e6
}

/// Copies the output of a test program to ours and collects the names of failed tests.
fn copy_output(output: ChildStdout, failed: &Mutex<Vec<String>>) {
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
        if let Some(name) = failed_test(&String::from_utf8_lossy(&line)) {
            failed
                .lock()
                .expect("the caller does not panic")
                .push(name.to_owned());
        }
        line.clear();
    }
}

/// The name in libtest's line of a failed test.
fn failed_test(line: &str) -> Option<&str> {
    line.trim_end()
        .strip_prefix("test ")?
        .strip_suffix(" ... FAILED")
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
    use super::{failed_test, parent_of_living};

    #[test]
    fn failed_tests_are_found_by_libtests_lines() {
        assert_eq!(failed_test("test a::b_c ... FAILED\n"), Some("a::b_c"));
        assert_eq!(failed_test("test a::b_c ... ok\n"), None);
        assert_eq!(failed_test("thread 'a' panicked"), None);
    }

    #[test]
    fn parent_is_found_behind_any_name_and_zombies_have_none() {
        assert_eq!(parent_of_living("7 (a) S 1) (b) S 42 7 7"), Some(42));
        assert_eq!(parent_of_living("7 (a) Z 42 7 7"), None);
        assert_eq!(parent_of_living(""), None);
    }
}
