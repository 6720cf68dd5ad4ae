//! `extant image convert`.

use std::io::{IsTerminal, Write};
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use extant_ext4::FollowLast;
use extant_hostfs::{CreateOptions, Existing, Pace};
use extant_image::detect::Purpose;
use extant_image::hold::{cluster_image, is_same_file, refuse_same_file};
use extant_image::{
    Conversion, CopyOptions, Format, ImageOptions, Layer, Preallocation, ReferencedFiles, convert,
    convert_to_cluster, open_path,
};
use extant_rbd::RbdName;
use extant_space::{
    BackgroundShare, ByteRange, ByteSize, CancelToken, Control, Error, ErrorKind, Phase, Result,
};
use serde::Serialize;

use super::{ChainArgs, Facts, LookArgs, Looked, OpenFile, ShareArgs};
use crate::arguments::{OutputArgs, parse_mode, parse_rate, parse_share, parse_size};
use crate::file_location::{FileLocation, refuse_export};
use crate::fs_image::{At, Image, SpaceBelow, changing};
use crate::image_format::{ImageFormat, Mode};
use crate::image_options::{self, ImageOptionList};
use crate::in_image::NewFile;
use crate::progress::Display;
use crate::{complete, exit, image_format, print};

/// Written to standard output at once.
const STDOUT_BYTES: u64 = 1 << 20;

/// Copy an image into a new one, of another format, shape or preallocation.
///
/// Holes are skipped and zeros stay zeros. With --chain the copy includes the data of the backing
/// files. Over its own backing file (-B) it stores only the differences. The new image appears
/// under its name when it is complete; an interrupted copy starts again.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image convert disk.raw vm.qcow2
  extant image convert vm.qcow2 disk.raw --preallocation full
  extant image convert --chain top.qcow2 one.qcow2 -o cluster_size=2M
  extant image convert --chain vm.qcow2 diff.qcow2 -B base.raw -F raw
  extant image convert disk.raw --into fs.img /images/vm.qcow2
  extant image convert disk.raw rbd:vms/web:id=me --preallocation full
  extant image convert -f qcow2 -O raw vm.qcow2 - | zstd > vm.raw.zst

Exit status: see extant --help.")]
pub struct ConvertArgs {
    #[command(flatten)]
    pub look: LookArgs,

    /// The new image; - for standard output, which gets the bytes of the disk
    pub target: PathBuf,

    /// Its format [default: by the end of its name, .qcow2 or raw]
    #[arg(long, short = 'O', value_name = "FORMAT")]
    pub to: Option<ImageFormat>,

    /// Its size, at least that of the source [default: that of the source]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<ByteSize>,

    /// Preallocation [default: off]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// Options of qcow2, as for extant create
    #[arg(short = 'o', long = "options", value_name = "NAME=VALUE,...")]
    #[arg(add = ArgValueCompleter::new(complete::words(image_options::NAMES)))]
    pub words: Vec<String>,

    /// Use this backing file, and store only the differences; its name as stored in the image,
    /// relative to the directory of TARGET (as -o backing_file)
    #[arg(long, short = 'B', value_name = "FILE", requires = "backing_format")]
    pub backing: Option<String>,

    /// The format of the backing file (as -o backing_fmt)
    #[arg(long, short = 'F', value_name = "FORMAT", requires = "backing")]
    pub backing_format: Option<ImageFormat>,

    #[command(flatten)]
    pub chain: ChainArgs,

    /// The new image is a file inside this ext4 image, disk or NBD export, which no other process
    /// may use meanwhile
    #[arg(long, value_name = "IMAGE", conflicts_with = "backing")]
    pub into: Option<PathBuf>,

    /// Threads that copy [default: two for each processor, at most 8]
    #[arg(long, short = 'm', value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,

    /// Copy in any order: always the case (for scripts made for qemu-img)
    #[arg(short = 'W', hide = true)]
    pub out_of_order: bool,

    /// 0 as for qemu-img: all of the new image has space (as --preallocation full)
    #[arg(short = 'S', value_name = "SIZE", value_parser = parse_size, conflicts_with = "preallocation")]
    pub sparse: Option<ByteSize>,

    /// Show a bar, also where stderr is no terminal
    #[arg(short = 'p')]
    pub bar: bool,

    #[command(flatten)]
    pub share: ShareArgs,

    /// Write at most this much a second, such as 100M or 1GB/s
    #[arg(long, short = 'r', value_name = "BYTES/s", value_parser = parse_rate)]
    pub rate: Option<NonZeroU64>,

    /// Yield to all other users of the disk of the new image; with PERCENT, use about that share of
    /// it beside them (0.1% to 100%)
    #[arg(long, value_name = "PERCENT%", require_equals = true, value_parser = parse_share)]
    pub background: Option<Option<BackgroundShare>>,

    /// Replace TARGET if it is a file, in one step, when the new one is complete
    #[arg(long)]
    pub force: bool,

