//! `extant job cancel` and `extant job resume`.

use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use extant_pool::{JobId, JobState, Pool};
use extant_space::{CancelToken, Result};
use serde::Serialize;
use serde_json::Value;

use super::OneJobArgs;
use super::show::describe;
use crate::arguments::OutputArgs;
use crate::pool::PoolArgs;
use crate::pool::json::JobJson;
use crate::{complete, exit, print, vol};

/// Cancel a job: the pool is as before it.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job cancel vms 12

Exit status: see extant --help.")]
pub struct CancelArgs {
    #[command(flatten)]
    pub job: OneJobArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Continue an interrupted job, or all of a pool.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job resume vms 12 --detach
  extant job resume vms --all           after a restart of the machine

With --all the jobs run one after the other; the exit status is that of the first error.")]
pub struct ResumeArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Number of the job
    #[arg(required_unless_present = "all", add = ArgValueCompleter::new(complete::jobs))]
    pub id: Option<JobId>,

    /// All interrupted jobs of the pool, in their order; it is no error if there are none
    #[arg(long, conflicts_with = "id")]
    pub all: bool,

    /// Return at once; the job continues in a separate process
    #[arg(long, conflicts_with_all = ["progress_fd", "progress_socket"])]
    pub detach: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub(super) fn cancel(args: &CancelArgs) -> Result<ExitCode> {
    let pool = args.job.pool.open()?;
    let status = pool.cancel(args.job.id)?;
    let printed = if args.json {
        print::json(&JobJson::new(&pool, &status))
    } else {
        print::text(describe(&status))
    };
    match status.state {
        JobState::Cancelled => Ok(printed),
        // It ended in another way before it received the request.
        _ => Ok(ExitCode::FAILURE),
    }
}

pub(super) fn resume(args: &ResumeArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let pool = args.pool.open()?;
    match args.id {
        Some(id) => resume_one(&pool, id, args, cancel).map(print::text),
        None => resume_all(&pool, args, cancel),
    }
}

fn resume_one(pool: &Pool, id: JobId, args: &ResumeArgs, cancel: &CancelToken) -> Result<String> {
    args.output.progress.show(|display| {
        let job = pool.resume(id)?;
        if args.detach {
            vol::detach(&args.pool, job, &args.output)
        } else {
            vol::finish(pool, job, &args.output, display, cancel)
        }
    })
}

/// Of several jobs.
#[derive(Serialize)]
struct Resumed {
    jobs: Vec<Value>,
}

/// A job that fails does not keep the others from being resumed.
fn resume_all(pool: &Pool, args: &ResumeArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let mut interrupted: Vec<_> = pool
        .jobs()?
        .into_iter()
        .filter(|job| job.state == JobState::Interrupted)
        .map(|job| job.id)
        .collect();
    interrupted.sort();
    let mut printed = ExitCode::SUCCESS;
    let mut jobs = Vec::new();
    let mut failed = None;
    for id in interrupted {
        let resumed = cancel
            .check()
            .and_then(|()| resume_one(pool, id, args, cancel));
        match (resumed, &failed) {
            (Ok(said), _) if args.output.json => {
                jobs.extend(serde_json::from_str::<Value>(&said));
            }
            (Ok(said), _) => printed = print::unless_lost(print::text(said), printed),
            (Err(error), None) => failed = Some(error),
            (Err(error), Some(_)) => {
                exit::report(&error, args.output.progress.error_style());
            }
        }
        if cancel.check().is_err() {
            break;
        }
    }
    if args.output.json {
        printed = print::json(&Resumed { jobs });
    }
    failed.map_or(Ok(printed), Err)
}
