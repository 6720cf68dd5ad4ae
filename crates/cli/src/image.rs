//! `extant image`: disk images, raw and qcow2.
//!
//! One file per command, by the names of qemu-img. The operations are in `extant-image`.
//!
//! Commands that change an image keep others out of it, by the locks of QEMU; a copy is complete
//! before it has its name.
//!
//! An image is a file of the host, or one inside an ext4 image (`--in`). Files that an image names
//! are opened only with `--chain`.

mod change;
mod check;
mod convert;
mod create;
mod facts;
mod info;
mod map;
mod materialize;
mod measure;
mod mount;
mod qemu;
mod refused;
mod resize;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use extant_ext4::FollowLast;
use extant_hostfs::HostFile;
use extant_image::detect::Purpose;
use extant_image::hold::is_export;
use extant_image::{Format, Layer, ReferencedFiles, hold_file, open_file, open_layer};
use extant_space::{CancelToken, Error, ErrorKind, Result, SpaceFile};

use crate::exit::{self, Style};
use crate::file_location::FileLocation;
use crate::fs_image::{At, Image};
use crate::image_format;
use crate::image_format::ImageFormat;

pub use change::change;
pub use facts::Facts;
pub use materialize::Done;
pub use refused::refusal;

/// Inspect and change disk images, raw and qcow2.
///
/// Files that an image names (backing file, data file) are opened only with --chain. The format is
/// that of --format; without it, name and first bytes decide together, and if they contradict each
/// other the image is not changed.
#[derive(Args, Clone, Debug)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  extant image create -f qcow2 vm.qcow2 40G
  extant image info vm.qcow2
  extant image map vm.qcow2
  extant image check vm.qcow2
  extant image measure disk.raw
  extant image resize vm.qcow2 40GiB
  extant image convert disk.raw vm.qcow2
  extant image materialize vm.qcow2
  extant image mount vm.qcow2 mnt

Commands, options and JSON are those of qemu-img where the operation exists here; what does not is
refused by its name. Images whose space is really there are made by extant create.
Exit status: see extant --help; image check has its own."
)]
pub struct ImageArgs {
    #[command(subcommand)]
    command: DiskCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum DiskCommand {
    Create(create::ImageCreateArgs),
    Info(info::InfoArgs),
    Check(check::CheckArgs),
    Map(map::MapArgs),
    Measure(measure::MeasureArgs),
    Resize(resize::ResizeArgs),
    Convert(convert::ConvertArgs),
    Materialize(materialize::MaterializeArgs),
    Mount(mount::ImageMountArgs),
}

/// Runs one command; `words` are the arguments of this program.
pub fn run(args: &ImageArgs, words: &[OsString], cancel: &CancelToken) -> ExitCode {
    match &args.command {
        DiskCommand::Create(args) => create::run(args, cancel),
        DiskCommand::Info(args) => plain(info::run(args, cancel)),
        DiskCommand::Check(args) => check::run(args, cancel),
        DiskCommand::Map(args) => plain(map::run(args, cancel)),
        DiskCommand::Measure(args) => plain(measure::run(args, cancel)),
        DiskCommand::Resize(args) => resize::run(args, cancel),
        DiskCommand::Convert(args) => convert::run(args, cancel),
        DiskCommand::Materialize(args) => materialize::run(args, cancel),
        DiskCommand::Mount(args) => plain(mount::run(args, words, cancel)),
    }
}

fn plain(result: Result<ExitCode>) -> ExitCode {
    match result {
        Ok(status) => status,
        // The reader has closed the output.
        Err(error) if error.os_errno() == Some(libc::EPIPE) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error, Style::Line),
    }
}

/// An image opened for inspection.
#[derive(Args, Clone, Debug)]
pub struct LookArgs {
    /// The image
    pub file: PathBuf,

    /// Its format [default: by its name and first bytes]
    #[arg(long, short = 'f', value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// It is inside this ext4 image, disk or NBD export
    #[arg(long = "in", value_name = "IMAGE")]
    pub image: Option<PathBuf>,
}

/// An open image, and the file-system image that contains it.
struct Looked {
    layer: Layer,
    _outer: Option<Image>,
}

