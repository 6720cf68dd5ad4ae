//! `extant image convert`.

use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use extant_ext4::FollowLast;
use extant_hostfs::{CreateOptions, Existing, Pace};
use extant_image::{Conversion, CopyOptions, Format, ImageOptions, Layer, Preallocation, convert};
use extant_space::{ByteSize, CancelToken, Control, Result};
use serde::Serialize;

use super::{ChainArgs, LookArgs};
use crate::arguments::{OutputArgs, parse_mode, parse_rate, parse_size};
use crate::create::{ImageFormat, Mode};
use crate::image::{AssignMode, At, Image, changing};
use crate::image_words::Words;
use crate::inside::{self, NewFile};
use crate::{exit, print};

/// Copy an image into a new one, of another format, shape or preallocation.
///
/// Holes are skipped and zeros stay zeros. With --chain the copy holds what the image shows through
/// its backing files. Over a backing file of its own (-B) it holds what differs from that. The new image appears under its name when it is complete;
/// a copy that was cut off begins again.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image convert disk.raw vm.qcow2
  extant image convert vm.qcow2 disk.raw --preallocation full
  extant image convert --chain top.qcow2 one.qcow2 -o cluster_size=2M
  extant image convert --chain vm.qcow2 diff.qcow2 -B base.raw -F raw
  extant image convert disk.raw --into fs.img /images/vm.qcow2

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

    /// Stand on this backing file, and hold only what differs from it; its name as the image will
    /// have it, from the directory of TARGET (as -o backing_file)
    #[arg(long, short = 'B', value_name = "FILE", requires = "backing_format")]
    pub backing: Option<String>,

    /// The format of the backing file (as -o backing_fmt)
    #[arg(long, short = 'F', value_name = "FORMAT", requires = "backing")]
    pub backing_format: Option<ImageFormat>,

    #[command(flatten)]
    pub chain: ChainArgs,

    /// The new image is a file inside this ext4 image or disk, which nobody else may use meanwhile
    #[arg(long, value_name = "IMAGE", conflicts_with = "backing")]
    pub into: Option<PathBuf>,

    /// Threads that copy [default: two for each processor, at most 8]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,

    /// Write at most this much a second, such as 100M or 1GB/s
    #[arg(long, value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    /// Give way to everybody else who uses the disk of the new image
    #[arg(long, conflicts_with = "into")]
    pub background: bool,

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
    let mut words = Words::parse(&args.words, format)?;
    if let (Some(name), Some(backing_format)) = (&args.backing, args.backing_format) {
        words.stand_on(name, backing_format.into(), format)?;
    }
    let wanted = Wanted {
        args,
        format,
        words,
    };
    // Held to the end: nobody writes to the source meanwhile.
    let _held = match args.look.image {
        None => Some(args.look.open_file()?),
        Some(_) => None,
    };
    let Some(into) = &args.into else {
        let looked = args.look.open(args.chain.follow(), control.cancel)?;
        return wanted.on_host(&looked.layer, control);
    };
    changing(into, AssignMode::default(), |image| {
        let is_same = |outer: &PathBuf| is_same_file(outer, into);
        match args.look.image.as_ref().is_some_and(is_same) {
            // It is open already, for changes.
            true => {
                let node = image.resolve(&args.look.file, FollowLast::Yes)?;
                let layer = args.look.layer(Arc::new(node.file()?))?;
                wanted.inside(&layer.with_cancel(control.cancel), image, control)
            }
            false => {
                let looked = args.look.open(args.chain.follow(), control.cancel)?;
                wanted.inside(&looked.layer, image, control)
            }
        }
    })
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    identity(one).is_some() && identity(one) == identity(other)
}

/// The image that is wanted.
struct Wanted<'a> {
    args: &'a ConvertArgs,
    format: Format,
    words: Words,
}

impl Wanted<'_> {
    fn image(&self, source: &Layer) -> ImageOptions {
        let size = self.args.size.map_or(source.virtual_bytes(), |size| size.0);
        let mut image = ImageOptions::new(self.format, size);
        let asked = self.args.preallocation.map(Preallocation::from);
        image.preallocation = asked
            .or(self.words.preallocation)
            .unwrap_or(Preallocation::Off);
        image.qcow2 = self.words.qcow2.clone();
        image
    }

    fn options(&self) -> CopyOptions {
        let mut options = CopyOptions {
            rate: self.args.rate,
            follow: self.args.chain.follow(),
            ..CopyOptions::default()
        };
        if let Some(threads) = self.args.threads {
            options.threads = threads.into();
        }
        options
    }

    fn on_host(&self, source: &Layer, control: Control<'_>) -> Result<Report> {
        let image = self.image(source);
        let mut file = CreateOptions::new(1);
        file.mode = self.args.mode;
        file.pace = match (self.args.background, self.args.rate) {
            (true, rate) => Pace::Background(rate),
            (false, Some(rate)) => Pace::Limit(rate),
            (false, None) => Pace::Full,
        };
        if self.args.force {
            file.existing = Existing::Replace;
        }
        let target = &self.args.target;
        let done = convert(source, target, &image, &file, self.options(), control)?;
        Ok(self.report(&image, done.size_bytes, done.elapsed_seconds))
    }

    fn inside(&self, source: &Layer, outer: &Image, control: Control<'_>) -> Result<Report> {
        let args = self.args;
        let image = self.image(source);
        let inner = args.target.as_os_str().as_encoded_bytes();
        let make = || {
            let conversion = Conversion::new(source, &image, self.options())?;
            let new = NewFile::begin(outer, &args.target, args.mode, args.force)?;
            let (file_bytes, seconds) = inside::convert(&new, outer, &conversion, control)?;
            Ok(self.report(&image, file_bytes, seconds))
        };
        make().at_inner(outer, inner)
    }

    fn report(&self, image: &ImageOptions, file_bytes: u64, elapsed_seconds: f64) -> Report {
        Report {
            path: self.args.target.to_string_lossy().into_owned(),
            format: self.format,
            virtual_bytes: image.disk_bytes(),
            preallocation: image.preallocation,
            file_bytes,
            elapsed_seconds,
        }
    }
}
