//! `extant assign`: allocation passed down to every layer below a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_hostfs::AssignReport;
use extant_space::{ByteRange, ByteSize, CancelToken, Control, Error, ErrorKind, Result};
use serde::Serialize;

use crate::arguments::{OutputArgs, parse_size};
use crate::file_location::{FileLocation, refuse_export};
use crate::progress::Display;
use crate::{exit, layers, print};

/// Allocate a file in every layer below it, so that no write to it allocates further down.
///
/// The holes of the file are allocated, then the places of its extents in the file that its loop
/// device is over, and so on down to a disk. Data is preserved, none is written, and the file may
/// be in use. Known layers are ext4 and XFS, partitions, loop devices, linear and striped volumes
/// (LVM), and the arrays linear, raid0 and raid1 (md); a file above other layers is refused by
/// name. Allocated space is unwritten: extant materialize --through writes it.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant assign /mnt/loop/db                  the whole file
  extant assign -o 1GiB -l 512MiB /mnt/loop/db
  extant assign --json /mnt/loop/db | jq .layers

Exit status: see extant --help.")]
pub struct AssignArgs {
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

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Serialize)]
struct Assigned {
    #[serde(flatten)]
    location: FileLocation,
    assigned_bytes: u64,
    #[serde(flatten)]
    report: AssignReport,
}

/// Assigns the file and prints its allocation.
pub fn run(args: &AssignArgs, cancel: &CancelToken) -> ExitCode {
    let progress = &args.output.progress;
    let result = progress.show(|display| {
        refuse_export(&args.file)?;
        let range = range(&args.file, args.offset, args.length)?;
        let control = Control::new(cancel, display);
        let report = extant_hostfs::assign(&args.file, Some(range), control)
            .map_err(|error| error.at(&args.file))?;
        Ok(if args.output.json {
            display.json_text(&Assigned {
                location: FileLocation::new(&args.file, None),
                assigned_bytes: report.allocated_bytes,
                report,
            })
        } else {
            describe(args, &report, display)
        })
    });
    match result {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

/// The range of `--offset` and `--length`.
///
/// # Errors
/// `InvalidArgument` for one that ends past 64 bits.
pub fn range(file: &Path, offset: ByteSize, length: Option<ByteSize>) -> Result<ByteRange> {
    let length = length.map_or(u64::MAX - offset.0, |size| size.0);
    ByteRange::at(offset.0, length).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument)
            .at(file)
            .detail("the range ends past 2^64 bytes")
    })
}

fn describe(args: &AssignArgs, report: &AssignReport, display: &Display) -> String {
    let mut out = format!(
        "{}: {} allocated in the file and in {} {} below, {} of them new in the file",
        print::path(&args.file),
        ByteSize(report.range.len()),
        report.layers.len(),
        if report.layers.len() == 1 {
            "layer"
        } else {
            "layers"
        },
        ByteSize(report.allocated_bytes),
    );
    let time = format!("{:.2} s{}", report.elapsed_seconds, display.pauses());
    print::row(&mut out, "time", time);
    layers::describe(&mut out, &report.layers);
    for disk in &report.disks {
        print::row(&mut out, "disk", disk);
    }
    out
}
