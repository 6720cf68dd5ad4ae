//! A container: a process in its own cgroup, bound to a processor, that runs fallocate2.
//!
//! The cgroups are in the unified hierarchy (version 2), below one of this run, and have no limits.
//! Without a writable hierarchy a worker is a process of its own all the same.
//!
//! The worker prints a line when it is ready, and reads the two moments of the monotonic clock
//! between which it counts. It counts whole rounds, over the time that these took.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stdin};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use extant_sys::cpus::{allowed, stay_on};
use extant_sys::mounts::Mount;
use rustix::time::{ClockId, clock_gettime};

use crate::benches::ext4::fallocate2::repeat;

/// The worker's word on the command line.
pub(crate) const WORD: &str = "__fallocate2";

/// Cgroups of the workers, removed when dropped.
pub(super) struct Cgroups(Vec<PathBuf>);

/// A started worker, killed when dropped.
struct Worker(Child);

impl Cgroups {
    /// One for each worker; none without a writable hierarchy.
    pub(super) fn new(workers: usize) -> Option<Self> {
        let mut mounts = Mount::all().ok()?.into_iter();
        let hierarchy = mounts.find(|mount| mount.fs_type == "cgroup2")?;
        let top = hierarchy
            .point
            .join(format!("extant-bench-{}", std::process::id()));
        let mut groups = Self(Vec::new());
        for group in
            std::iter::once(top.clone()).chain((0..workers).map(|n| top.join(n.to_string())))
        {
            fs::create_dir(&group).ok()?;
            groups.0.push(group);
        }
        Some(groups)
    }

    fn enter(&self, worker: usize, process: u32) -> Result<()> {
        let file = self.0[worker + 1].join("cgroup.procs");
        fs::write(&file, process.to_string()).with_context(|| file.display().to_string())
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for group in self.0.iter().rev() {
            if let Err(error) = fs::remove_dir(group) {
                eprintln!("{}: {error}", group.display());
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Operations a second of each of `workers` workers on files in `directory`.
pub(super) fn run(
    directory: &Path,
    workers: usize,
    window: Duration,
    cgroups: Option<&Cgroups>,
) -> Result<Vec<f64>> {
    let mut started = Vec::new();
    for number in 0..workers {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg(WORD)
            .arg(directory.join(format!("worker{number}")));
        command.arg(number.to_string());
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        if let Some(cgroups) = cgroups {
            cgroups.enter(number, child.id())?;
        }
        started.push(Worker(child));
    }
    let mut outputs = Vec::new();
    for Worker(child) in &mut started {
        let mut output = BufReader::new(child.stdout.take().context("piped")?);
        ensure!(output.read_line(&mut String::new())? > 0, "a worker ended");
        outputs.push(output);
    }
    let from = now() + window / 10;
    for Worker(child) in &mut started {
        let input = child.stdin.as_mut().context("piped")?;
        writeln!(input, "{} {}", from.as_nanos(), (from + window).as_nanos())?;
    }
    let mut rates = Vec::new();
    for (worker, output) in started.iter_mut().zip(&mut outputs) {
        let mut rate = String::new();
        output.read_line(&mut rate)?;
        let status = worker.0.wait()?;
        ensure!(status.success(), "a worker ended with {status}");
        rates.push(rate.trim().parse().context("a worker's rate")?);
    }
    Ok(rates)
}

/// The worker, on the `number`-th of the processors that it may use, modulo their number.
pub(crate) fn serve(path: &Path, number: usize) -> Result<()> {
    let cpus = allowed()?;
    stay_on(cpus[number % cpus.len()])?;
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)?;
    println!("ready");
    let mut line = String::new();
    stdin().lock().read_line(&mut line)?;
    let (from, until) = line.trim().split_once(' ').context("two moments")?;
    let (from, until) = (from.parse::<u64>()?, until.parse::<u64>()?);
    let (from, until) = (Duration::from_nanos(from), Duration::from_nanos(until));
    let mut first = None;
    let mut rate = 0.0;
    repeat(&file, |done| {
        let now = now();
        if now < from {
            return ControlFlow::Continue(());
        }
        let &mut (before, start) = first.get_or_insert((done, now));
        rate = (done - before) as f64 / (now - start).as_secs_f64();
        if now < until || done == before {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    println!("{rate}");
    Ok(())
}

fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
