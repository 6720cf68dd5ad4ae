//! `extant job list`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{JobState, JobStatus, Operation, Pool};
use extant_space::{ByteSize, Phase, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::pool::AnyPoolArgs;
use crate::pool::json::JobJson;
use crate::print;
use crate::table::Table;

/// List the jobs of a pool, or of all, the oldest first.
///
/// A pool keeps the newest 64 of the ended jobs.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job list                     of every defined pool
  extant job list vms
  extant job list vms --active

Exit status: see extant --help.")]
pub struct ListArgs {
    #[command(flatten)]
    pub pool: AnyPoolArgs,

    /// Leave out those that have ended
    #[arg(long)]
    pub active: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct List<'a> {
    jobs: &'a [Value],
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let now = jiff::Timestamp::now().as_second() as u64;
    let (mut documents, mut rows) = (Vec::new(), Vec::new());
    let code = args.pool.for_each(|pool| {
        let jobs = pool.jobs()?.into_iter();
        for job in jobs.filter(|job| !args.active || !job.state.has_ended()) {
            documents.push(json!(JobJson::new(pool, &job)));
            rows.push(row(pool, &job, now));
        }
        Ok(())
    })?;
    if args.json {
        let printed = print::json(&List { jobs: &documents });
        return Ok(print::unless_lost(printed, code));
    }
    let printed = match args.pool.pool {
        Some(_) => {
            let [_, headings @ ..] = HEADINGS;
            let mut table = Table::new(&headings);
            for [_, row @ ..] in rows {
                table.row(row);
            }
            print::text(table)
        }
        None => {
            let mut table = Table::new(&HEADINGS);
            rows.into_iter().for_each(|row| table.row(row));
            print::text(table)
        }
    };
    Ok(print::unless_lost(printed, code))
}

/// The pool is left out in the list of one pool.
const HEADINGS: [&str; 11] = [
    "pool",
    "job",
    "state",
    "done",
    "capacity",
    "rate",
    "time",
    "age",
    "priority",
    "operation",
    "volume",
];

fn row(pool: &Pool, job: &JobStatus, now: u64) -> [String; 11] {
    let dash = || "-".to_owned();
    let capacity = match &job.operation {
        Operation::Create(create) => Some(create.capacity_bytes),
        Operation::Resize(resize) => Some(resize.capacity_bytes),
        _ => None,
    };
    // From when it was made: a wait for its turn counts.
    let seconds = job.ended.unwrap_or(now).saturating_sub(job.created);
    let done_bytes = job.progress.map_or(0, |progress| progress.done_bytes);
    let is_interrupted = job.state == JobState::Interrupted;
    let rate = match done_bytes / seconds.max(1) {
        0 => dash(),
        _ if is_interrupted => dash(),
        rate => format!("{}/s", ByteSize(rate)),
    };
    [
        pool.to_string(),
        job.id.to_string(),
        job.state.name().to_owned(),
        done(job),
        capacity.map_or_else(dash, |bytes| ByteSize(bytes).to_string()),
        rate,
        if is_interrupted {
            dash()
        } else {
            duration(seconds)
        },
        duration(now.saturating_sub(job.created)),
        job.options.priority.name().to_owned(),
        job.operation.name().to_owned(),
        job.operation.volume().to_string(),
    ]
}

/// `42s`, `3m 20s`, `5h 1m`, `2d 4h`.
fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {}m", minutes % 60),
        (_, _, _) => format!("{days}d {}h", hours % 24),
    }
}

/// Progress of a job: `write 42%`.
pub(super) fn done(job: &JobStatus) -> String {
    match job.progress {
        Some(progress) if progress.phase != Phase::Wait && progress.total_bytes > 0 => {
            let percent = progress.done_bytes as f64 * 100.0 / progress.total_bytes as f64;
            format!("{} {percent:.0}%", progress.phase.name())
        }
        _ => "-".to_owned(),
    }
}