    /// Permissions of the file [default: 0666 without the umask; with --into 0644]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<u32>,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// The result as JSON.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    facts: Facts,
    notes: Vec<String>,
    elapsed_seconds: f64,
}

/// Converts.
pub(super) fn run(args: &ConvertArgs, cancel: &CancelToken) -> ExitCode {
    if image_options::asks_for_help(&args.words) {
        return print::text(image_options::HELP_WORD);
    }
    let progress = if args.bar {
        &args.output.progress.with_bar()
    } else {
        &args.output.progress
    };
    let said = progress.show(|display| {
        let report = copy(args, Control::new(cancel, display))?;
        Ok(report.map(|report| {
            if args.output.json {
                display.json_text(&report)
            } else {
                describe(&report, display, args.output.verbose)
            }
        }))
    });
    match said {
        // Standard output has the disk.
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(said)) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

fn describe(report: &Report, display: &Display, verbose: bool) -> String {
    let info = &report.facts.info;
    let mut out = format!(
        "{}: {} image of {}, preallocation {}",
        print::path(&report.facts.place.shown()),
        info.format,
        ByteSize(info.virtual_bytes),
        info.preallocation
    );
    print::row(
        &mut out,
        "file",
        format!(
            "{}, of which {} have space",
            ByteSize(info.file_bytes),
            ByteSize(info.allocated_bytes)
        ),
    );
    let time = format!("{:.2} s{}", report.elapsed_seconds, display.pauses());
    print::row(&mut out, "time", time);
    if verbose {
        display.describe_disk(&mut out);
    }
    for note in &report.notes {
        print::row(&mut out, "note", note);
    }
    out
}

fn copy(args: &ConvertArgs, control: Control<'_>) -> Result<Option<Report>> {
    if args.sparse.is_some_and(|size| size.0 != 0) {
        return Err(Error::new(ErrorKind::InvalidArgument).detail(
            "-S is supported with 0 alone: zeros are detected in blocks of the file system",
        ));
    }
    if args.target.as_os_str() == "-" && args.into.is_none() {
        return to_stdout(args, control).map(|()| None);
    }
    let format = image_format::of_new(&args.target, args.to)?;
    if args.look.image.is_none() && args.into.is_none() {
        refuse_same_file(&args.look.file, &args.target)?;
    }
    let mut words = ImageOptionList::parse(&args.words, format)?;
    if let (Some(name), Some(backing_format)) = (&args.backing, args.backing_format) {
        words.set_backing(name, backing_format.into(), format)?;
    }
    let wanted = Wanted {
        args,
        format,
        words,
    };
    let _held = hold(args)?;
    let Some(into) = &args.into else {
        let looked = open_source(args, control)?;
        return wanted.on_host(&looked.layer, control).map(Some);
    };
    changing(into, SpaceBelow::default(), |image| {
        let is_same = |outer: &PathBuf| is_same_file(outer, into);
        if args.look.image.as_ref().is_some_and(is_same) {
            // It is open already, for changes.
            let node = image.resolve(&args.look.file, FollowLast::Yes)?;
            let layer = args.look.layer(Arc::new(node.file()?), Purpose::Use)?;
            wanted.inside(&layer.with_cancel(control.cancel), image, control)
        } else {
            let looked = open_source(args, control)?;
            wanted.inside(&looked.layer, image, control)
        }
    })
    .map(Some)
}

/// Opens the source with all files that it needs.
fn open_source(args: &ConvertArgs, control: Control<'_>) -> Result<Looked> {
    let follow = args.chain.follow();
    let looked = args.look.open(follow, Purpose::Use, control.cancel)?;
    let complete = looked.layer.check_complete();
    complete.map_err(|error| error.at(&args.look.file))?;
    Ok(looked)
}

/// Kept to the end: no process may write to the source meanwhile.
fn hold(args: &ConvertArgs) -> Result<Option<OpenFile>> {
    match args.look.image {
        None => args.look.open_file(args.share).map(Some),
        Some(_) => Ok(None),
    }
}

/// Writes the bytes of the disk to standard output, from the first to the last.
fn to_stdout(args: &ConvertArgs, control: Control<'_>) -> Result<()> {
    let refused = |what: &str| Err(Error::new(ErrorKind::InvalidArgument).detail(what));
    if args.to == Some(ImageFormat::Qcow2) || !args.words.is_empty() || args.backing.is_some() {
        return refused(
            "standard output takes the bytes of the disk in order: only -O raw can be written there",
        );
    }
    if args.preallocation.is_some() || args.sparse.is_some() || args.output.json {
        return refused(
            "standard output has no space to preallocate, and is no place for a report (--json)",
        );
    }
    let is_paced = args.rate.is_some() || args.background.is_some();
    if is_paced || args.force || args.mode.is_some() {
        return refused(
            "standard output is no file: --rate, --background, --force and --mode are for one",
        );
    }
    let mut out = std::io::stdout().lock();
    if out.is_terminal() {
        return refused("standard output is a terminal");
    }
    let _held = hold(args)?;
    let looked = open_source(args, control)?;
    let layer = &looked.layer;
    let size = args.size.map_or(layer.virtual_bytes(), |size| size.0);
    if size < layer.virtual_bytes() {
        return refused("--size is smaller than the disk");
    }
    let mut buffer = vec![0; STDOUT_BYTES as usize];
    for piece in ByteRange::new(0, size).chunks(STDOUT_BYTES) {
        control.cancel.check()?;
        let bytes = &mut buffer[..piece.len() as usize];
        bytes.fill(0);
        let inside = layer
            .virtual_bytes()
            .saturating_sub(piece.start())
            .min(piece.len());
        layer
            .read_at(&mut bytes[..inside as usize], piece.start())
            .map_err(|error| error.at(&args.look.file))?;
        out.write_all(bytes).map_err(print::output_error)?;
        control.report(Phase::Write, piece.end(), size);
    }
    out.flush().map_err(print::output_error)
}

/// The image that is wanted.
struct Wanted<'a> {
    args: &'a ConvertArgs,
    format: Format,
    words: ImageOptionList,
}

