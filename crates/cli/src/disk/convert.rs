//! `extant image convert`.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_hostfs::{CreateOptions, Existing, Pace};
use extant_image::{CopyOptions, Format, ImageOptions, Preallocation, convert};
use extant_space::{ByteSize, CancelToken, Control, Result};
use serde::Serialize;

use super::{ChainArgs, LookArgs};
use crate::arguments::{OutputArgs, parse_mode, parse_rate, parse_size};
use crate::create::{ImageFormat, Mode};
use crate::image_words::Words;
use crate::{exit, print};

/// Copy an image into a new one, of another format, shape or preallocation.
///
/// Holes are skipped and zeros stay zeros. With --chain the copy holds what the image shows through
/// its backing files. The new image appears under its name when it is complete.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image convert disk.raw vm.qcow2
  extant image convert vm.qcow2 disk.raw --preallocation full
  extant image convert --chain top.qcow2 one.qcow2 -o cluster_size=2M

Exit status: see extant --help.")]
pub struct ConvertArgs {
    #[command(flatten)]
    pub look: LookArgs,

    /// The new image
    pub target: PathBuf,

    /// Its format [default: by the end of its name, .qcow2 or raw]
    #[arg(long, value_name = "FORMAT")]
    pub to: Option<ImageFormat>,

    /// Its size, at least that of the source [default: that of the source]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<ByteSize>,

    /// What is done about its space [default: off]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// Options of qcow2, as for extant create
    #[arg(short = 'o', long = "options", value_name = "NAME=VALUE,...")]
    pub words: Vec<String>,

    #[command(flatten)]
    pub chain: ChainArgs,

    /// Threads that copy [default: two for each processor, at most 8]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,

    /// Write at most this much a second, such as 100M or 1GB/s
    #[arg(long, value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    /// Replace TARGET if it is a file, in one step, when the new one is complete
    #[arg(long, short)]
    pub force: bool,

    /// Permissions of the file [default: 0666 without the umask]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<u32>,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    path: String,
    format: Format,
    virtual_bytes: u64,
    preallocation: Preallocation,
    file_bytes: u64,
    elapsed_seconds: f64,
}

/// Converts.
pub(super) fn run(args: &ConvertArgs, cancel: &CancelToken) -> ExitCode {
    let progress = &args.output.progress;
    match progress.show(|display| copy(args, Control::new(cancel, display))) {
        Ok(report) if args.output.json => print::json(&report),
        Ok(report) => {
            let mut out = format!(
                "{}: {} image of {}, preallocation {}",
                print::path(&args.target),
                report.format,
                ByteSize(report.virtual_bytes),
                report.preallocation
            );
            print::row(&mut out, "file", ByteSize(report.file_bytes));
            print::row(&mut out, "time", format!("{:.2} s", report.elapsed_seconds));
            print::text(out)
        }
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

fn copy(args: &ConvertArgs, control: Control<'_>) -> Result<Report> {
    let format = args
        .to
        .map_or_else(|| Format::of_name(&args.target), Format::from);
    let words = Words::parse(&args.words, format)?;
    // Held to the end: nobody writes to the source meanwhile.
    let _held = match args.look.image {
        None => Some(args.look.open_file()?),
        Some(_) => None,
    };
    let looked = args.look.open(args.chain.follow(), control.cancel)?;
    let source_bytes = looked.layer.virtual_bytes();
    let mut image = ImageOptions::new(format, args.size.map_or(source_bytes, |size| size.0));
    let asked = args.preallocation.map(Preallocation::from);
    image.preallocation = asked.or(words.preallocation).unwrap_or(Preallocation::Off);
    image.qcow2 = words.qcow2;
    let mut file = CreateOptions::new(1);
    file.mode = args.mode;
    file.pace = args.rate.map_or(Pace::Full, Pace::Limit);
    if args.force {
        file.existing = Existing::Replace;
    }
    let mut options = CopyOptions {
        rate: args.rate,
        ..CopyOptions::default()
    };
    if let Some(threads) = args.threads {
        options.threads = threads.into();
    }
    let done = convert(&looked.layer, &args.target, &image, &file, options, control)?;
    Ok(Report {
        path: args.target.to_string_lossy().into_owned(),
        format,
        virtual_bytes: image.disk_bytes(),
        preallocation: image.preallocation,
        file_bytes: done.size_bytes,
        elapsed_seconds: done.elapsed_seconds,
    })
}
