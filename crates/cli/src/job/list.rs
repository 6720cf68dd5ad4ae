//! `extant job list`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::JobStatus;
use extant_space::{Phase, Result};

use crate::pool::PoolArgs;
use crate::print;
use crate::table::Table;

/// List the jobs of a pool, the oldest first.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job list vms
  extant job list vms --active

Exit status: see extant --help.")]
pub struct ListArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Leave out those that have ended
    #[arg(long)]
    pub active: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let mut jobs = args.pool.open()?.jobs()?;
    jobs.retain(|job| !args.active || !job.state.has_ended());
    if args.json {
        return Ok(print::json(&jobs));
    }
    let mut table = Table::new(&["job", "state", "done", "priority", "operation", "volume"]);
    for job in &jobs {
        table.row([
            job.id.to_string(),
            job.state.name().to_owned(),
            done(job),
            job.options.priority.name().to_owned(),
            job.operation.name().to_owned(),
            job.operation.volume().to_string(),
        ]);
    }
    Ok(print::text(table))
}

/// How far a job is: `write 42%`.
pub(super) fn done(job: &JobStatus) -> String {
    match job.progress {
        Some(progress) if progress.phase != Phase::Wait && progress.total_bytes > 0 => {
            let percent = progress.done_bytes as f64 * 100.0 / progress.total_bytes as f64;
            format!("{} {percent:.0}%", progress.phase.name())
        }
        _ => "-".to_owned(),
    }
}
