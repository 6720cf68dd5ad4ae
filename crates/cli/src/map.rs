//! `extant map`: the extents of files, with states, flags, statistics and pictures.
//!
//! Every file is read in one pass that updates its statistics and the cells of its pictures; rows
//! and JSON are written as they are read. Memory does not grow with the number of extents, and with
//! the number of files only if a picture file is requested, up to its limit.
//!
//! Of a qcow2 image, recognised by its name and its contents, the guest's disk is mapped. A file
//! that cannot be mapped is reported on stderr and the others continue; the status is then 1, and
//! that of the error if nothing could be mapped.

mod below;
mod cell;
mod cells;
mod disk;
mod figures;
mod fill;
mod geometry;
mod html;
mod json;
mod listing;
mod names;
mod output;
mod picture;
mod png;
#[cfg(test)]
mod samples;
mod scan;
mod source;
mod svg;
mod table;
mod targets;
mod terminal;
mod walk;

use std::io::{self, BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use extant_hostfs::DeviceBelow;
use extant_image::Format;
use extant_space::{ByteRange, Error, LayerStates, MapSummary, Result, SpaceFile};
use unicode_width::UnicodeWidthStr;

use self::json::Json;
use self::listing::{Listing, Mapped, Opened, Unlisted};
use self::output::write_atomically;
use self::picture::Picture;
use self::scan::{Stopped, Visit, scan, scan_map};
use self::source::{HostSource, ImageSource, Source, shown};
use self::targets::Targets;
use self::terminal::{Charset, Detail, Paint, Terminal};
use self::walk::{Boundary, Hidden, MapFile};
use crate::exit::{self, Style};
use crate::file_location::refuse_export;
use crate::fs_image::Image;
use crate::image_format::ImageFormat;
use crate::signals::EndAtOnce;

pub use self::names::column;

const COLUMNS_DEFAULT: usize = 80;
/// Wider bars add no information and are hard to follow.
const COLUMNS_MAX: usize = 160;

/// Show the extents of files: their states, their locations, and fragmentation.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant map disk.raw                  a line of blocks, and the figures
  extant map -v disk.raw               every extent as well
  extant map --png map.png images/     a picture of every file below images/
  extant map --html map.html images/   a page with the picture and a table of the figures
  extant map --json disk.raw | jq .total.fragmentation_score
  extant map --in disk.img /var/lib    files inside an ext4 image
  extant map --through --in disk.img /db    and their space in the host file
  extant map --through --svg stack.svg /mnt/loop/db    each layer down to the disk

A file is extant where it is written and not shared: there an overwrite changes no
metadata of the file system. A fragment is a run on the device: an extent begins another
one where it is not contiguous with the last one, or as far behind it as the hole
between them is long. Of a qcow2 image the disk is mapped; --format raw maps the file.
Exit status: 0; 1 when some files could not be mapped; see extant --help when none could.")]
pub struct MapArgs {
    /// Files, or directories whose regular files are mapped (symbolic links are not followed, and
    /// of several names of a file the first is mapped)
    #[arg(required = true, value_name = "FILE|DIR")]
    pub paths: Vec<PathBuf>,

    /// Show the layers below each file as well, at the offsets of the file: the host file of an
    /// image, the file of a loop device; and the block devices between them, down to the disk
    #[arg(long)]
    pub through: bool,

    /// List every extent, with offsets and lengths in bytes
    #[arg(long, short = 'v', visible_short_alias = 'e', conflicts_with = "json")]
    pub extents: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Map hidden files below directories as well, whose names begin with a dot
    #[arg(long, short = 'a')]
    pub all: bool,

    /// Format of the files: raw, files; qcow2, images whose disks are mapped [default: by their
    /// names]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    #[command(flatten)]
    pub pictures: PictureArgs,

    /// Width of the text [default: that of the terminal, or 80]
    #[arg(long, value_name = "COLUMNS", value_parser = clap::value_parser!(u16).range(40..=1000))]
    pub width: Option<u16>,

    /// When to use colours; NO_COLOR in the environment turns `auto` off
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColorChoice,

    /// Stay on the file systems of the directories named
    #[arg(long, short = 'x', conflicts_with = "image")]
    pub one_file_system: bool,

    /// The files are inside this ext4 image, disk or NBD export
    #[arg(long = "in", value_name = "IMAGE")]
    pub image: Option<PathBuf>,
}

/// The files of pictures.
#[derive(Args, Clone, Debug, Default)]
pub struct PictureArgs {
    /// Write a picture to this file as SVG
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,

    /// Write a picture to this file as PNG
    #[arg(long, value_name = "OUT")]
    pub png: Option<PathBuf>,

    /// Write a page to this file as HTML: the picture, and the figures of each file. It is one
    /// file, for light and dark screens and for print
    #[arg(long, value_name = "OUT")]
    pub html: Option<PathBuf>,

    /// Replace picture files that are there
    #[arg(long)]
    pub force: bool,
}

impl PictureArgs {
    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.files().next().is_some()
    }

    fn files(&self) -> impl Iterator<Item = &Path> {
        let files = [&self.svg, &self.png, &self.html];
        files.into_iter().flatten().map(|path| &**path)
    }

    fn targets(&self) -> Result<Targets> {
        Targets::new(&self.files().collect::<Vec<_>>(), self.force)
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Maps the files and prints the requested output on stdout.
pub fn run(args: &MapArgs) -> Result<ExitCode> {
    let stdout = io::stdout();
    let paint = paint(args.color, &stdout);
    let is_terminal = stdout.is_terminal();
    let targets = args.pictures.targets()?;
    // The layers below an export are on its server.
    if args.through && args.image.is_none() {
        args.paths.iter().try_for_each(|path| refuse_export(path))?;
    }
    if let Some(image) = &args.image {
        targets.check_input(image)?;
    }
    let source = source(args)?;
    let out = BufWriter::with_capacity(64 << 10, stdout.lock());
    let done = if args.json {
        map_files(args, &*source, &targets, &mut Json::new(out), 1)
    } else {
        let detail = if args.extents {
            Detail::Extents
        } else {
            Detail::Bars
        };
        let longest = match args.image {
            None => longest_name(&args.paths),
            // It is not known yet whether they are directories.
            Some(_) => None,
        };
        // Names of layers are not known yet either.
        let longest = longest.filter(|_| !args.through);
        let columns = columns(args.width, is_terminal);
        let mut terminal =
            Terminal::new(out, columns, longest, paint, detail, Charset::of_terminal());
        let cells = terminal.bar_columns();
        map_files(args, &*source, &targets, &mut terminal, cells)
    };
    status(done)
}

/// The status of a run of [`map_files`].
fn status(done: std::result::Result<ExitCode, Stopped>) -> Result<ExitCode> {
    match done {
        Ok(status) => Ok(status),
        Err(Stopped::Map(error)) => Err(error),
        // The reader has closed the output.
        Err(Stopped::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(ExitCode::SUCCESS)
        }
        Err(Stopped::Output(error)) => Err(Error::from(error).during("write to stdout")),
    }
}

/// The whole command but its output. `Stopped::Map` is a picture that could not be written.
fn map_files(
    args: &MapArgs,
    source: &dyn Source,
    targets: &Targets,
    listing: &mut dyn Listing,
    cells: usize,
) -> std::result::Result<ExitCode, Stopped> {
    let ends = EndAtOnce::new();
    let has_picture = args.pictures.any();
    let cells = if has_picture {
        cells.max(picture::CELLS)
    } else {
        cells
    };
    let mut total = MapSummary::default();
    let mut drawn = Vec::new();
    let (mut files, mut errors) = (0, 0);
    let mut first_status = ExitCode::SUCCESS;
    for found in source.files(&args.paths) {
        if let (Ok(found), None) = (&found, &args.image) {
            targets.check_input(&found.path).map_err(Stopped::Map)?;
        }
        let mapped = found
            .map_err(Stopped::Map)
            .and_then(|found| map_file(args, &found, source, listing, cells));
        match mapped {
            Ok((mapped, layers)) => {
                files += 1;
                total.merge(&mapped.summary);
                for mapped in [vec![mapped], layers].concat() {
                    if has_picture && drawn.len() < picture::FILES_MAX {
                        drawn.push(mapped);
                    }
                }
            }
            Err(Stopped::Map(error)) => {
                let status = exit::report(&error, Style::Line);
                if errors == 0 {
                    first_status = status;
                }
                errors += 1;
            }
            Err(stopped) => return Err(stopped),
        }
    }
    listing
        .finish(&total, files, errors)
        .map_err(Stopped::Output)?;
    drop(ends);
    if has_picture {
        write_pictures(args, &drawn, &total, files).map_err(Stopped::Map)?;
    }
    Ok(match files {
        0 => first_status,
        _ if errors > 0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

fn map_file(
    args: &MapArgs,
    found: &MapFile,
    source: &dyn Source,
    listing: &mut dyn Listing,
    cells: usize,
) -> std::result::Result<(Mapped, Vec<Mapped>), Stopped> {
    let path = &*found.path;
    let file = source.open(path).map_err(Stopped::Map)?;
    let said = args.format.map(Format::from);
    let (file, format) = shown(found, said, file).map_err(|error| Stopped::Map(error.at(path)))?;
    let size_bytes = file.size().map_err(Stopped::Map)?;
    let devices = if args.through {
        source.devices_below(path)
    } else {
        Vec::new()
    };
    let opened = Opened::new(path, format, size_bytes);
    let opened = match (&args.image, format) {
        (None, Format::Raw) => opened.on(&devices),
        // It is on the layer below.
        _ => opened,
    };
    listing.begin(&opened).map_err(Stopped::Output)?;
    let summary = source.summary_for(path);
    let scanned = scan(
        &*file,
        size_bytes,
        summary,
        cells,
        &mut |extent, fragment| listing.extent(extent, fragment),
    );
    match scanned {
        Ok(scanned) => {
            let mapped = scanned.finish(opened);
            listing.end(&mapped).map_err(Stopped::Output)?;
            let layers = if args.through {
                map_layers(&*file, size_bytes, &devices, listing, cells)?
            } else {
                Vec::new()
            };
            Ok((mapped, layers))
        }
        Err(Stopped::Map(error)) => {
            let error = error.at(path);
            listing.fail(&error).map_err(Stopped::Output)?;
            Err(Stopped::Map(error))
        }
        Err(stopped) => Err(stopped),
    }
}

/// Maps the layers below `file`.
fn map_layers(
    file: &dyn SpaceFile,
    size_bytes: u64,
    devices: &[DeviceBelow],
    listing: &mut dyn Listing,
    cells: usize,
) -> std::result::Result<Vec<Mapped>, Stopped> {
    let span = ByteRange::new(0, size_bytes);
    let layers = LayerStates::of(file, span).map_err(Stopped::Map)?;
    let map_layer = |layer: &LayerStates| {
        let opened = Opened::layer(layer, size_bytes).on(devices);
        listing.begin(&opened).map_err(Stopped::Output)?;
        let read = &mut |visit: Visit<'_>| below::for_each_extent(file, layer, span, visit);
        let scanned = scan_map(
            read,
            span,
            MapSummary::default(),
            cells,
            &mut |extent, fragment| listing.extent(extent, fragment),
        )?;
        let mapped = scanned.finish(opened);
        listing.end(&mapped).map_err(Stopped::Output)?;
        Ok(mapped)
    };
    layers.iter().map(map_layer).collect()
}

impl MapArgs {
    /// Of one file with the layers below it, for other commands.
    pub fn through(path: &Path, image: Option<&Path>, pictures: &PictureArgs) -> Self {
        Self {
            paths: vec![path.to_owned()],
            through: true,
            extents: false,
            json: false,
            all: false,
            format: None,
            pictures: pictures.clone(),
            width: None,
            color: ColorChoice::Auto,
            one_file_system: false,
            image: image.map(Path::to_owned),
        }
    }

    /// The space of the file in each layer below it, and the devices in between.
    ///
    /// # Errors
    /// Those of opening the file, and of the maps.
    pub fn layers(&self) -> Result<(Vec<LayerStates>, Vec<DeviceBelow>)> {
        let path = &*self.paths[0];
        let source = source(self)?;
        let found = MapFile {
            path: path.to_owned(),
            is_argument: true,
        };
        let (file, _) = shown(&found, self.format.map(Format::from), source.open(path)?)
            .map_err(|error| error.at(path))?;
        let whole = ByteRange::new(0, file.size()?);
        Ok((LayerStates::of(&*file, whole)?, source.devices_below(path)))
    }

    /// Writes the pictures, if there are any, and prints nothing but errors.
    ///
    /// # Errors
    /// Those of the pictures' files.
    pub fn draw(&self) -> Result<ExitCode> {
        if !self.pictures.any() {
            return Ok(ExitCode::SUCCESS);
        }
        let targets = self.pictures.targets()?;
        if let Some(image) = &self.image {
            targets.check_input(image)?;
        }
        status(map_files(self, &*source(self)?, &targets, &mut Unlisted, 1))
    }
}

fn source(args: &MapArgs) -> Result<Box<dyn Source>> {
    let hidden = if args.all {
        Hidden::Show
    } else {
        Hidden::LeaveOut
    };
    if let Some(image) = &args.image {
        return Ok(Box::new(ImageSource(Image::look(image)?, hidden)));
    }
    let boundary = if args.one_file_system {
        Boundary::Stay
    } else {
        Boundary::Cross
    };
    Ok(Box::new(HostSource::new(boundary, hidden)))
}

fn write_pictures(
    args: &MapArgs,
    drawn: &[Mapped],
    total: &MapSummary,
    files_total: u64,
) -> Result<()> {
    let PictureArgs {
        svg,
        png,
        html,
        force,
    } = &args.pictures;
    let picture = Picture::new(drawn, total, files_total);
    if let Some(path) = svg {
        write_atomically(path, *force, &mut |out| svg::write(&picture, out))?;
    }
    if let Some(path) = png {
        write_atomically(path, *force, &mut |out| png::write(&picture, out))?;
    }
    if let Some(path) = html {
        write_atomically(path, *force, &mut |out| {
            html::write(&picture, drawn, total, files_total, out)
        })?;
    }
    Ok(())
}

fn paint(choice: ColorChoice, stdout: &io::Stdout) -> Paint {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let wanted = match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => stdout.is_terminal() && !is_set("NO_COLOR") && !is_dumb,
    };
    if wanted { Paint::Ansi } else { Paint::Plain }
}

fn columns(asked: Option<u16>, is_terminal: bool) -> usize {
    match asked {
        Some(columns) => columns.into(),
        None if is_terminal => terminal_size::terminal_size()
            .map_or(COLUMNS_DEFAULT, |(width, _)| width.0.into())
            .clamp(40, COLUMNS_MAX),
        None => COLUMNS_DEFAULT,
    }
}

/// The longest name in the listing, `None` when directories hold names not yet known.
fn longest_name(paths: &[PathBuf]) -> Option<usize> {
    if paths.iter().any(|path| path.is_dir()) {
        return None;
    }
    paths.iter().map(|path| names::shown(path).width()).max()
}
