//! The options, parsed as getopt(3) does: short ones combined, long ones abbreviated while
//! unambiguous, the last of two winning.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, FromArgMatches};

use super::{Failure, operation};
use crate::fs_image::{AssignMode, ZeroesMode};

/// Allocate, zero or free a range of a file, as fallocate(1) of util-linux does.
#[derive(Args, Clone, Debug)]
#[command(
    version,
    override_usage = "\
fallocate [-c|-i|-p|-w|-x|-z] [-o OFFSET] -l LENGTH [-n] [-v] FILE
       fallocate -d|-r [-o OFFSET] [-l LENGTH] [-v] FILE",
    after_help = "\
LENGTH and OFFSET are bytes, or take K, M, G, T, P, E (1024; also KiB ...) or KB ... (1000);
a leading 0 means octal, 0x hexadecimal.

Examples:
  extant fallocate -l 10G disk.raw              reserve space (unwritten)
  extant fallocate -w -l 10G disk.raw           zeros that are really written
  extant fallocate -p -o 1M -l 64K disk.raw     give a range back
  extant fallocate -d -v disk.raw               turn zeros into holes
  extant fallocate --in disk.img -w -l 1G /db   zeros in a file inside an ext4 image

Exit status: 0 done; 1 failed, also for wrong arguments; 130 interrupted."
)]
pub struct FallocateArgs {
    /// Remove the range; the rest moves down
    #[arg(long, short = 'c')]
    pub collapse_range: bool,

    /// Find blocks of zeros and make them holes (implies -n)
    #[arg(long, short = 'd')]
    pub dig_holes: bool,

    /// Insert a hole; the rest moves up
    #[arg(long, short = 'i')]
    pub insert_range: bool,

    /// Length of the range
    #[arg(long, short = 'l', allow_hyphen_values = true)]
    pub length: Option<OsString>,

    /// Keep the size of the file, also when space past its end is allocated
    #[arg(long, short = 'n')]
    pub keep_size: bool,

    /// First byte of the range [default: 0]
    #[arg(long, short = 'o', allow_hyphen_values = true)]
    pub offset: Option<OsString>,

    /// Make the range a hole (implies -n)
    #[arg(long, short = 'p')]
    pub punch_hole: bool,

    /// Print the holes of the file, and the zeros that could be holes; changes nothing
    #[arg(long, short = 'r')]
    pub report_holes: bool,

    /// Print a message for each operation
    #[arg(long, short = 'v')]
    pub verbose: bool,

    /// Write zeroes to the range: by the kernel, or by writing zeros if it refuses
    #[arg(
        long,
        short = 'w',
        visible_short_alias = 'Z',
        visible_alias = "force-zero"
    )]
    pub write_zeroes: bool,

    /// Fail with the kernel's own error where it does not write zeroes
    #[arg(long)]
    pub no_fallback: bool,

    /// Allocate with posix_fallocate(3), which always works and may be slower
    #[arg(long, short = 'x')]
    pub posix: bool,

    /// Zero the range and allocate it, usually unwritten
    #[arg(long, short = 'z')]
    pub zero_range: bool,

    /// Allocate, and write zeroes, in the layers below FILE as well: in the files of loop devices
    #[arg(long, conflicts_with = "image")]
    pub through: bool,

    /// FILE is inside this ext4 image, disk or NBD export, which no other process may use meanwhile
    #[arg(long = "in", value_name = "IMAGE")]
    pub image: Option<PathBuf>,

    /// With --in: whether new space is allocated on the device below at once
    #[arg(long, value_name = "WHEN", default_value = "try", requires = "image")]
    pub assign: AssignMode,

    /// With --in: zeros by metadata alone below the image, or written through every layer
    #[arg(
        long,
        value_name = "HOW",
        default_value = "through",
        requires = "image"
    )]
    pub zeroes: ZeroesMode,

    /// The file
    #[arg(value_name = "FILE")]
    pub files: Vec<OsString>,
}

/// Parses the arguments behind the program's name.
pub(super) fn parse(arguments: Vec<OsString>) -> Result<FallocateArgs, Failure> {
    let command = FallocateArgs::augment_args(clap::Command::new("fallocate"))
        .version(concat!("from extant ", env!("CARGO_PKG_VERSION")))
        .no_binary_name(true)
        .infer_long_args(true)
        .args_override_self(true);
    let matches = command
        .try_get_matches_from(arguments)
        .map_err(Failure::Usage)?;
    operation::check(&matches).map_err(Failure::Message)?;
    FallocateArgs::from_arg_matches(&matches).map_err(Failure::Usage)
}
