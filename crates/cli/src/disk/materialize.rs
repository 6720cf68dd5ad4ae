//! `extant image materialize`.

use std::process::ExitCode;

use clap::Args;
use extant_image::materialize;
use extant_space::{ByteSize, CancelToken, Control};

use super::change::change;
use super::{ChainArgs, LookArgs};
use crate::arguments::{OutputArgs, PaceArgs};
use crate::{exit, print};

/// Make a thin image full in place: every cluster mapped, all of it written, its data kept.
///
/// Nobody else may use the image meanwhile. What snapshots share is copied, so that they keep theirs, and
/// what is compressed is expanded; the space that this had stays in the file for what comes. Images with a
/// backing file are refused: convert makes one full image of both. A data file is made full as well, with
/// --chain. A disk that an image lies on has its space: clusters are mapped to zeros there, as far as it has room.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image materialize vm.qcow2
  extant image materialize --background vm.qcow2
  extant image materialize /dev/vg/vm

After a cancel or a crash the data is as before, and running again does what is left.
Exit status: see extant --help.")]
pub struct MaterializeArgs {
    #[command(flatten)]
    pub look: LookArgs,

    #[command(flatten)]
    pub chain: ChainArgs,

    #[command(flatten)]
    pub pace: PaceArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Makes it full.
pub(super) fn run(args: &MaterializeArgs, cancel: &CancelToken) -> ExitCode {
    let progress = &args.output.progress;
    let result = progress.show(|display| {
        let control = Control::new(cancel, display);
        change(&args.look, args.chain, &args.pace, |target, format| {
            materialize(target, format, control)
        })
    });
    match result {
        Ok(report) if args.output.json => print::json(&report),
        Ok(report) => {
            let mut out = format!(
                "{}: all of {} mapped and written, {} were before",
                print::path(&args.look.file),
                ByteSize(report.virtual_bytes),
                ByteSize(report.already_written_bytes)
            );
            print::row(&mut out, "time", format!("{:.2} s", report.elapsed_seconds));
            print::text(out)
        }
        Err(error) => exit::report(&error, progress.error_style()),
    }
}
