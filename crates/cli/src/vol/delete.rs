//! `extant vol delete`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{JobOptions, OnStop, Operation, Wipe, WipeMethod};
use extant_space::{CancelToken, Control, Result, Silent};

use super::work::VolumeArgs;
use crate::print;

/// Remove a volume.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol delete vms old.raw
  extant vol delete bare old --wipe       its data is overwritten with zeros before

Exit status: see extant --help.")]
pub struct DeleteArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Also when a process has the volume open
    #[arg(long, short)]
    pub force: bool,

    /// Overwrite its data with zeros before, as extant vol wipe does
    #[arg(long)]
    pub wipe: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &DeleteArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let pool = args.volume.pool.open()?;
    let name = &args.volume.volume;
    if args.wipe {
        let wipe = Operation::Wipe(Wipe {
            volume: name.clone(),
            method: WipeMethod::Zero,
            force: args.force,
        });
        let job = pool.submit(wipe, JobOptions::default())?;
        job.run(OnStop::Cancel, Control::new(cancel, &Silent))?;
    }
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
