//! `extant vol create`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{CreateVolume, Format, Operation};
use extant_space::{ByteSize, CancelToken, Result};

use super::work::{VolumeArgs, WorkArgs, work};
use crate::arguments::{FileMode, parse_mode, parse_size};

/// Make a new volume.
///
/// What it needs is reserved before anything is written: it fails at once, or it has its space.
#[derive(Args, Clone, Debug)]
pub struct CreateArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Its logical size
    #[arg(value_parser = parse_size)]
    pub capacity: ByteSize,

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

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(super) fn run(args: &CreateArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let preallocation = match args.preallocation {
        Some(mode) => mode.into(),
        None => args.volume.pool.open()?.definition().limits().preallocation,
    };
    let mut create = CreateVolume::new(args.volume.volume.clone(), args.capacity.0, preallocation);
    if let Some(size) = args.allocation {
        create.allocation_bytes = size.0;
    }
    create.format = args.format;
    create.mode = args.mode;
    let operation = Operation::Create(create);
    work(&args.volume.pool, &args.work, operation, cancel)
}
