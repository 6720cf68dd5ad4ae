//! `extant vol create`.

use std::path::PathBuf;

use clap::Args;
use extant_pool::{CreateVolume, Format, Operation, VolumeName, VolumeXml};
use extant_space::{ByteSize, Control, Result};

use super::work::{WorkArgs, work};
use crate::arguments::{FileMode, parse_mode, parse_size};
use crate::pool::{PoolArgs, xml};

/// Make a new volume.
///
/// What it needs is reserved before anything is written: it fails at once, or it has its space.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol create vms web.raw 20GiB                    zeroed and written
  extant vol create vms db.raw 1TiB --allocation 50GiB    the first part written
  extant vol create vms big.raw 500GiB --background --detach
  extant vol create vms --xml web.xml

Exit status: see extant --help.")]
pub struct CreateArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Name of the volume
    #[arg(required_unless_present = "xml")]
    pub volume: Option<VolumeName>,

    /// Its logical size
    #[arg(value_parser = parse_size, required_unless_present = "xml")]
    pub capacity: Option<ByteSize>,

    /// Take name, capacity, allocation and permissions from libvirt's XML of a volume
    #[arg(long, value_name = "FILE", conflicts_with_all = ["volume", "capacity", "allocation", "mode"])]
    pub xml: Option<PathBuf>,

    /// Make only the first part real; the rest stays sparse
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub allocation: Option<ByteSize>,

    /// What is done about its space [default: as the pool says, or full]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<FileMode>,

    /// raw
    #[arg(long, value_name = "FORMAT", default_value = "raw")]
    pub format: Format,

    /// Permissions of the file
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, default_value = "0600")]
    pub mode: u32,

    /// Turn copy-on-write off for the file (as chattr +C; btrfs)
    #[arg(long)]
    pub nocow: bool,

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(super) fn run(args: &CreateArgs, control: Control<'_>) -> Result<String> {
    let preallocation = match args.preallocation {
        Some(mode) => mode.into(),
        None => args.pool.open()?.definition().limits().preallocation,
    };
    let operation = match (&args.volume, args.capacity, &args.xml) {
        (Some(volume), Some(capacity), _) => {
            let mut create = CreateVolume::new(volume.clone(), capacity.0, preallocation);
            if let Some(size) = args.allocation {
                create.allocation_bytes = size.0;
            }
            create.format = args.format;
            create.mode = args.mode;
            create.nocow = args.nocow;
            Operation::Create(create)
        }
        (_, _, Some(path)) => {
            let read = VolumeXml::read(&xml::read(path)?);
            read.map_err(|error| error.at(path))?
                .operation(preallocation)
        }
        _ => unreachable!("clap wants one or the other"),
    };
    work(&args.pool, &args.work, operation, control)
}
