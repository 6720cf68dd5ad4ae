//! `extant job show`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::JobStatus;
use extant_space::Result;

use super::OneJobArgs;
use super::list::done;
use crate::pool::json::{JobJson, moment};
use crate::print;

/// Print the details of a job.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job show vms 12

Exit status: see extant --help.")]
pub struct ShowArgs {
    #[command(flatten)]
    pub job: OneJobArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &ShowArgs) -> Result<ExitCode> {
    let pool = args.job.pool.open()?;
    let job = pool.job(args.job.id)?;
    Ok(if args.json {
        print::json(&JobJson::new(&pool, &job))
    } else {
        print::text(describe(&job))
    })
}

/// A job in a few lines.
pub(super) fn describe(job: &JobStatus) -> String {
    let operation = &job.operation;
    let mut out = format!(
        "job {}: {} {}",
        job.id,
        operation.name(),
        operation.volume()
    );
    print::row(&mut out, "state", job.state.name());
    if job.progress.is_some() {
        print::row(&mut out, "done", done(job));
    }
    print::row(&mut out, "priority", job.options.priority.name());
    print::row(&mut out, "made", moment(job.created));
    if let Some(ended) = job.ended {
        print::row(&mut out, "ended", moment(ended));
    }
    if let Some(failure) = &job.failure {
        print::row(&mut out, "why", &failure.message);
    }
    out
}
