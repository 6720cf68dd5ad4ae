//! `extant vol list`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::ListedVolume;
use extant_space::{ByteSize, Result};
use serde::Serialize;

use super::info::format_word;
use crate::pool::AnyPoolArgs;
use crate::pool::json::ListedJson;
use crate::print;
use crate::table::Table;

/// List the volumes of a pool, or of all.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol list                     of every defined pool
  extant vol list vms
  extant vol list ./images --json     any directory is a pool

Exit status: see extant --help.")]
pub struct ListArgs {
    #[command(flatten)]
    pub pool: AnyPoolArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct List {
    volumes: Vec<ListedJson>,
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let mut all = Vec::new();
    let code = args.pool.for_each(|pool| {
        let volumes = pool.volumes()?;
        all.extend(
            volumes
                .into_iter()
                .map(|volume| (ListedJson::new(pool, &volume), volume)),
        );
        Ok(())
    })?;
    if args.json {
        let volumes = all.into_iter().map(|(listed, _)| listed).collect();
        return Ok(print::unless_lost(print::json(&List { volumes }), code));
    }
    let cells = |volume: &ListedVolume| {
        [
            ByteSize(volume.capacity_bytes).to_string(),
            ByteSize(volume.allocation_bytes).to_string(),
            format_word(volume.format).to_owned(),
            volume.name.to_string(),
        ]
    };
    let printed = match args.pool.pool {
        Some(_) => {
            let mut table = Table::new(&["capacity", "allocation", "format", "name"]);
            all.iter().for_each(|(_, volume)| table.row(cells(volume)));
            print::text(table)
        }
        None => {
            let mut table = Table::new(&["pool", "capacity", "allocation", "format", "name"]);
            for (listed, volume) in &all {
                let [capacity, allocation, format, name] = cells(volume);
                table.row([listed.pool.clone(), capacity, allocation, format, name]);
            }
            print::text(table)
        }
    };
    Ok(print::unless_lost(printed, code))
}
