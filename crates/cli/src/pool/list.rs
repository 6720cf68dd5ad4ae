//! `extant pool list`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{Pool, PoolInfo};
use extant_space::{ByteSize, Result};
use serde::Serialize;

use super::ConfigArgs;
use super::json::PoolJson;
use super::place::tell_wait;
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

struct PoolRow {
    name: String,
    info: Option<PoolInfo>,
    /// Why the pool cannot be used.
    error: Option<String>,
}

#[derive(Serialize)]
struct List<'a> {
    pools: Vec<Listed<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Listed<'a> {
    Open {
        #[serde(flatten)]
        pool: PoolJson<'a>,
        error: Option<&'a str>,
    },
    Failed {
        name: &'a str,
        error: Option<&'a str>,
    },
}

impl<'a> From<&'a PoolRow> for Listed<'a> {
    fn from(line: &'a PoolRow) -> Self {
        let error = line.error.as_deref();
        match &line.info {
            Some(info) => Self::Open {
                pool: info.into(),
                error,
            },
            None => Self::Failed {
                name: &line.name,
                error,
            },
        }
    }
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let found = args.config.definitions()?.list()?.into_iter();
    let lines: Vec<PoolRow> = found
        .map(|(name, definition)| {
            let pool = definition.and_then(Pool::open);
            let info = pool.and_then(|pool| pool.telling_waits(tell_wait).info());
            PoolRow {
                name: name.to_string(),
                error: info.as_ref().err().map(ToString::to_string),
                info: info.ok(),
            }
        })
        .collect();
    if args.json {
        let pools = lines.iter().map(Listed::from).collect();
        return Ok(print::json(&List { pools }));
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
