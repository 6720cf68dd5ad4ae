//! `extant image materialize`.

use std::process::ExitCode;

use clap::Args;
use extant_image::{Format, ImageFile, materialize};
use extant_space::{ByteSize, CancelToken, Control, Result};
use serde::Serialize;

use super::change::change;
use super::{ChainArgs, Facts, LookArgs};
use crate::arguments::{OutputArgs, PaceArgs};
use crate::file_location::FileLocation;
use crate::progress::Display;
use crate::{exit, print};

/// Make a thin image fully allocated in place: every cluster mapped and written, data preserved.
///
/// No other process may use the image meanwhile. Clusters shared with snapshots are copied, so that
/// snapshots keep theirs, and compressed ones are expanded; the freed space remains in the file for
/// later use. Images with a backing file are refused: convert merges both into one image. A data
/// file is materialized as well, with --chain. A disk that contains an image has its space:
/// clusters are mapped to zeros there, if it has room. An image of a Ceph cluster gets all its
/// objects.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image materialize vm.qcow2
  extant image materialize --background vm.qcow2
  extant image materialize /dev/vg/vm
  extant image materialize rbd:vms/vm

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
            Done::of(target, format, args.look.place(), control)
        })
        .map(|done| done.said(&args.output, display))
    });
    match result {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

/// The result: a fully allocated image, in JSON.
#[derive(Serialize)]
pub struct Done {
    #[serde(flatten)]
    facts: Facts,
    /// Bytes of the disk that were written before.
    already_written_bytes: u64,
    /// Those that are written now and were not.
    zeroed_bytes: u64,
    /// The same.
    written_bytes: u64,
    elapsed_seconds: f64,
}

impl Done {
    /// Makes the image in `target` full.
    pub fn of(
        target: &ImageFile,
        format: Format,
        place: FileLocation,
        control: Control<'_>,
    ) -> Result<Self> {
        let report = materialize(target, format, control)?;
        Ok(Self {
            facts: Facts::of(place, &target.layer(format)?)?,
            already_written_bytes: report.already_written_bytes,
            zeroed_bytes: report.virtual_bytes - report.already_written_bytes,
            written_bytes: report.virtual_bytes - report.already_written_bytes,
            elapsed_seconds: report.elapsed_seconds,
        })
    }

    /// As text or JSON.
    pub fn said(&self, output: &OutputArgs, display: &Display) -> String {
        if output.json {
            return display.json_text(self);
        }
        let mut out = format!(
            "{}: all of {} mapped and written, {} were before",
            print::path(&self.facts.place.shown()),
            ByteSize(self.facts.info.virtual_bytes),
            ByteSize(self.already_written_bytes)
        );
        let time = format!("{:.2} s{}", self.elapsed_seconds, display.pauses());
        print::row(&mut out, "time", time);
        if output.verbose {
            display.describe_disk(&mut out);
        }
        out
    }
}
