//! `extant job watch` and `extant job wait`.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use extant_pool::{JobState, JobStatus};
use extant_space::{CancelToken, Error, ErrorKind, ProgressSink, Result};

use super::OneJobArgs;
use super::show::describe;
use crate::pool::json::JobJson;
use crate::print;
use crate::progress::{Display, StreamArgs};

/// Follow a job to its end.
///
/// Ctrl-C ends the look, not the job.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job watch vms 12
  extant job watch vms 12 --json

Exit status: see extant --help.")]
pub struct WatchArgs {
    #[command(flatten)]
    pub job: OneJobArgs,

    /// Print the job as JSON on stdout, one object a line, about ten times a second; an error is
    /// JSON on stderr
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub stream: StreamArgs,
}

/// Wait for the end of a job, without progress.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant job wait vms 12 && echo done

Exit status: see extant --help.")]
pub struct WaitArgs {
    #[command(flatten)]
    pub job: OneJobArgs,

    /// Print the job as JSON when it has ended; an error is JSON on stderr
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &WatchArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let display = args.stream.display(args.json)?;
    let followed = follow(args, &display, cancel);
    match &followed {
        // The job continues.
        Err(error) if error.kind() == ErrorKind::Cancelled => drop(display),
        Err(error) => display.end(Some(error)),
        Ok(None) => drop(display),
        Ok(Some(status)) => display.end(ended(status).err().as_ref()),
    }
    let Some(status) = followed? else {
        return Ok(ExitCode::SUCCESS);
    };
    let code = ended(&status)?;
    Ok(if args.json {
        code
    } else {
        print::text(describe(&status))
    })
}

/// The job when it ended; `None` if the output was closed.
fn follow(args: &WatchArgs, display: &Display, cancel: &CancelToken) -> Result<Option<JobStatus>> {
    let pool = args.job.pool.open()?;
    let update = |status: &JobStatus| {
        if let Some(progress) = status.progress {
            display.update(progress);
        }
    };
    if args.json {
        let mut heard = Ok(());
        // Also cancelled when the output is closed.
        let enough = cancel.clone();
        let status = pool.wait(args.job.id, &enough, &mut |status| {
            update(status);
            let mut out = std::io::stdout().lock();
            let line = print::json_line(&JobJson::new(&pool, status));
            let written = writeln!(out, "{line}").and_then(|()| out.flush());
            if let Err(error) = written {
                heard = Err(error);
                enough.cancel();
            }
        });
        return match heard {
            // The reader has closed the output.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(None),
            Err(error) => Err(print::output_error(error)),
            Ok(()) => goes_on(status, &args.job).map(Some),
        };
    }
    let status = pool.wait(args.job.id, cancel, &mut |status| update(status));
    goes_on(status, &args.job).map(Some)
}

/// Ctrl-C ends only the wait, with a message.
fn goes_on(status: Result<JobStatus>, job: &OneJobArgs) -> Result<JobStatus> {
    status.map_err(|error| match error.kind() {
        ErrorKind::Cancelled => {
            let (pool, id) = (print::path(&job.pool.pool), job.id);
            error
                .detail(format!("job {id} continues"))
                .advice(format!("extant job cancel {pool} {id} ends it"))
        }
        _ => error,
    })
}

pub(super) fn wait(args: &WaitArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let pool = args.job.pool.open()?;
    let status = goes_on(pool.wait(args.job.id, cancel, &mut |_| {}), &args.job)?;
    if args.json {
        let printed = print::json(&JobJson::new(&pool, &status));
        return Ok(print::unless_lost(printed, ended(&status)?));
    }
    let code = ended(&status)?;
    Ok(print::unless_lost(print::text(describe(&status)), code))
}

/// The outcome is the job's.
fn ended(status: &JobStatus) -> Result<ExitCode> {
    if status.state == JobState::Interrupted {
        return Err(Error::new(ErrorKind::Io)
            .detail(format!(
                "job {} was interrupted: its process has ended",
                status.id
            ))
            .advice("extant job resume continues it"));
    }
    status.result().map(|()| ExitCode::SUCCESS)
}
