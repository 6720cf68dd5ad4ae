//! `extant create`: a new file or image whose space is really there.

mod in_image;

use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use extant_hostfs::{
    CopyOnWrite, CreateOptions, Existing, MapSource, OnFailure, Plan, Reach, Verified,
};
use extant_image::{
    Format, ImageOptions, Preallocation, Qcow2Info, ReferencedFiles, check_backing, open_path,
};
use extant_space::{
    ByteSize, CancelToken, Control, Error, ErrorKind, ExtentState, LayerStates, MapSummary, Result,
};
use serde::Serialize;

use crate::arguments::{OutputArgs, PaceArgs, parse_mode, parse_size};
use crate::file_location::{FileLocation, refuse_export};
use crate::image_format::{ImageFormat, Mode};
use crate::image_options::{self, ImageOptionList};
use crate::in_image::InImageArgs;
use crate::progress::Display;
use crate::{complete, exit, image_format, layers, print};

/// Make a new file or disk image of SIZE bytes with written space.
///
/// The file appears under its name only when it is complete. After a cancel or an error nothing
/// is left (see --keep-partial); after a crash or a kill there is a file .NAME.extant-partial, from
/// which the same command resumes.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant create vm.raw 20GiB                         zeroed and written, as fast as the disk goes
  extant create vm.raw 20GiB --background            the same, yielding to others
  extant create vm.raw 20GiB --preallocation falloc  reserved, unwritten (as fallocate -l)
  extant create vm.raw 1TiB --allocation 20GiB       the first 20 GiB written, the rest sparse
  extant create --through /mnt/loop/db 20GiB         written in the file of the loop device too
  extant create --in disk.img /var/swap 1GiB         a file inside an ext4 image
  extant create vm.qcow2 20GiB                       a qcow2 image, every cluster mapped and written
  extant create vm.qcow2 20GiB --preallocation off   one that grows
  extant create vm.qcow2 1TiB -o cluster_size=2M,lazy_refcounts=on
  extant create --force --format qcow2 /dev/sdx 1TiB  on a disk, replacing its contents

Sizes: 4096, 512k, 10G and 10GiB (1024), 10GB (1000).
Exit status: see extant --help.")]
pub struct CreateArgs {
    /// The file to make
    pub path: PathBuf,

    /// Its size (capacity)
    #[arg(value_parser = parse_size, allow_negative_numbers = true)]
    pub size: ByteSize,

    /// The format [default: by the end of the name, .qcow2 or raw]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// Preallocation [default: full, with a backing file off]
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// The mode if neither the option nor -o sets one; `None`: full, and off with a backing file.
    #[arg(skip)]
    pub default_preallocation: Option<Mode>,

    /// The backing file need not exist yet.
    #[arg(skip)]
    pub is_backing_unchecked: bool,

    /// Options of qcow2, as in QEMU: cluster_size, refcount_bits, compat, lazy_refcounts,
    /// compression_type, backing_file with backing_fmt, data_file, data_file_raw, preallocation
    #[arg(short = 'o', long = "options", value_name = "NAME=VALUE,...")]
    #[arg(add = ArgValueCompleter::new(complete::words(image_options::NAMES)))]
    pub words: Vec<String>,

    /// Allocate only the first part; the rest is sparse
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub allocation: Option<ByteSize>,

    /// Make the space in the layers below as well: in the files of loop devices
    #[arg(long, conflicts_with = "image")]
    pub through: bool,

    #[command(flatten)]
    pub pace: PaceArgs,

    /// Turn copy-on-write off for the file (as chattr +C; btrfs)
    #[arg(long, conflicts_with = "image")]
    pub nocow: bool,

    /// Keep the partial file after a cancel or an error, for the next run
    #[arg(long, conflicts_with = "image")]
    pub keep_partial: bool,

    /// Replace PATH if it is a file, in one step, when the new one is complete; a disk is
    /// overwritten
    #[arg(long, short)]
    pub force: bool,

    /// Permissions of the file [default: 0666 without the umask; with --in 0644]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<u32>,

    #[command(flatten)]
    pub inside: InImageArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

impl CreateArgs {
    /// Options of the image; a plain file is a raw image.
    pub fn image(&self) -> Result<ImageOptions> {
        let format = image_format::of_new(&self.path, self.format)?;
        let words = ImageOptionList::parse(&self.words, format)?;
        let mut options = ImageOptions::new(format, self.size.0);
        let default = match (self.default_preallocation, &words.qcow2.backing) {
            (Some(mode), _) => mode.into(),
            (None, None) => Preallocation::Full,
            (None, Some(_)) => Preallocation::Off,
        };
        let asked = self.preallocation.map(Preallocation::from);
        options.preallocation = asked.or(words.preallocation).unwrap_or(default);
        options.qcow2 = words.qcow2;
        options.allocation_bytes = self.allocation.map(|size| size.0);
        options.check().map_err(|error| error.at(&self.path))?;
        Ok(options)
    }

