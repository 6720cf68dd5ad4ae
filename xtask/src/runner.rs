//! The runner of test programs: a time limit, and no process that outlives its test.
//!
//! Cargo starts each test program through `xtask run-test` (its `runner` setting). A program that
//! exceeds the limit is reported with its threads and killed, so that a hang fails CI with a name
//! instead of using up CI's time. Processes that a program leaves behind are reported and killed:
//! they would take the processor from the programs after it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{self as unix, Pid, Signal, WaitOptions, WaitStatus};

/// Seconds that replace [`LIMIT`], for test programs that are asked to do more than in CI.
const LIMIT_VARIABLE: &str = "EXTANT_TEST_LIMIT";
/// Longer than any test program takes in CI, short enough to leave time for the programs after it.
const LIMIT: Duration = Duration::from_secs(15 * 60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long processes may take to end, by themselves or killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const FUSE_CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Runs a test program with the limit and returns its exit code.
pub fn run(program: &Path, args: &[String]) -> Result<ExitCode> {
    let limit = match std::env::var(LIMIT_VARIABLE) {
        Ok(seconds) => Duration::from_secs(seconds.parse().context(LIMIT_VARIABLE)?),
        Err(_) => LIMIT,
    };
    supervise(Command::new(program).args(args), limit)
}

fn supervise(command: &mut Command, limit: Duration) -> Result<ExitCode> {
    // Children whose parent ends become ours, so that none is lost from sight.
    unix::set_child_subreaper(Some(unix::getpid())).context("child subreaper")?;
    let connections = fuse_connections();
    let child = command
        .spawn()
        .with_context(|| format!("{command:?} does not start"))?;
    let child = Pid::from_child(&child);

    let start = Instant::now();
    let ended = wait_until(start + limit, || reap(child));
    match ended {
        Some(status) => {
            if wait_until(Instant::now() + END_TIMEOUT, no_descendants).is_none() {
                report("test processes outlive their program and are killed");
                kill_descendants(&connections);
            }
            Ok(exit_code(status))
        }
        None => {
            report(&format!(
                "the test program exceeds its limit of {} s and is killed",
                limit.as_secs()
            ));
            kill_descendants(&connections);
            Ok(ExitCode::FAILURE)
        }
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
        std::thread::sleep(POLL_INTERVAL);
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

fn exit_code(status: WaitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    let status = ExitStatus::from_raw(status.as_raw());
    if let Some(signal) = status.signal() {
        eprintln!("xtask: the test program was ended by signal {signal}");
    }
    match status.code().and_then(|code| u8::try_from(code).ok()) {
        Some(code) => ExitCode::from(code),
        None => ExitCode::FAILURE,
    }
}

/// Writes the processes below this one and where in the kernel their threads wait.
fn report(problem: &str) {
    eprintln!("\nxtask: {problem}:");
    for pid in descendants() {
        let folder = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
        let line = fs::read(folder.join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        eprintln!("  process {}: {}", pid.as_raw_nonzero(), line.trim_end());
        let tasks = fs::read_dir(folder.join("task"))
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
            // It may have ended in between.
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
            // It may be gone by now.
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
