//! `extant vol resize`.

use clap::Args;
use extant_image::Preallocation;
use extant_pool::{Operation, Resize};
use extant_space::{CancelToken, Result};

use super::work::{VolumeArgs, WorkArgs, work};
use crate::arguments::{Change, parse_change};
use crate::image_format::Mode;
use crate::progress::Display;

/// Give a volume another capacity.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol resize vms web.raw 30GiB
  extant vol resize vms web.raw +10GiB
  extant vol resize vms web.raw 10GiB --shrink
  extant vol resize vms web.qcow2 40GiB --preallocation falloc

Exit status: see extant --help.")]
pub struct ResizeArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Its logical size afterwards, or +SIZE or -SIZE for a change of it
    #[arg(value_parser = parse_change, allow_hyphen_values = true)]
    pub capacity: Change,

    /// Preallocation of the new part [default: as the pool, or full; of an image with a backing
    /// file off]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// Allow a smaller capacity: data beyond it is lost
    #[arg(long)]
    pub shrink: bool,

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(super) fn run(args: &ResizeArgs, display: &Display, cancel: &CancelToken) -> Result<String> {
    let volume = &args.volume.volume;
    let pool = || args.volume.pool.open();
    let preallocation = match args.preallocation {
        Some(mode) => Preallocation::from(mode),
        None => pool()?.preallocation_of(volume)?,
    };
    let capacity_bytes = match args.capacity {
        Change::To(size) => size,
        change => {
            let pool = pool()?;
            let now = pool.volume(volume)?.capacity_bytes;
            change
                .of(now)
                .map_err(|error| error.at(pool.path_of(volume)))?
        }
    };
    let operation = Operation::Resize(Resize {
        volume: volume.clone(),
        capacity_bytes,
        preallocation,
        shrink: args.shrink,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}