/// A file, and the file-system image that contains it.
type OpenFile = (Arc<dyn SpaceFile>, Option<Image>);

impl LookArgs {
    fn format(&self) -> Option<Format> {
        self.format.map(Format::from)
    }

    /// Opens the image with its backing chain, if permitted.
    fn open(
        &self,
        follow: ReferencedFiles,
        purpose: Purpose,
        cancel: &CancelToken,
    ) -> Result<Looked> {
        let Some(outer) = &self.image else {
            let file = open_file(&self.file)?;
            let format = self.format_in(&*file, purpose)?;
            let layer = open_layer(file, &self.file, format, follow)?;
            return Ok(Looked {
                layer: layer.with_cancel(cancel),
                _outer: None,
            });
        };
        if follow == ReferencedFiles::Open {
            return Err(not_inside());
        }
        let (file, outer) = open_inside(outer, self)?;
        let layer = self.layer(file, purpose)?;
        Ok(Looked {
            layer: layer.with_cancel(cancel),
            _outer: Some(outer),
        })
    }

    fn layer(&self, file: Arc<dyn SpaceFile>, purpose: Purpose) -> Result<Layer> {
        let format = self.format_in(&*file, purpose)?;
        Layer::open(file, format).map_err(|error| error.at(&self.file))
    }

    /// The format of the image in `file`.
    fn format_in(&self, file: &dyn SpaceFile, purpose: Purpose) -> Result<Format> {
        image_format::of_existing(&self.file, self.format(), file, purpose)
            .map_err(|error| error.at(&self.file))
    }

    /// The place of the image, as results show it.
    fn place(&self) -> FileLocation {
        FileLocation::new(&self.file, self.image.as_deref())
    }

    /// The file alone, with a lock against other writers unless it is shared with them.
    fn open_file(&self, share: ShareArgs) -> Result<OpenFile> {
        match &self.image {
            Some(outer) => open_inside(outer, self).map(|(file, outer)| (file, Some(outer))),
            None if share.force_share && is_export(&self.file) => {
                Ok((open_file(&self.file)?, None))
            }
            None if share.force_share => Ok((Arc::new(HostFile::open_read(&self.file)?), None)),
            None => Ok((hold_file(&self.file)?, None)),
        }
    }
}

/// A path inside an image is no path of the host, which a name would be.
fn not_inside() -> Error {
    Error::new(ErrorKind::Unsupported)
        .detail("--chain is for files of the host, not for those inside an image (--in)")
}

fn open_inside(outer: &std::path::Path, args: &LookArgs) -> Result<(Arc<dyn SpaceFile>, Image)> {
    let outer = Image::look(outer)?;
    let node = outer.resolve(&args.file, FollowLast::Yes)?;
    let inner = args.file.as_os_str().as_encoded_bytes();
    let file = node.file().at_inner(&outer, inner)?;
    Ok((Arc::new(file), outer))
}

/// Whether files that an image names are opened.
#[derive(Args, Clone, Copy, Debug)]
pub struct ChainArgs {
    /// Open the backing and data files that the image names, and those that they name
    #[arg(long)]
    pub chain: bool,
}

impl ChainArgs {
    fn follow(self) -> ReferencedFiles {
        if self.chain {
            ReferencedFiles::Open
        } else {
            ReferencedFiles::Ignore
        }
    }
}

/// Whether others may write to the image meanwhile.
#[derive(Args, Clone, Copy, Debug)]
pub struct ShareArgs {
    /// Read it also while another process writes to it: the output may mix different moments
    #[arg(long = "force-share", short = 'U')]
    pub force_share: bool,
}

/// Whether a result is text or JSON.
#[derive(Args, Clone, Copy, Debug)]
pub struct FormArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Print text or JSON, as qemu-img --output
    #[arg(long, value_name = "FORM", conflicts_with = "json", hide = true)]
    output: Option<Form>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    Human,
    Json,
}

impl FormArgs {
    /// It is JSON.
    pub fn is_json(self) -> bool {
        self.json || self.output == Some(Form::Json)
    }
}
