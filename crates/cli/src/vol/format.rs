//! `extant vol format`.

use std::process::ExitCode;

use clap::Args;
use extant_image::Format;
use extant_space::Result;

use super::work::VolumeArgs;
use crate::image_format::ImageFormat;
use crate::print;

/// State the format of a volume.
///
/// For files that were not made by extant and whose names do not end with .qcow2. It is stored with
/// the file, and has precedence over the name. The content is ignored, as a guest can write any
/// header into a raw volume.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol format vms by-virsh qcow2
  extant vol format vms odd raw

Exit status: see extant --help.")]
pub struct FormatArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Format of the volume
    pub format: ImageFormat,

    /// Take a qcow2 image that names a backing file
    #[arg(long)]
    pub allow_backing: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) fn run(args: &FormatArgs) -> Result<ExitCode> {
    let pool = args.volume.pool.open()?;
    let (name, format) = (&args.volume.volume, Format::from(args.format));
    pool.set_format(name, format, args.allow_backing)?;
    let path = pool.path_of(name);
    Ok(if args.json {
        print::json(&serde_json::json!({
            "pool": pool.to_string(),
            "name": name,
            "path": path.display().to_string(),
            "format": format,
        }))
    } else {
        print::text(format!("{name}: {}", format.name()))
    })
}
