//! `extant image measure`: how large a file an image would need.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use extant_image::detect::Purpose;
use extant_image::format::Version;
use extant_image::{
    Format, ImageOptions, Measurement, Preallocation, bitmap_bytes, data_bytes, measure,
};
use extant_space::{ByteSize, CancelToken, Result};
use serde::Serialize;

use super::{ChainArgs, FormArgs, LookArgs, ShareArgs, qemu};
use crate::arguments::parse_size;
use crate::image_format::{ImageFormat, Mode};
use crate::image_options::{self, ImageOptionList};
use crate::{complete, print};

/// Print how large the file of an image would be.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image measure --size 1TiB
  extant image measure --size 1TiB -o cluster_size=2M,preallocation=full
  extant image measure disk.raw                      as a qcow2 image with the same data")]
pub struct MeasureArgs {
    /// An image to be copied into it
    #[arg(required_unless_present = "size", conflicts_with = "size")]
    pub file: Option<PathBuf>,

    /// The size of the guest's disk
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<ByteSize>,

    /// The format of FILE [default: by its name and first bytes]
    #[arg(long, short = 'f', value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// The format of the image that is measured
    #[arg(long, short = 'O', value_name = "FORMAT", default_value = "qcow2")]
    pub to: ImageFormat,

    /// Preallocation of the new image
    #[arg(long, value_name = "MODE")]
    pub preallocation: Option<Mode>,

    /// Options of qcow2, as for extant create
    #[arg(short = 'o', long = "options", value_name = "NAME=VALUE,...")]
    #[arg(add = ArgValueCompleter::new(complete::words(image_options::NAMES)))]
    pub words: Vec<String>,

    #[command(flatten)]
    pub chain: ChainArgs,

    #[command(flatten)]
    pub share: ShareArgs,

    #[command(flatten)]
    pub form: FormArgs,
}

/// Measures.
pub(super) fn run(args: &MeasureArgs, cancel: &CancelToken) -> Result<ExitCode> {
    if image_options::asks_for_help(&args.words) {
        return Ok(print::text(image_options::HELP_WORD));
    }
    let format = Format::from(args.to);
    let words = ImageOptionList::parse(&args.words, format)?;
    let mut options = ImageOptions::new(format, 0);
    options.preallocation = args
        .preallocation
        .map(Preallocation::from)
        .or(words.preallocation)
        .unwrap_or(Preallocation::Off);
    options.qcow2 = words.qcow2;
    options.check()?;
    let (mut data, mut bitmaps) = (0, None);
    if let Some(file) = &args.file {
        let look = LookArgs {
            file: file.clone(),
            format: args.format,
            image: None,
        };
        let looked = look.open(args.chain.follow(), Purpose::Look, cancel)?;
        options.virtual_bytes = looked.layer.virtual_bytes();
        data = looked
            .layer
            .check_complete()
            .and_then(|()| data_bytes(&looked.layer, options.qcow2.cluster_bytes))
            .map_err(|error| error.at(file))?;
        if format == Format::Qcow2 && options.qcow2.version == Version::V3 {
            bitmaps = bitmap_bytes(&looked.layer, options.qcow2.cluster_bytes)
                .map_err(|error| error.at(file))?;
        }
    } else if let Some(size) = args.size {
        options.virtual_bytes = size.0;
    }
    let measured = measure(&options, data)?;
    Ok(if args.form.is_json() {
        print::json(&MeasureOutput {
            format,
            capacity_bytes: options.disk_bytes(),
            qemu: qemu::Measure {
                required: measured.required_bytes,
                fully_allocated: measured.fully_allocated_bytes,
                bitmaps,
            },
            measured,
        })
    } else {
        print::text(format!(
            "required: {} ({} bytes)\nfully allocated: {} ({} bytes)",
            ByteSize(measured.required_bytes),
            measured.required_bytes,
            ByteSize(measured.fully_allocated_bytes),
            measured.fully_allocated_bytes
        ))
    })
}

/// The result as JSON.
#[derive(Serialize)]
struct MeasureOutput {
    format: Format,
    capacity_bytes: u64,
    #[serde(flatten)]
    qemu: qemu::Measure,
    #[serde(flatten)]
    measured: Measurement,
}
