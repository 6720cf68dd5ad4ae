//! `extant pool define` and `delete`.

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_image::Preallocation;
use extant_pool::{Definition, Limits, Overcommit, Pool, PoolName};
use extant_space::{ByteSize, Result};

use super::{ConfigArgs, xml};
use crate::arguments::{parse_rate, parse_size};
use crate::create::Mode;
use crate::print;

/// Give a directory a name and limits.
///
/// The directory is made if there is none; what is in it becomes the pool's volumes.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool define vms /srv/vms --total 500GiB
  extant pool define thin /srv/thin --overcommit 2 --preallocation off
  extant pool define --xml vms.xml              as virsh pool-dumpxml writes it

Exit status: see extant --help.")]
pub struct DefineArgs {
    /// Name of the pool
    #[arg(required_unless_present = "xml")]
    pub name: Option<PoolName>,

    /// The directory
    #[arg(required_unless_present = "xml")]
    pub directory: Option<PathBuf>,

    /// Take name and directory from libvirt's XML of a pool
    #[arg(long, value_name = "FILE", conflicts_with_all = ["name", "directory"])]
    pub xml: Option<PathBuf>,

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
    pub preallocation: Mode,

    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Forget a pool; its directory and its volumes stay.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool delete vms

Exit status: see extant --help.")]
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
        preallocation: Preallocation::from(args.preallocation).of_raw()?,
    };
    let definitions = args.config.definitions()?;
    let definition = match (&args.name, &args.directory, &args.xml) {
        (Some(name), Some(directory), _) => Definition::named(name.clone(), directory, limits)?,
        (_, _, Some(path)) => {
            let read = Definition::from_xml(&xml::read(path)?, limits);
            read.map_err(|error| error.at(path))?
        }
        _ => unreachable!("clap wants one or the other"),
    };
    let name = definition.name().expect("both ways give one").clone();
    definitions.check_is_free(&name)?;
    let pool = Pool::build(definition)?;
    definitions.add(pool.definition())?;
    let path = print::path(pool.definition().path());
    Ok(print::text(format!("{name}: {path}")))
}

pub(super) fn delete(args: &DeleteArgs) -> Result<ExitCode> {
    args.config.definitions()?.remove(&args.name)?;
    Ok(ExitCode::SUCCESS)
}
