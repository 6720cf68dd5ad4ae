//! `extant vol create`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{CreateVolume, Format, Operation};
use extant_space::{ByteSize, CancelToken, Preallocation, Result};

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
    let allocation_bytes = match (preallocation, args.allocation) {
        (_, Some(size)) => size.0,
        (Preallocation::Off, None) => 0,
        (_, None) => args.capacity.0,
    };
    let operation = Operation::Create(CreateVolume {
        volume: args.volume.volume.clone(),
        format: args.format,
        capacity_bytes: args.capacity.0,
        allocation_bytes,
        preallocation,
        mode: args.mode,
    });
    work(&args.volume.pool, &args.work, operation, cancel)
}
