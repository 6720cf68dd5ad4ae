//! `extant vol delete`.

use std::process::ExitCode;

use clap::Args;
use extant_space::Result;

use super::work::VolumeArgs;

/// Remove a volume.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol delete vms old.raw

Exit status: see extant --help.")]
pub struct DeleteArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Also when a process has the volume open
    #[arg(long, short)]
    pub force: bool,
}

pub(super) fn run(args: &DeleteArgs) -> Result<ExitCode> {
    let pool = args.volume.pool.open()?;
    pool.delete(&args.volume.volume, args.force)?;
    Ok(ExitCode::SUCCESS)
}
