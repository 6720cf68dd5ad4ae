//! `extant vol list`.

use std::process::ExitCode;

use clap::Args;
use extant_space::{ByteSize, Result};

use super::info::format_word;
use crate::pool::PoolArgs;
use crate::print;
use crate::table::Table;

/// List the volumes of a pool.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol list vms
  extant vol list ./images --json     any directory is a pool

Exit status: see extant --help.")]
pub struct ListArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let volumes = args.pool.open()?.volumes()?;
    if args.json {
        return Ok(print::json(&volumes));
    }
    let mut table = Table::new(&["capacity", "allocation", "format", "name"]);
    for volume in volumes {
        table.row([
            ByteSize(volume.capacity_bytes).to_string(),
            ByteSize(volume.allocation_bytes).to_string(),
            format_word(volume.format).to_owned(),
            volume.name.to_string(),
        ]);
    }
    Ok(print::text(table))
}
