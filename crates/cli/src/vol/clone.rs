//! `extant vol clone`.

use clap::{Args, ValueEnum};
use extant_pool::{CloneMethod, CloneVolume, Operation, VolumeName};
use extant_space::{CancelToken, Result};

use super::work::{VolumeArgs, WorkArgs, work};
use crate::arguments::parse_mode;
use crate::progress::Display;

/// Make a new volume with the content of another.
///
/// Space is shared where the file system can (reflink). Otherwise data is copied; holes stay holes
/// and unwritten extents stay unwritten.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol clone vms web.raw web-2.raw
  extant vol clone vms web.raw web-3.raw --method copy

Exit status: see extant --help.")]
pub struct CloneArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Name of the new volume
    pub new: VolumeName,

    /// Whether space is shared
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub method: Method,

    /// Permissions of the file
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, default_value = "0600")]
    pub mode: u32,

    #[command(flatten)]
    pub work: WorkArgs,
}

/// Ways to clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Share space where the file system can
    Auto,
    /// Share space, or fail
    Reflink,
    /// Copy data: the clone shares no space
    Copy,
}

pub(super) fn run(args: &CloneArgs, display: &Display, cancel: &CancelToken) -> Result<String> {
    let operation = Operation::Clone(CloneVolume {
        source: args.volume.volume.clone(),
        volume: args.new.clone(),
        method: match args.method {
            Method::Auto => CloneMethod::Auto,
            Method::Reflink => CloneMethod::Reflink,
            Method::Copy => CloneMethod::Copy,
        },
        mode: args.mode,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}
