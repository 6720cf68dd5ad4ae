//! `extant vol delete`.

use std::process::ExitCode;

use clap::Args;
use extant_space::Result;

use super::work::VolumeArgs;
use crate::print;

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

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &DeleteArgs) -> Result<ExitCode> {
    let pool = args.volume.pool.open()?;
    let name = &args.volume.volume;
    pool.delete(name, args.force)?;
    let path = pool.path_of(name);
    Ok(if args.json {
        print::json(&serde_json::json!({
            "pool": pool.to_string(),
            "name": name,
            "path": path.display().to_string(),
        }))
    } else {
        print::text(format!("{name}: deleted"))
    })
}
