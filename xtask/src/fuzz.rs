//! `cargo xtask fuzz`: the targets of extant-fuzz under libFuzzer.
//!
//! The crate is built with the coverage instrumentation of LLVM's sancov pass, which the stable
//! compiler has too, and with the libFuzzer of the crate libfuzzer-sys, for which a C++ compiler is
//! needed. Targets share the time; as many run at a time as there are processors. A target begins
//! with its kept inputs and those that earlier runs found (`target/fuzz/corpus`). An input that
//! fails is left in `target/fuzz/crashes`, and the target continues without it. The table of
//! results is printed, and written to `target/fuzz/report.json`.

mod output;

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::json;

use crate::provenance;
use crate::step;
use crate::workspace::Workspace;
use output::{Counts, final_counts, table};

/// The longest input, which structured ones seldom reach.
const INPUT_BYTES_MAX: u32 = 4096;
/// The largest input that is kept with the sources.
const KEPT_BYTES_MAX: u32 = 2048;
const INPUT_SECONDS_MAX: u32 = 5;
/// Of the whole process, which the base images and the corpus in memory are parts of.
const MEMORY_MIB_MAX: u32 = 1024;
/// A target that fails more often in one run is left alone.
const CRASHES_MAX: usize = 5;

/// The instrumentation of cargo-fuzz, without a sanitizer: unsafe code is in few files, which
/// other tests cover.
const RUSTFLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Time and targets of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Time for all targets together.
    pub time: Duration,
    /// Empty for all.
    pub targets: Vec<String>,
    /// Afterwards the inputs that are needed for the coverage replace the kept ones.
    pub minimise: bool,
}

/// The built program, and its directories.
struct Fuzzer {
    program: PathBuf,
    /// Inputs in the sources.
    kept: PathBuf,
    /// Of all runs.
    found: PathBuf,
    crashes: PathBuf,
}

/// Builds the targets, runs them and reports.
pub fn run(workspace: &Workspace, plan: &Plan) -> Result<()> {
    let commit = provenance::commit(workspace)?;
    step::heading("fuzz: build");
    let directory = workspace.target_dir()?.join("fuzz");
    let fuzzer = Fuzzer {
        program: build(workspace, &directory)?,
        kept: workspace.root().join("crates/fuzz/corpus"),
        found: directory.join("corpus"),
        crashes: directory.join("crashes"),
    };
    let targets = targets(workspace, &plan.targets)?;
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let workers = workers.min(targets.len());
    let each = plan.time * workers as u32 / targets.len() as u32;
    step::heading(&format!("fuzz: {} s for each target", each.as_secs()));
    let mut results = run_all(&fuzzer, &targets, workers, each)?;
    if plan.minimise {
        step::heading("fuzz: minimise");
        for (target, counts) in &mut results {
            counts.kept = fuzzer.minimise(target)?;
        }
    }
    print!("{}", table(&results));
    let rows: Vec<_> = results
        .iter()
        .map(|(name, counts)| counts.json(name))
        .collect();
    let report = json!({
        "commit": commit,
        "date": provenance::today(),
        "seconds_each": each.as_secs(),
        "targets": rows,
    });
    let path = directory.join("report.json");
    fs::write(&path, format!("{report:#}\n")).with_context(|| format!("{}", path.display()))?;
    let crashes: u64 = results.iter().map(|(_, counts)| counts.crashes).sum();
    if crashes > 0 {
        bail!(
            "{crashes} inputs failed; they are in {}",
            fuzzer.crashes.display()
        );
    }
    Ok(())
}

/// Builds the program with instrumentation; returns its path.
fn build(workspace: &Workspace, directory: &Path) -> Result<PathBuf> {
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut version = Command::new(&compiler);
    version.arg("--version").stdout(Stdio::null());
    if !version.status().is_ok_and(|status| status.success()) {
        bail!("libFuzzer needs a C++ compiler, and `{compiler}` is none: cargo xtask setup");
    }
    let host = step::output(Command::new("rustc").arg("-vV"))?;
    let host = host.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.context("rustc -vV names no host")?;
    // With a target, the flags are not for build scripts and procedural macros.
    let mut cargo = workspace.cargo(&["build", "--locked", "-p", "extant-fuzz"]);
    cargo.args([
        "--features",
        "libfuzzer",
        "--profile",
        "fuzz",
        "--target",
        host,
    ]);
    cargo.arg("--target-dir").arg(directory);
    cargo.env("RUSTFLAGS", RUSTFLAGS.join(" "));
    step::run(&mut cargo)?;
    Ok(directory.join(host).join("fuzz/extant-fuzz"))
}

