//! `extant pool define` and `delete`.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_pool::{Definition, Limits, Overcommit, Pool, PoolName};
use extant_space::{ByteSize, Result};

use super::ConfigArgs;
use crate::arguments::{FileMode, parse_rate, parse_size};
use crate::print;

/// Give a directory a name and limits.
///
/// The directory is made if there is none; what is in it becomes the pool's volumes.
#[derive(Args, Clone, Debug)]
pub struct DefineArgs {
    /// Name of the pool
    pub name: PoolName,

    /// The directory
    pub directory: PathBuf,

    /// Volumes take at most this much in all [default: what the file system has]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub total: Option<ByteSize>,

    /// Capacity that may be promised for each byte of space
    #[arg(long, value_name = "RATIO", default_value = "1.0")]
    pub overcommit: Overcommit,

    /// What all jobs with --background write together, such as 100M or 1GB/s
    #[arg(long, value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    /// How many jobs run at a time
    #[arg(long, value_name = "N", default_value = "4")]
    pub jobs: NonZeroU32,

    /// What is done about the space of new volumes, where nothing is said
    #[arg(long, value_name = "MODE", default_value = "full")]
    pub preallocation: FileMode,

    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Forget a pool; its directory and its volumes stay.
#[derive(Args, Clone, Debug)]
pub struct DeleteArgs {
    /// Name of the pool
    pub name: PoolName,

    #[command(flatten)]
    pub config: ConfigArgs,
}

pub(super) fn run(args: &DefineArgs) -> Result<ExitCode> {
    let limits = Limits {
        total_bytes: args.total.map(|size| size.0),
        overcommit: args.overcommit,
        rate: args.rate,
        jobs_max: args.jobs,
        preallocation: args.preallocation.into(),
    };
    let definitions = args.config.definitions()?;
    let definition = Definition::named(args.name.clone(), &args.directory, limits)?;
    definitions.check_is_free(&args.name)?;
    let pool = Pool::build(definition)?;
    definitions.add(pool.definition())?;
    let path = print::path(pool.definition().path());
    Ok(print::text(format!("{}: {path}", args.name)))
}

pub(super) fn delete(args: &DeleteArgs) -> Result<ExitCode> {
    args.config.definitions()?.remove(&args.name)?;
    Ok(ExitCode::SUCCESS)
}
