//! `extant vol wipe` and `extant vol materialize`.

use clap::{Args, ValueEnum};
use extant_pool::{Materialize, Operation, Wipe, WipeMethod};
use extant_space::{CancelToken, Result};

use crate::progress::Display;

use super::work::{VolumeArgs, WorkArgs, work};

/// Destroy the content of a volume; its capacity is kept.
///
/// Wiped parts stay wiped after a cancel. After a kill the same command resumes, unless the volume
/// has been changed since. A qcow2 volume becomes an empty image of the same shape without backing
/// file: without data and snapshots.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol wipe vms old.raw
  extant vol wipe vms old.raw --method discard

Exit status: see extant --help.")]
pub struct WipeArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// How
    #[arg(long, value_name = "HOW", default_value = "zero")]
    pub method: Method,

    /// Also when a process has the volume open
    #[arg(long, short)]
    pub force: bool,

    #[command(flatten)]
    pub work: WorkArgs,
}

/// Ways to wipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Method {
    /// Overwrite written extents with zeros, in place; holes stay holes, and an image keeps its
    /// preallocation
    Zero,
    /// Free all space; the old data may remain on the disk
    Discard,
}

/// Make the holes and unwritten parts of a volume written, and keep all its data.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol materialize vms thin.raw
  extant vol materialize vms thin.raw --background

Exit status: see extant --help.")]
pub struct MaterializeArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Give parts shared with other volumes (reflinks) space of their own
    #[arg(long)]
    pub unshare: bool,

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(super) fn run(args: &WipeArgs, display: &Display, cancel: &CancelToken) -> Result<String> {
    let operation = Operation::Wipe(Wipe {
        volume: args.volume.volume.clone(),
        method: match args.method {
            Method::Zero => WipeMethod::Zero,
            Method::Discard => WipeMethod::Discard,
        },
        force: args.force,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}

pub(super) fn materialize(
    args: &MaterializeArgs,
    display: &Display,
    cancel: &CancelToken,
) -> Result<String> {
    let operation = Operation::Materialize(Materialize {
        volume: args.volume.volume.clone(),
        unshare: args.unshare,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}