/// The wanted targets, or all: each has a corpus.
fn targets(workspace: &Workspace, wanted: &[String]) -> Result<Vec<String>> {
    let corpora = workspace.root().join("crates/fuzz/src/targets");
    let mut all = Vec::new();
    for entry in fs::read_dir(&corpora).with_context(|| format!("{}", corpora.display()))? {
        let path = entry?.path();
        all.extend(
            path.file_stem()
                .map(|name| name.to_string_lossy().into_owned()),
        );
    }
    all.sort();
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("no target {unknown}; there are: {}", all.join(", "));
    }
    all.retain(|name| wanted.is_empty() || wanted.contains(name));
    Ok(all)
}

fn run_all(
    fuzzer: &Fuzzer,
    targets: &[String],
    workers: usize,
    each: Duration,
) -> Result<Vec<(String, Counts)>> {
    let queue = Mutex::new(VecDeque::from_iter(targets));
    let results = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        loop {
            let next = queue.lock().expect("no panic holds it").pop_front();
            let Some(target) = next else {
                return Ok(());
            };
            let counts = fuzzer.fuzz(target, each).with_context(|| target.clone())?;
            let mut results = results.lock().expect("no panic holds it");
            results.push((target.clone(), counts));
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        let mut joined = workers.into_iter().map(|worker| worker.join());
        joined.try_for_each(|ended| ended.expect("a worker does not panic"))
    })?;
    let mut results = results.into_inner().expect("no panic held it");
    results.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(results)
}

impl Fuzzer {
    fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env("EXTANT_FUZZ_TARGET", target);
        command.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        command
    }

    /// Runs a target for that long, again after each input that failed.
    fn fuzz(&self, target: &str, time: Duration) -> Result<Counts> {
        let (kept, found) = (self.kept.join(target), self.found.join(target));
        let crashes = self.crashes.join(target);
        for directory in [&kept, &found, &crashes] {
            fs::create_dir_all(directory)?;
        }
        let start = Instant::now();
        let mut total = Counts::default();
        while let Some(rest) = time.checked_sub(start.elapsed())
            && rest.as_secs() > 0
        {
            let mut command = self.command(target);
            command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
            command.arg(format!("-max_total_time={}", rest.as_secs()));
            command.arg(format!("-artifact_prefix={}/", crashes.display()));
            command.args(["-print_final_stats=1", "-reload=0", "-verbosity=1"]);
            command.arg(&found).arg(&kept);
            let output = command.output().context("the fuzzer does not start")?;
            let text = String::from_utf8_lossy(&output.stderr);
            total.add(final_counts(&text));
            if output.status.success() {
                break;
            }
            let log = crashes.join(format!("log-{}", total.crashes));
            fs::write(&log, text.as_bytes())?;
            total.crashes += 1;
            let path = log.display();
            eprintln!("{target}: an input failed, see {path}");
            if total.crashes as usize >= CRASHES_MAX {
                break;
            }
        }
        total.took = start.elapsed();
        total.kept = fs::read_dir(&kept)?.count();
        Ok(total)
    }

    /// Replaces the kept inputs by those that the coverage of kept and found ones needs; returns
    /// their number.
    fn minimise(&self, target: &str) -> Result<usize> {
        let kept = self.kept.join(target);
        let fresh = self.found.with_file_name("minimised").join(target);
        if fresh.exists() {
            fs::remove_dir_all(&fresh)?;
        }
        fs::create_dir_all(&fresh)?;
        let mut command = self.command(target);
        // Without counters, so that an input that repeats something is not kept for that.
        command.args(["-set_cover_merge=1", "-use_counters=0"]);
        command.arg(format!("-max_len={KEPT_BYTES_MAX}"));
        command.arg(&fresh).arg(&kept).arg(self.found.join(target));
        command.stderr(Stdio::null()).stdout(Stdio::null());
        step::run(&mut command)?;
        for entry in fs::read_dir(&kept)? {
            let path = entry?.path();
            // Regressions have names of their own, and stay.
            let is_regression = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("regression-"));
            if !is_regression {
                fs::remove_file(path)?;
            }
        }
        for entry in fs::read_dir(&fresh)? {
            let entry = entry?;
            fs::copy(entry.path(), kept.join(entry.file_name()))?;
        }
        Ok(fs::read_dir(&kept)?.count())
    }
}