impl Wanted<'_> {
    fn image(&self, source: &Layer) -> ImageOptions {
        let size = self.args.size.map_or(source.virtual_bytes(), |size| size.0);
        let mut image = ImageOptions::new(self.format, size);
        image.preallocation = self.asked().unwrap_or(Preallocation::Off);
        image.qcow2 = self.words.qcow2.clone();
        image
    }

    /// The requested preallocation.
    fn asked(&self) -> Option<Preallocation> {
        let full = self.args.sparse.map(|_| Preallocation::Full);
        let asked = self.args.preallocation.map(Preallocation::from);
        asked.or(self.words.preallocation).or(full)
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

    fn pace(&self) -> Pace {
        Pace::new(self.args.background, self.args.rate)
    }

    fn on_host(&self, source: &Layer, control: Control<'_>) -> Result<Report> {
        let image = self.image(source);
        let mut file = CreateOptions::new(1);
        file.mode = self.args.mode;
        file.pace = self.pace();
        if self.args.force {
            file.existing = Existing::Replace;
        }
        let target = &self.args.target;
        if let Some(name) = cluster_image(target)? {
            return self.in_cluster(source, &name, control);
        }
        refuse_export(target)?;
        let done = convert(source, target, &image, &file, self.options(), control)?;
        let layer = open_path(target, Some(self.format), ReferencedFiles::Ignore)?;
        self.report(
            source,
            FileLocation::new(target, None),
            &layer,
            done.elapsed_seconds,
        )
    }

    fn in_cluster(&self, source: &Layer, name: &RbdName, control: Control<'_>) -> Result<Report> {
        let args = self.args;
        if args.force || args.mode.is_some() || args.background.is_some() {
            return Err(Error::new(ErrorKind::Unsupported)
                .at(&args.target)
                .detail("--force, --mode and --background are for files"));
        }
        let image = self.image(source);
        let elapsed = convert_to_cluster(source, name, &image, self.options(), control)?;
        let layer = open_path(&args.target, Some(self.format), ReferencedFiles::Ignore)?;
        let place = FileLocation::new(&args.target, None);
        self.report(source, place, &layer, elapsed.as_secs_f64())
    }

    fn inside(&self, source: &Layer, outer: &Image, control: Control<'_>) -> Result<Report> {
        let args = self.args;
        let image = self.image(source);
        let inner = args.target.as_os_str().as_encoded_bytes();
        let make = || {
            let pace = self.pace();
            let mut options = self.options();
            if pace.is_background() {
                options = options.in_background();
            }
            let conversion = Conversion::new(source, &image, options)?;
            let new = NewFile::begin(outer, &args.target, args.mode, args.force)?;
            let started = Instant::now();
            conversion.provision(&new.file()?, &pace, control)?;
            new.give_name()?;
            let seconds = started.elapsed().as_secs_f64();
            let layer = Layer::open(Arc::new(new.file()?), self.format)?;
            let place = FileLocation::new(&args.target, Some(outer.path()));
            self.report(source, place, &layer, seconds)
        };
        make().at_inner(outer, inner)
    }

    fn report(
        &self,
        source: &Layer,
        place: FileLocation,
        made: &Layer,
        elapsed_seconds: f64,
    ) -> Result<Report> {
        let mut notes = Vec::new();
        let before = match self.asked() {
            None => source.info()?.preallocation,
            Some(_) => Preallocation::Off,
        };
        if before != Preallocation::Off {
            notes.push(format!(
                "the source has preallocation {before}, and the copy has none; --preallocation {before} gives it the same"
            ));
        }
        Ok(Report {
            facts: Facts::of(place, made)?,
            notes,
            elapsed_seconds,
        })
    }
}
