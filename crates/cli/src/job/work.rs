//! The process of a detached job.
//!
//! It has its own session and prints nothing: the outcome of the job is in its record. A signal
//! interrupts the job, so that it can be resumed after a restart of the machine.

use std::os::fd::AsFd;
use std::process::ExitCode;

use clap::Args;
use extant_pool::{JobId, OnStop};
use extant_space::{CancelToken, Control, Error, Result, Silent};
use rustix::process::setsid;

use crate::pool::PoolArgs;
use crate::trace;

/// Arguments from the parent process.
#[derive(Args, Clone, Debug)]
pub struct WorkArgs {
    /// Number of the job
    #[arg(long)]
    pub id: JobId,

    #[command(flatten)]
    pub pool: PoolArgs,
}

pub(super) fn run(args: &WorkArgs, cancel: &CancelToken) -> Result<ExitCode> {
    // It fails for a leader of a process group, which needs no new session.
    let _ = setsid();
    trace::leave_standard_error();
    let lock = std::io::stdin().as_fd().try_clone_to_owned();
    let lock = lock.map_err(|source| Error::from(source).during("take the job's lock"))?;
    let pool = args.pool.open()?;
    let job = pool.take_over(args.id, lock.into())?;
    job.run(OnStop::Interrupt, Control::new(cancel, &Silent))?;
    Ok(ExitCode::SUCCESS)
}
