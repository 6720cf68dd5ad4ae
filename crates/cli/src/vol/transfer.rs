//! `extant vol upload` and `extant vol download`.

use std::path::PathBuf;

use clap::Args;
use extant_image::Format;
use extant_pool::{Download, Operation, Upload};
use extant_space::{CancelToken, Result};

use super::work::{VolumeArgs, WorkArgs, absolute, work};
use crate::arguments::parse_mode;
use crate::image_format::ImageFormat;
use crate::progress::Display;

/// Make a volume of a file.
///
/// The file is copied unchanged, and holes stay holes. The volume has the new content as a whole,
/// or nothing changes. An image that names other files is refused, because every user of the volume
/// would read those.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol upload vms web.raw debian-12.raw
  extant vol upload vms web debian-12.img --format qcow2

Exit status: see extant --help.")]
pub struct UploadArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// The file
    pub file: PathBuf,

    /// Format of the file, which is checked [default: by the extension of the volume's name, .qcow2
    /// or raw]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// Take a qcow2 image that names a backing file
    #[arg(long)]
    pub allow_backing: bool,

    /// Replace the volume if there is one
    #[arg(long, short)]
    pub force: bool,

    /// Permissions of the volume's file
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode, default_value = "0600")]
    pub mode: u32,

    #[command(flatten)]
    pub work: WorkArgs,
}

/// Make a file of a volume.
///
/// The volume's file is copied unchanged, and holes stay holes. The file has the new content as a
/// whole, or nothing changes.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol download vms web.raw /backup/web.raw

Exit status: see extant --help.")]
pub struct DownloadArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// The file
    pub file: PathBuf,

    /// Replace the file if there is one
    #[arg(long, short)]
    pub force: bool,

    #[command(flatten)]
    pub work: WorkArgs,
}

pub(super) fn upload(args: &UploadArgs, display: &Display, cancel: &CancelToken) -> Result<String> {
    let operation = Operation::Upload(Upload {
        volume: args.volume.volume.clone(),
        source: absolute(&args.file)?,
        format: args.format.map(Format::from),
        allow_backing: args.allow_backing,
        replace: args.force,
        mode: args.mode,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}

pub(super) fn download(
    args: &DownloadArgs,
    display: &Display,
    cancel: &CancelToken,
) -> Result<String> {
    let operation = Operation::Download(Download {
        volume: args.volume.volume.clone(),
        target: absolute(&args.file)?,
        replace: args.force,
    });
    work(&args.volume.pool, &args.work, operation, display, cancel)
}
