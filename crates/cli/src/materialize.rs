//! `extant materialize`: holes and unwritten parts become written zeros.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_hostfs::{Exclusion, MaterializeOptions, MaterializeReport, Shared};
use extant_space::{ByteRange, ByteSize, CancelToken, Control, Error, ErrorKind, Result};

use crate::arguments::{OutputArgs, PaceArgs, parse_size};
use crate::create::describe_plan;
use crate::inside::{self, InsideArgs};
use crate::progress::Display;
use crate::{exit, print};

/// Make the holes and unwritten parts of a file written, and keep all its data.
///
/// Nobody else may have the file open meanwhile, as data written between the look at a hole and
/// the zeros put there would be lost. A write lease excludes them; on file systems where it
/// excludes only this machine (FUSE, virtiofs, 9p, some network file systems) the file is refused
/// without --shared. After a cancel or a crash the data is as before, and running again does what
/// is left.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant materialize thin.raw                 the whole file
  extant materialize -o 1GiB -l 512MiB db     a part of it
  extant materialize --background --rate 50M thin.raw
  extant materialize --in disk.img /var/db    a file inside an ext4 image

Exit status: see extant --help.")]
pub struct MaterializeArgs {
    /// The file
    pub file: PathBuf,

    /// First byte of the range
    #[arg(long, short, value_name = "OFF", value_parser = parse_size, default_value = "0",
          allow_negative_numbers = true)]
    pub offset: ByteSize,

    /// Length of the range [default: up to the end of the file]
    #[arg(long, short, value_name = "LEN", value_parser = parse_size,
          allow_negative_numbers = true)]
    pub length: Option<ByteSize>,

    /// Do not keep others out: for when nobody writes to the holes
    #[arg(long, conflicts_with = "image")]
    pub shared: bool,

    /// Give parts shared with other files (reflinks) space of their own
    #[arg(long, conflicts_with = "image")]
    pub unshare: bool,

    #[command(flatten)]
    pub pace: PaceArgs,

    #[command(flatten)]
    pub inside: InsideArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl MaterializeArgs {
    fn options(&self) -> Result<MaterializeOptions> {
        let length = self.length.map_or(u64::MAX - self.offset.0, |size| size.0);
        let range = ByteRange::at(self.offset.0, length).ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument)
                .at(&self.file)
                .detail("the range ends past 2^64 bytes")
        })?;
        Ok(MaterializeOptions {
            range: Some(range),
            exclusion: if self.shared {
                Exclusion::Shared
            } else {
                Exclusion::Lease
            },
            shared: if self.unshare {
                Shared::Unshare
            } else {
                Shared::Refuse
            },
            pace: self.pace.pace(),
        })
    }
}

/// Materializes the file and tells what was done.
pub fn run(args: &MaterializeArgs, cancel: &CancelToken) -> ExitCode {
    let progress = &args.output.progress;
    let result = progress.show(|display| {
        let options = args.options()?;
        let control = Control::new(cancel, display);
        match &args.inside.image {
            None => extant_hostfs::materialize(&args.file, &options, control),
            Some(image) => inside::materialize(args, image, options.range, control),
        }
        .map(|report| match args.output.json {
            true => display.json_text(&report),
            false => describe(args, &report, display),
        })
    });
    match result {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

fn describe(args: &MaterializeArgs, report: &MaterializeReport, display: &Display) -> String {
    let mut out = format!(
        "{}: {} zeroed and written, {} were written already",
        match &args.inside.image {
            None => print::path(&args.file),
            Some(image) => format!("{}:{}", print::path(image), print::path(&args.file)),
        },
        ByteSize(report.zeroed_bytes),
        ByteSize(report.already_written_bytes)
    );
    if report.unshared_bytes > 0 {
        print::row(&mut out, "unshared", ByteSize(report.unshared_bytes));
    }
    let rate = report.zeroed_bytes as f64 / report.elapsed_seconds.max(1e-9);
    let mut time = format!("{:.2} s", report.elapsed_seconds);
    if report.zeroed_bytes > 0 {
        time.push_str(&format!(", {}/s", ByteSize(rate as u64)));
    }
    time.push_str(&display.pauses());
    print::row(&mut out, "time", time);
    if let Some(plan) = &report.plan {
        print::row(&mut out, "how", &plan.reason);
        if args.output.verbose {
            describe_plan(&mut out, plan);
        }
    }
    out
}
