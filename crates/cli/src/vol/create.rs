//! `extant vol create`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use extant_image::{Format, Preallocation};
use extant_pool::{CreateVolume, Operation, Verification, VolumeName};
use extant_space::{ByteSize, CancelToken, Result};

use super::work::{WorkArgs, work};
use crate::arguments::{parse_mode, parse_size};
use crate::image_format::{ImageFormat, Mode};
use crate::image_options::{self, ImageOptionList};
use crate::pool::{PoolArgs, xml};
use crate::progress::Display;
use crate::{complete, image_format};

/// Make a new volume.
///
/// The space is reserved before anything is written: the command fails at once, or has its space.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol create vms web.raw 20GiB                    zeroed and written
  extant vol create vms db.raw 1TiB --allocation 50GiB    the first part written
  extant vol create vms big.raw 500GiB --background --detach
  extant vol create bare web 20GiB --verify full         all of it is read back
  extant vol create vms web.qcow2 20GiB                  every cluster mapped, zeroed and written
  extant vol create vms thin.qcow2 1TiB --preallocation off -o cluster_size=2M
  extant vol create vms top.qcow2 20GiB -o backing_file=base.raw,backing_fmt=raw
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

    /// Take name, capacity, allocation, format with its options, and permissions from libvirt's XML
    /// of a volume
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["volume", "capacity", "allocation", "format", "words", "mode"]
    )]
    pub xml: Option<PathBuf>,

    /// Allocate only the first part; the rest is sparse. For qcow2, --preallocation is the mode
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub allocation: Option<ByteSize>,

    /// Preallocation [default: as the pool, or full; with a backing file off; with --xml as
    /// described]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// The format [default: by the end of the name, .qcow2 or raw]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// Options of qcow2, as for extant create. A backing file is recorded, and not opened
    #[arg(short = 'o', long = "options", value_name = "NAME=VALUE,...")]
    #[arg(add = ArgValueCompleter::new(complete::words(image_options::NAMES)))]
    pub words: Vec<String>,

    /// Content to read and verify before the volume has its name; full: every byte of a raw volume
    #[arg(long, value_name = "WHAT", default_value = "sample")]
    pub verify: VerifyArg,

    /// Permissions of the file
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, default_value = "0600")]
    pub mode: u32,

    /// Turn copy-on-write off for the file (as chattr +C; btrfs)
    #[arg(long)]
    pub nocow: bool,

    #[command(flatten)]
    pub work: WorkArgs,
}

/// Verified content, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum VerifyArg {
    /// Samples
    Sample,
    /// All of it
    Full,
}

pub(super) fn run(args: &CreateArgs, display: &Display, cancel: &CancelToken) -> Result<String> {
    let said = args.preallocation.map(Preallocation::from);
    let of_pool = args.pool.open()?.definition().limits().preallocation.into();
    let mut operation = match (&args.volume, args.capacity, &args.xml) {
        (Some(volume), Some(capacity), _) => {
            let format = image_format::of_new(Path::new(volume.as_str()), args.format)?;
            let words = ImageOptionList::parse(&args.words, format)?;
            let mut create = CreateVolume::new(volume.clone(), capacity.0, of_pool);
            create.format = format;
            create.qcow2 = (format == Format::Qcow2).then_some(words.qcow2);
            let said = said.or(words.preallocation);
            create.set_space(said, of_pool, args.allocation.map(|size| size.0))?;
            create.mode = args.mode;
            Operation::Create(create)
        }
        (_, _, Some(path)) => {
            let read = extant_libvirt::VolumeXml::read(&xml::read(path)?);
            read.and_then(|volume| volume.operation(said, of_pool))
                .map_err(|error| error.at(path))?
        }
        _ => unreachable!("clap wants one or the other"),
    };
    if let Operation::Create(create) = &mut operation {
        create.nocow |= args.nocow;
        create.verification = match args.verify {
            VerifyArg::Sample => Verification::Sample,
            VerifyArg::Full => Verification::Full,
        };
    }
    work(&args.pool, &args.work, operation, display, cancel)
}
