//! `extant materialize`: holes and unwritten parts become written zeros.

mod in_image;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_hostfs::{Exclusion, MaterializeOptions, MaterializeReport, Reach, Shared};
use extant_image::{Format, ReferencedFiles, open_file, open_path};
use extant_space::{
    ByteSize, CancelToken, Control, Error, ErrorKind, ExtentState, Result, SpaceFile,
};
use serde::Serialize;

use crate::arguments::{OutputArgs, PaceArgs, parse_size};
use crate::assign::range;
use crate::create::{checked, describe_plan};
use crate::file_location::{FileLocation, refuse_export};
use crate::image::{self, ChainArgs, Facts, LookArgs, change};
use crate::image_format::ImageFormat;
use crate::image_format::{self, Meaning};
use crate::in_image::InImageArgs;
use crate::progress::Display;
use crate::{exit, layers, print};

/// Make the holes and unwritten parts of a file written, and preserve its data.
///
/// Of a qcow2 image, recognised by its name and its contents, the guest's disk becomes fully
/// allocated, as by extant image materialize; --format raw takes the file literally.
///
/// No other process may have the file open meanwhile: data written between reading the map and
/// writing zeros would be lost. A write lease excludes them; on file systems where it excludes only
/// this machine (FUSE, virtiofs, 9p, some network file systems) the file is refused without
/// --shared. After a cancel or a crash the data is unchanged, and running it again does the rest.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant materialize thin.raw                 the whole file
  extant materialize -o 1GiB -l 512MiB db     a part of it
  extant materialize --background --rate 50M thin.raw
  extant materialize --in disk.img /var/db    a file inside an ext4 image
  extant materialize --through /mnt/loop/db   in the file of the loop device too

Exit status: see extant --help.")]
pub struct MaterializeArgs {
    /// The file
    pub file: PathBuf,

    /// Format: raw, the file itself; qcow2, an image whose disk is materialized [default: by its
    /// name]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// First byte of the range
    #[arg(long, short, value_name = "OFF", value_parser = parse_size, default_value = "0",
          allow_negative_numbers = true)]
    pub offset: ByteSize,

    /// Length of the range [default: up to the end of the file]
    #[arg(long, short, value_name = "LEN", value_parser = parse_size,
          allow_negative_numbers = true)]
    pub length: Option<ByteSize>,

    /// Do not exclude other processes: for a file whose holes no process writes
    #[arg(long, conflicts_with = "image")]
    pub shared: bool,

    /// Give parts shared with other files (reflinks) space of their own
    #[arg(long, conflicts_with = "image")]
    pub unshare: bool,

    /// Make the file's extents in the layers below written as well: the files of loop devices
    #[arg(long, conflicts_with = "image")]
    pub through: bool,

    #[command(flatten)]
    pub pace: PaceArgs,

    #[command(flatten)]
    pub inside: InImageArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl MaterializeArgs {
    fn options(&self) -> Result<MaterializeOptions> {
        let range = range(&self.file, self.offset, self.length)?;
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
            reach: if self.through {
                Reach::Layers
            } else {
                Reach::File
            },
        })
    }
}

/// Materializes the file and prints the result.
pub fn run(args: &MaterializeArgs, cancel: &CancelToken) -> ExitCode {
    let progress = &args.output.progress;
    let result = progress.show(|display| {
        let options = args.options()?;
        let control = Control::new(cancel, display);
        match &args.inside.image {
            None => on_host(args, &options, control),
            Some(image) => in_image::materialize(args, image, options.range, control),
        }
        .map(|done| match done {
            Done::Disk(done) => done.said(&args.output, display),
            Done::File(told) if args.output.json => display.json_text(&told),
            Done::File(told) => describe(args, &told.report, display),
        })
    });
    match result {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

/// Result of a materialize.
pub enum Done {
    File(Box<MaterializeOutput>),
    Disk(Box<image::Done>),
}

/// A materialized file, in JSON.
#[derive(Serialize)]
pub struct MaterializeOutput {
    #[serde(flatten)]
    pub facts: Facts,
    #[serde(flatten)]
    pub report: MaterializeReport,
    written_bytes: u64,
}

impl MaterializeOutput {
    pub fn new(facts: Facts, report: MaterializeReport) -> Self {
        Self {
            written_bytes: report.zeroed_bytes,
            facts,
            report,
        }
    }
}

fn on_host(
    args: &MaterializeArgs,
    options: &MaterializeOptions,
    control: Control<'_>,
) -> Result<Done> {
    let meaning = match args.format {
        Some(ImageFormat::Raw) => Meaning::File,
        // Closed before the file is opened exclusively.
        _ => args.meaning(&*open_file(&args.file)?)?,
    };
    if meaning == Meaning::Disk {
        let look = LookArgs {
            file: args.file.clone(),
            format: Some(ImageFormat::Qcow2),
            image: None,
        };
        let done = change(
            &look,
            ChainArgs { chain: false },
            &args.pace,
            |target, format| {
                image::Done::of(target, format, FileLocation::new(&args.file, None), control)
            },
        );
        return done.map(Box::new).map(Done::Disk);
    }
    refuse_export(&args.file)?;
    let report = extant_hostfs::materialize(&args.file, options, control)?;
    let layer = open_path(&args.file, Some(Format::Raw), ReferencedFiles::Ignore)?;
    let facts = Facts::of(FileLocation::new(&args.file, None), &layer)?;
    Ok(Done::File(Box::new(MaterializeOutput::new(facts, report))))
}

impl MaterializeArgs {
    /// Whether the file or the disk in it is meant, and that all options are for that.
    ///
    /// # Errors
    /// `Unsupported` where name and contents contradict each other.
    pub fn meaning(&self, file: &dyn SpaceFile) -> Result<Meaning> {
        let said = self.format.map(Format::from);
        let meaning =
            image_format::meaning(&self.file, said, file).map_err(|error| error.at(&self.file))?;
        let is_for_files = self.offset.0 != 0
            || self.length.is_some()
            || self.shared
            || self.unshare
            || self.through;
        match meaning {
            Meaning::Disk if is_for_files => Err(Error::new(ErrorKind::InvalidArgument)
                .at(&self.file)
                .detail("--offset, --length, --shared, --unshare and --through are for files, and the disk in an image is materialized as a whole")
                .advice("--format raw takes the file as it is")),
            meaning => Ok(meaning),
        }
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
    if report.zeroed_below_bytes > 0 {
        let bytes = ByteSize(report.zeroed_below_bytes);
        print::row(&mut out, "through", format!("{bytes} made written below"));
    }
    let rate = report.zeroed_bytes as f64 / report.elapsed_seconds.max(1e-9);
    let mut time = format!("{:.2} s", report.elapsed_seconds);
    if report.zeroed_bytes > 0 {
        time.push_str(&format!(", {}/s", ByteSize(rate as u64)));
    }
    time.push_str(&display.pauses());
    print::row(&mut out, "time", time);
    if args.output.verbose {
        display.describe_disk(&mut out);
    }
    if let Some(plan) = &report.plan {
        print::row(&mut out, "how", &plan.reason);
        if args.output.verbose {
            describe_plan(&mut out, plan);
        }
    }
    let checked = checked(report.verified, ExtentState::Written);
    print::row(&mut out, "checked", checked);
    layers::describe(&mut out, &report.layers);
    out
}