    /// Refuses an empty file, which `image create` makes as qemu-img does.
    fn check_size(&self) -> Result<()> {
        if self.size.0 > 0 {
            return Ok(());
        }
        Err(Error::new(ErrorKind::InvalidArgument)
            .at(&self.path)
            .detail("the size must be at least 1 byte"))
    }

    /// The same for the library.
    pub fn options(&self, image: &ImageOptions) -> CreateOptions {
        let mut options = CreateOptions::new(self.size.0);
        options.allocation_bytes = match image.format {
            Format::Raw => image.allocation_bytes,
            // All of the file, which holds no more than that part.
            Format::Qcow2 => None,
        };
        options.preallocation = image.preallocation.space();
        options.pace = self.pace.pace();
        options.mode = self.mode;
        if self.force {
            options.existing = Existing::Replace;
        }
        if self.nocow {
            options.copy_on_write = CopyOnWrite::Disable;
        }
        if self.through {
            options.reach = Reach::Layers;
        }
        if self.keep_partial {
            options.on_failure = OnFailure::KeepPartial;
        }
        options
    }
}

/// Creates the file and prints the result.
pub fn run(args: &CreateArgs, cancel: &CancelToken) -> ExitCode {
    if image_options::asks_for_help(&args.words) {
        return print::text(image_options::HELP_WORD);
    }
    let progress = &args.output.progress;
    let made = progress.show(|display| {
        args.check_size()?;
        create(args, display, Control::new(cancel, display))
    });
    match made {
        Ok(said) => print::text(said),
        Err(error) => exit::report(&error, progress.error_style()),
    }
}

/// Returns the report, as text or JSON.
pub fn create(args: &CreateArgs, display: &Display, control: Control<'_>) -> Result<String> {
    let image = args.image()?;
    let made = match &args.inside.image {
        Some(place) => in_image::create(args, &image, place, control)?,
        None => create_on_host(args, &image, control)?,
    };
    Ok(if args.output.json {
        display.json_text(&made)
    } else {
        describe(&made, display, args.output.verbose)
    })
}

fn create_on_host(args: &CreateArgs, image: &ImageOptions, control: Control<'_>) -> Result<Made> {
    let options = args.options(image);
    let (report, qcow2) = match image.format {
        Format::Raw => {
            refuse_export(&args.path)?;
            let report = extant_image::create(&args.path, image, &options, control)?;
            (report, None)
        }
        Format::Qcow2 => {
            if !args.is_backing_unchecked {
                check_backing(&args.path, image)?;
            }
            let report = extant_image::create(&args.path, image, &options, control)?;
            let layer = open_path(&args.path, Some(Format::Qcow2), ReferencedFiles::Ignore)?;
            (report, layer.qcow2_info()?)
        }
    };
    let mut made = Made {
        place: FileLocation::new(&report.path, None),
        shown: report.path,
        format: image.format,
        capacity_bytes: image.disk_bytes(),
        size_bytes: report.size_bytes,
        allocated_bytes: report.map.allocated_bytes(),
        preallocation: image.preallocation,
        preallocated_bytes: preallocated_bytes(image),
        qcow2,
        written_bytes: report.written_bytes,
        zeroed_bytes: report.written_bytes,
        resumed_bytes: report.resumed_bytes,
        plan: report.plan,
        real_bytes: report.allocation_bytes,
        space: report.preallocation,
        verified: report.verified,
        layers: report.layers,
        map_source: Some(report.map_source),
        map: report.map,
        notes: report.notes,
        elapsed_seconds: report.elapsed_seconds,
    };
    if made.map.extents() == 0 {
        let found = std::fs::metadata(&args.path);
        made.allocated_bytes = match found {
            Ok(found) if found.is_file() => found.blocks() * BLOCK_BYTES,
            // A disk has all of its space.
            _ => made.size_bytes,
        };
    }
    Ok(made)
}

/// The number of first bytes of the disk that an image preallocates.
pub fn preallocated_bytes(image: &ImageOptions) -> u64 {
    match image.preallocation {
        Preallocation::Off => 0,
        _ => image.allocation_bytes.unwrap_or(image.disk_bytes()),
    }
}

/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Report of a new file or image, on the host or inside an ext4 image: docs/formats/json.md.
#[derive(Serialize)]
pub struct Made {
    #[serde(flatten)]
    pub place: FileLocation,
    /// The place in one line.
    #[serde(skip)]
    pub shown: PathBuf,
    pub format: Format,
    pub capacity_bytes: u64,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    pub preallocation: Preallocation,
    pub preallocated_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub qcow2: Option<Qcow2Info>,
    /// By this command.
    pub written_bytes: u64,
    /// The same, under the name that all results of work have.
    pub zeroed_bytes: u64,
    pub resumed_bytes: u64,
    pub plan: Option<Plan>,
    pub verified: Verified,
    /// The space of the file in the layers below it; none for layers without a map.
    pub layers: Vec<LayerStates>,
    /// The number of first bytes of the file that were made written, and the method.
    #[serde(skip)]
    pub real_bytes: u64,
    #[serde(skip)]
    pub space: extant_space::Preallocation,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub map_source: Option<MapSource>,
    pub map: MapSummary,
    pub notes: Vec<String>,
    pub elapsed_seconds: f64,
}

fn describe(report: &Made, display: &Display, verbose: bool) -> String {
    let mut out = match report.format {
        Format::Raw => format!(
            "{}: {}, {}",
            print::path(&report.shown),
            ByteSize(report.capacity_bytes),
            what(report)
        ),
        format => format!(
            "{}: {format} image of {}, {}",
            print::path(&report.shown),
            ByteSize(report.capacity_bytes),
            what_of_image(report)
        ),
    };
    if report.resumed_bytes > 0 {
        print::row(
            &mut out,
            "resumed",
            format!("{} were written already", ByteSize(report.resumed_bytes)),
        );
    }
    if let Some(rate) = rate(report) {
        print::row(
            &mut out,
            "time",
            format!(
                "{:.2} s, {}/s{}",
                report.elapsed_seconds,
                ByteSize(rate.get()),
                display.pauses()
            ),
        );
    }
    if verbose {
        display.describe_disk(&mut out);
    }
    if let Some(plan) = &report.plan {
        print::row(&mut out, "how", &plan.reason);
        if verbose {
            describe_plan(&mut out, plan);
        }
    }
    if report.map.extents() > 0 {
        print::row(
            &mut out,
            "extents",
            format!(
                "{}, in {} {} on the device; the largest {}",
                report.map.extents(),
                report.map.fragments(),
                if report.map.fragments() == 1 {
                    "piece"
                } else {
                    "pieces"
                },
                ByteSize(report.map.largest_extent_bytes())
            ),
        );
    }
    if report.real_bytes > 0 {
        let checked = checked(report.verified, report.space.state());
        print::row(&mut out, "checked", checked);
    }
    layers::describe(&mut out, &report.layers);
    for note in &report.notes {
        print::row(&mut out, "note", note);
    }
    out
}

/// The part that is real.
fn part(report: &Made) -> String {
    match report.preallocated_bytes {
        bytes if bytes == report.capacity_bytes => "all of it".to_owned(),
        bytes => format!("the first {} of it", ByteSize(bytes)),
    }
}

fn what(report: &Made) -> String {
    let part = part(report);
    match report.space {
        extant_space::Preallocation::Off => "sparse".to_owned(),
        extant_space::Preallocation::Falloc => format!("{part} reserved (unwritten)"),
        extant_space::Preallocation::Full => format!("{part} zeroed and written"),
    }
}

fn what_of_image(report: &Made) -> String {
    let part = part(report);
    match report.preallocation {
        Preallocation::Off => "sparse".to_owned(),
        Preallocation::Metadata => format!("{part} mapped (sparse)"),
        Preallocation::Falloc => format!("{part} mapped and reserved (unwritten)"),
        Preallocation::Full => format!("{part} mapped, zeroed and written"),
    }
}

/// Bytes a second, where bytes were written.
fn rate(report: &Made) -> Option<NonZeroU64> {
    let rate = report.zeroed_bytes as f64 / report.elapsed_seconds.max(1e-9);
    NonZeroU64::new(rate as u64)
}

/// The strategies before the one taken, and the details of I/O.
pub fn describe_plan(out: &mut String, plan: &Plan) {
    for rejected in &plan.rejected {
        print::row(
            out,
            "",
            format!("not {}: {}", rejected.strategy.name(), rejected.reason),
        );
    }
    if let Some(direct) = plan.direct_io {
        print::row(
            out,
            "",
            format!("direct I/O aligned to {} bytes", direct.offset_bytes),
        );
    }
}

/// How the bytes of a file were found to be in `state`.
pub fn checked(verified: Verified, state: ExtentState) -> String {
    match verified {
        Verified::ExtentMap => format!("the extent map shows every byte {state}"),
        Verified::AllocatedSize => {
            "the blocks counted by the file system; it shows no states of extents".to_owned()
        }
    }
}
