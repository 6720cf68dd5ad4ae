//! `extant vol resize`.

use clap::Args;
use extant_image::Preallocation;
use extant_pool::{Operation, Resize};
use extant_space::{ByteSize, CancelToken, Result};

use super::work::{VolumeArgs, WorkArgs, work};
use crate::arguments::parse_size;
use crate::image_format::Mode;
use crate::progress::Display;

/// Give a volume another capacity.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol resize vms web.raw 30GiB
  extant vol resize vms web.raw 10GiB --shrink
  extant vol resize vms web.qcow2 40GiB --preallocation falloc

Exit status: see extant --help.")]
pub struct ResizeArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Its logical size afterwards
    #[arg(value_parser = parse_size)]
    pub capacity: ByteSize,

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
    let preallocation = match args.preallocation {
        Some(mode) => Preallocation::from(mode),
        None => {
            let pool = args.volume.pool.open()?;
            pool.preallocation_of(&args.volume.volume)?
        }
    };
    let operation = Operation::Resize(Resize {
        volume: args.volume.volume.clone(),
        capacity_bytes: args.capacity.0,
        preallocation,
        shrink: args.shrink,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}
