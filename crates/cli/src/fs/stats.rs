//! `extant fs stats`: the counters of a mount, or what an image says about its use.

mod image;
mod mount;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_image::hold::is_export;
use extant_space::{Error, Result};

use crate::print;

/// Print counters of the allocator, the journal and the cache of a mount, or what an image stores.
///
/// Counters are those of a running mount (extant mount), since it was mounted. An image that is not
/// mounted has none: what is printed for it is computed from what it stores.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs stats mnt                            the counters of the mount at the directory mnt
  extant fs stats --json mnt | jq .mballoc.reqs
  extant fs stats disk.img                       free extents by size, journal, lifetime writes, errors

The names are those of /proc/fs/ext4/*/mb_stats and fc_info, and of /proc/fs/jbd2/*/info, where the
kernel has the counter. Every user who can open the directory may read them.")]
pub struct StatsArgs {
    /// A directory in a mount of extant mount; or an image or disk
    #[arg(value_name = "IMAGE|DIR")]
    pub place: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Prints the statistics.
pub(super) fn run(args: &StatsArgs) -> Result<ExitCode> {
    let place = &args.place;
    let is_mount = !is_export(place)
        && fs::metadata(place)
            .map_err(|error| Error::from(error).at(place))?
            .is_dir();
    Ok(if is_mount {
        let counters = mount::Counters::of(place)?;
        if args.json {
            print::json(&counters)
        } else {
            print::text(counters.describe())
        }
    } else {
        let stored = image::Stored::of(place)?;
        if args.json {
            print::json(&stored)
        } else {
            print::text(stored.describe())
        }
    })
}
