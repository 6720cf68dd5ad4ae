//! `extant job cancel` and `extant job resume`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::JobState;
use extant_space::{CancelToken, Result};

use super::OneJobArgs;
use super::show::describe;
use crate::arguments::OutputArgs;
use crate::pool::json::JobJson;
use crate::print;
use crate::vol;

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

/// Continue an interrupted job.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job resume vms 12 --detach

Exit status: see extant --help.")]
pub struct ResumeArgs {
    #[command(flatten)]
    pub job: OneJobArgs,

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
    let said = args.output.progress.show(|display| {
        let pool = args.job.pool.open()?;
        let job = pool.resume(args.job.id)?;
        if args.detach {
            vol::detach(&args.job.pool, job, &args.output)
        } else {
            vol::finish(&pool, job, &args.output, display, cancel)
        }
    });
    said.map(print::text)
}
