//! `extant job`: the jobs of a pool, from anywhere.

mod act;
mod list;
mod show;
mod watch;
mod work;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use extant_pool::JobId;
use extant_space::{CancelToken, Result};

use crate::complete;
use crate::exit::{self, Style};
use crate::pool::PoolArgs;
use crate::signals::EndAtOnce;

/// List the jobs of a pool, wait for them, cancel and resume them.
///
/// A job without a process (killed, or the machine was restarted) is interrupted: it holds no
/// reservation, and continues from the extent map of its file when it is resumed.
#[derive(Args, Clone, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  extant job list vms
  extant job watch vms 12              until it ends
  extant job cancel vms 12             the pool is as before the job
  extant job resume vms 12

Exit status of wait and watch: that of the job. See extant --help."
)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum JobCommand {
    List(list::ListArgs),
    Show(show::ShowArgs),
    Watch(watch::WatchArgs),
    Wait(watch::WaitArgs),
    Cancel(act::CancelArgs),
    Resume(act::ResumeArgs),
    /// Continue a job that another process has handed over on standard input
    #[command(hide = true)]
    Work(work::WorkArgs),
}

/// A job of a pool.
#[derive(Args, Clone, Debug)]
pub struct OneJobArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Number of the job
    #[arg(add = ArgValueCompleter::new(complete::jobs))]
    pub id: JobId,
}

/// Runs one of the commands.
pub fn run(args: &JobArgs, cancel: &CancelToken) -> ExitCode {
    let _ends =
        matches!(args.command, JobCommand::List(_) | JobCommand::Show(_)).then(EndAtOnce::new);
    let result: Result<ExitCode> = match &args.command {
        JobCommand::List(args) => list::run(args),
        JobCommand::Show(args) => show::run(args),
        JobCommand::Watch(args) => watch::run(args, cancel),
        JobCommand::Wait(args) => watch::wait(args, cancel),
        JobCommand::Cancel(args) => act::cancel(args),
        JobCommand::Resume(args) => act::resume(args, cancel),
        JobCommand::Work(args) => work::run(args, cancel),
    };
    let style = match &args.command {
        JobCommand::Resume(args) => args.output.progress.error_style(),
        JobCommand::Watch(watch::WatchArgs { json: true, .. })
        | JobCommand::Wait(watch::WaitArgs { json: true, .. }) => Style::Json,
        _ => Style::Line,
    };
    result.unwrap_or_else(|error| exit::report(&error, style))
}
