//! A job of a volume: here, with a bar, or in a separate process.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use extant_hostfs::{Plan, Verified};
use extant_pool::{
    Done, Format, Job, JobId, JobOptions, OnStop, Operation, Pool, Priority, VolumeName,
};
use extant_space::{BackgroundShare, ByteSize, CancelToken, Control, Error, ErrorKind, Result};
use serde::Serialize;

use crate::arguments::{OutputArgs, parse_rate, parse_share};
use crate::complete;
use crate::create::describe_plan;
use crate::pool::PoolArgs;
use crate::pool::json::VolumeJson;
use crate::print;
use crate::progress::Display;
use crate::trace;

use super::info::describe;

/// How a job runs.
#[derive(Args, Clone, Debug)]
pub struct WorkArgs {
    /// Return at once with the number of the job, which continues in a separate process
    #[arg(long, conflicts_with_all = ["progress_fd", "progress_socket"])]
    pub detach: bool,

    #[command(flatten)]
    pub run: RunArgs,
}

/// How a job of this process runs.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// Priority among waiting jobs
    #[arg(long, value_name = "WHICH", default_value = "normal")]
    pub priority: PriorityArg,

    /// Yield to all other users of the disk, within the pool's rate; with PERCENT, use about that
    /// share of the disk beside them (0.1% to 100%)
    #[arg(long, value_name = "PERCENT%", require_equals = true, value_parser = parse_share)]
    pub background: Option<Option<BackgroundShare>>,

    /// Write at most this much a second, such as 100M or 1GB/s
    #[arg(long, value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Priorities, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PriorityArg {
    /// Behind the others
    Low,
    /// As most
    Normal,
    /// Before the others
    High,
}

impl From<PriorityArg> for Priority {
    fn from(priority: PriorityArg) -> Self {
        match priority {
            PriorityArg::Low => Self::Low,
            PriorityArg::Normal => Self::Normal,
            PriorityArg::High => Self::High,
        }
    }
}

impl RunArgs {
    pub(super) fn options(&self) -> JobOptions {
        JobOptions {
            priority: self.priority.into(),
            background: self.background.is_some(),
            background_share: self.background.flatten(),
            rate: self.rate,
        }
    }
}

/// Result of a job.
#[derive(Serialize)]
struct JobOutcome<'a> {
    job: JobId,
    operation: &'static str,
    #[serde(flatten)]
    made: Made<'a>,
    zeroed_bytes: Option<u64>,
    plan: &'a Option<Plan>,
    verified: Option<Verified>,
    notes: &'a [String],
    elapsed_seconds: f64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Made<'a> {
    Volume(VolumeJson<'a>),
    /// By a download.
    File {
        pool: String,
        name: &'a VolumeName,
        path: String,
        format: Option<Format>,
        capacity_bytes: u64,
    },
}

/// Makes a job of `operation`, and runs it or leaves it to another process.
pub(super) fn work(
    place: &PoolArgs,
    args: &WorkArgs,
    operation: Operation,
    display: &Display,
    cancel: &CancelToken,
) -> Result<String> {
    let pool = place.open()?;
    let job = pool.submit(operation, args.run.options())?;
    if args.detach {
        detach(place, job, &args.run.output)
    } else {
        finish(&pool, job, &args.run.output, display, cancel)
    }
}

/// Runs a job to its end; the outcome, as text or JSON.
pub fn finish(
    pool: &Pool,
    job: Job<'_>,
    output: &OutputArgs,
    display: &Display,
    cancel: &CancelToken,
) -> Result<String> {
    let started = Instant::now();
    let (id, operation) = (job.id(), job.operation().clone());
    let done = job.run_reporting(OnStop::Cancel, Control::new(cancel, display))?;
    let elapsed_seconds = started.elapsed().as_secs_f64();
    let volume = pool.volume(operation.volume())?;
    if output.json {
        return Ok(display.json_text(&JobOutcome {
            job: id,
            operation: operation.name(),
            made: match &operation {
                Operation::Download(download) => Made::File {
                    pool: pool.to_string(),
                    name: &volume.name,
                    path: download.target.display().to_string(),
                    format: volume.format,
                    capacity_bytes: volume.capacity_bytes,
                },
                _ => Made::Volume(VolumeJson::new(pool, &volume)),
            },
            zeroed_bytes: done.zeroed_bytes,
            plan: &done.plan,
            verified: done.verified,
            notes: &done.notes,
            elapsed_seconds,
        }));
    }
    let mut out = describe(&volume, output.verbose);
    describe_done(&mut out, &done, elapsed_seconds, display, output.verbose);
    Ok(out)
}

/// The messages of `extant create`.
fn describe_done(
    out: &mut String,
    done: &Done,
    elapsed_seconds: f64,
    display: &Display,
    verbose: bool,
) {
    let rate = done.zeroed_bytes.unwrap_or(0) as f64 / elapsed_seconds.max(1e-9);
    let rate = match rate as u64 {
        0 => String::new(),
        rate => format!(", {}/s", ByteSize(rate)),
    };
    let pauses = display.pauses();
    print::row(out, "time", format!("{elapsed_seconds:.2} s{rate}{pauses}"));
    if verbose {
        display.describe_disk(out);
    }
    if let Some(plan) = &done.plan {
        print::row(out, "how", &plan.reason);
        if verbose {
            describe_plan(out, plan);
        }
    }
    match done.verified {
        Some(Verified::ExtentMap) => print::row(out, "checked", "the extent map shows it"),
        Some(Verified::AllocatedSize) => {
            print::row(out, "checked", "the blocks counted by the file system");
        }
        None => {}
    }
    for note in &done.notes {
        print::row(out, "note", note);
    }
}

/// Hands the job to a separate process, which receives its lock as standard input; prints its
/// number as text or JSON.
pub fn detach(place: &PoolArgs, job: Job<'_>, output: &OutputArgs) -> Result<String> {
    let id = job.id();
    let fail = |source| Error::from(source).during("start the job's process");
    let program = std::env::current_exe().map_err(fail)?;
    Command::new(program)
        .args(["job", "work", "--id"])
        .arg(id.to_string())
        .args(place.absolute()?)
        .current_dir("/")
        .envs(trace::environment())
        .stdin(Stdio::from(job.hand_over()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(fail)?;
    Ok(if output.json {
        print::json_text(&serde_json::json!({ "job": id }))
    } else {
        id.to_string()
    })
}

/// A path that means the same to a process elsewhere.
pub(super) fn absolute(path: &std::path::Path) -> Result<PathBuf> {
    if path == std::path::Path::new("-") {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("a job resumes, and so needs a file: no standard input or output")
            .advice("./- is the file of that name"));
    }
    std::path::absolute(path).map_err(|source| Error::from(source).at(path))
}

/// A volume of a pool.
#[derive(Args, Clone, Debug)]
pub struct VolumeArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Name of the volume
    #[arg(add = ArgValueCompleter::new(complete::volumes))]
    pub volume: VolumeName,
}
