//! `extant image resize`.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use extant_image::{Preallocation, ResizeOptions, ResizeReport, resize};
use extant_space::{ByteSize, CancelToken, Control};
use serde::Serialize;

use super::change::change;
use super::{ChainArgs, Facts, LookArgs};
use crate::arguments::{Change, OutputArgs, PaceArgs, parse_change};
use crate::image_format::Mode;
use crate::progress::Display;
use crate::{exit, print};

/// Make the disk of an image larger or smaller.
///
/// The new part has the preallocation of the image, and none over a backing file, unless
/// --preallocation says otherwise. No other process may use the image meanwhile. A crash leaks
/// space inside the image at worst. Snapshots keep their size; persistent bitmaps can become larger
/// only. A data file is changed as well, with --chain. An image on a disk grows after its last
/// cluster; the disk keeps its size. Data of a longer backing file after the old end is hidden by
/// zeros; with --chain only where the backing file has data.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image resize vm.qcow2 40GiB
  extant image resize vm.qcow2 +10GiB --preallocation falloc
  extant image resize vm.qcow2 10GiB --shrink         data after that is lost
  extant image resize /dev/vg/vm 40GiB                after lvextend, with preallocation

The partitions and file systems inside are the guest's to resize.
Exit status: see extant --help.")]
pub struct ResizeArgs {
    #[command(flatten)]
    pub look: LookArgs,

    /// The new size, or +SIZE or -SIZE for a change of it
    #[arg(value_parser = parse_change, allow_hyphen_values = true)]
    pub size: Change,

    /// Preallocation of the new part [default: as the image, off over a backing file]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// Let it become smaller
    #[arg(long)]
    pub shrink: bool,

    #[command(flatten)]
    pub chain: ChainArgs,

    #[command(flatten)]
    pub pace: PaceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Resizes.
pub(super) fn run(args: &ResizeArgs, cancel: &CancelToken) -> ExitCode {
    let progress = &args.output.progress;
    let start = Instant::now();
    let result = progress.show(|display| {
        change(&args.look, args.chain, &args.pace, |target, format| {
            let size = args.size.of(target.layer(format)?.virtual_bytes())?;
            let options = ResizeOptions {
                preallocation: args.preallocation.map(Preallocation::from),
                may_shrink: args.shrink,
            };
            let control = Control::new(cancel, display);
            let report = resize(target, format, size, &options, control)?;
            let facts = Facts::of(args.look.place(), &target.layer(format)?)?;
            Ok(describe(args, &report, facts, start, display))
        })
    });
    match result {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

fn describe(
    args: &ResizeArgs,
    report: &ResizeReport,
    facts: Facts,
    start: Instant,
    display: &Display,
) -> String {
    if args.output.json {
        let old_bytes = report.old_bytes;
        return display.json_text(&ResizeOutput {
            facts,
            old_bytes,
            elapsed_seconds: start.elapsed().as_secs_f64(),
        });
    }
    let mut out = format!(
        "{}: {}, was {}",
        print::path(&args.look.file),
        ByteSize(report.new_bytes),
        ByteSize(report.old_bytes)
    );
    if report.new_bytes > report.old_bytes {
        let space = format!("preallocation {}", report.preallocation);
        print::row(&mut out, "new space", space);
    }
    if args.output.verbose {
        display.describe_disk(&mut out);
    }
    out
}

/// The result as JSON.
#[derive(Serialize)]
struct ResizeOutput {
    #[serde(flatten)]
    facts: Facts,
    /// The size of the disk before.
    old_bytes: u64,
    elapsed_seconds: f64,
}
