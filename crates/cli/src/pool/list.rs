//! `extant pool list`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{Pool, PoolInfo};
use extant_space::{ByteSize, Result};
use serde::Serialize;

use super::ConfigArgs;
use crate::print;
use crate::table::Table;

/// List the defined pools.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool list
  extant pool list --json

Exit status: see extant --help.")]
pub struct ListArgs {
    #[command(flatten)]
    pub config: ConfigArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Line {
    name: String,
    #[serde(flatten)]
    info: Option<PoolInfo>,
    /// Why the pool cannot be used.
    error: Option<String>,
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let found = args.config.definitions()?.list()?.into_iter();
    let lines: Vec<Line> = found
        .map(|(name, definition)| {
            let info = definition.and_then(Pool::open).and_then(|pool| pool.info());
            Line {
                name: name.to_string(),
                error: info.as_ref().err().map(ToString::to_string),
                info: info.ok(),
            }
        })
        .collect();
    if args.json {
        return Ok(print::json(&lines));
    }
    let mut table = Table::new(&[
        "name",
        "total",
        "allocated",
        "promised",
        "available",
        "path",
    ]);
    for line in &lines {
        match &line.info {
            Some(info) => table.row([
                line.name.clone(),
                ByteSize(info.space.total_bytes).to_string(),
                ByteSize(info.space.allocated_bytes).to_string(),
                ByteSize(info.space.promised_bytes).to_string(),
                ByteSize(info.space.available_bytes).to_string(),
                info.path.clone(),
            ]),
            None => {
                let dash = || "-".to_owned();
                let why = line.error.clone().unwrap_or_default();
                table.row([line.name.clone(), dash(), dash(), dash(), dash(), why]);
            }
        }
    }
    Ok(print::text(table))
}
