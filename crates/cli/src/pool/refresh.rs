//! `extant pool refresh`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{Leftovers, Refreshed};
use extant_space::{ByteSize, Result};

use super::{PoolArgs, json};
use crate::print;
use crate::words::count;

/// Find files and jobs left by killed processes in a pool.
///
/// Interrupted jobs are reported, and kept for `extant job resume`; files without a job are
/// removed.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool refresh vms
  extant pool refresh vms --cancel

Exit status: see extant --help.")]
pub struct RefreshArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Cancel interrupted jobs: the pool is as before them
    #[arg(long)]
    pub cancel: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &RefreshArgs) -> Result<ExitCode> {
    let leftovers = if args.cancel {
        Leftovers::Remove
    } else {
        Leftovers::Keep
    };
    let pool = args.pool.open()?;
    let found = pool.refresh(leftovers)?;
    Ok(if args.json {
        print::json(&json::refreshed(&pool, &found))
    } else {
        print::text(describe(&pool.to_string(), &found))
    })
}

fn describe(name: &str, found: &Refreshed) -> String {
    let mut out = format!(
        "{name}: {}",
        count(found.interrupted.len() as u64, "interrupted job")
    );
    for interrupted in &found.interrupted {
        let operation = &interrupted.job.operation;
        let text = format!(
            "{} {}, {} so far; extant job resume or cancel",
            operation.name(),
            operation.volume(),
            ByteSize(interrupted.allocated_bytes)
        );
        print::row(&mut out, &format!("job {}", interrupted.job.id), text);
    }
    for id in &found.completed {
        print::row(&mut out, &format!("job {id}"), "was complete, and is ended");
    }
    for id in &found.cancelled {
        print::row(&mut out, &format!("job {id}"), "cancelled");
    }
    if found.removed_files > 0 {
        let bytes = ByteSize(found.removed_bytes);
        print::row(
            &mut out,
            "removed",
            format!("{}, {bytes}", count(found.removed_files, "file")),
        );
    }
    if found.other_names > 0 {
        print::row(
            &mut out,
            "others",
            match found.other_names {
                1 => "1 name is no volume".to_owned(),
                names => format!("{names} names are no volumes"),
            },
        );
    }
    out
}
