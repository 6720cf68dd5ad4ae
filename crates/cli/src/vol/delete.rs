//! `extant vol delete`.

use clap::Args;
use extant_pool::{OnStop, Operation, Wipe, WipeMethod};
use extant_space::{CancelToken, Control, Result};

use super::work::{RunArgs, VolumeArgs};
use crate::print;
use crate::progress::Display;

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

    #[command(flatten)]
    pub run: RunArgs,
}

pub(super) fn run(args: &DeleteArgs, display: &Display, cancel: &CancelToken) -> Result<String> {
    let pool = args.volume.pool.open()?;
    let name = &args.volume.volume;
    if args.wipe {
        let wipe = Operation::Wipe(Wipe {
            volume: name.clone(),
            method: WipeMethod::Zero,
            force: args.force,
        });
        let job = pool.submit(wipe, args.run.options())?;
        job.run(OnStop::Cancel, Control::new(cancel, display))?;
    }
    pool.delete(name, args.force)?;
    let path = pool.path_of(name);
    Ok(if args.run.output.json {
        print::json_text(&serde_json::json!({
            "pool": pool.to_string(),
            "name": name,
            "path": path.display().to_string(),
        }))
    } else {
        format!("{name}: deleted")
    })
}
