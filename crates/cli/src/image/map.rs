//! `extant image map`: where the guest's bytes are. The JSON is that of `qemu-img map`, and says
//! the state as well. With the layers below the image the output is that of `extant map -v`.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use clap::Args;
use extant_image::detect::Purpose;
use extant_image::{ImageExtent, Layer};
use extant_space::{
    ByteRange, ByteSize, CancelToken, Error, ErrorKind, ExtentFlags, ExtentState, Result,
};
use serde::Serialize;

use super::{ChainArgs, FormArgs, LookArgs, ShareArgs};
use crate::arguments::parse_size;
use crate::map::{self, PictureArgs};
use crate::print::output_error;

/// Map the guest's bytes to files, with the state of their space.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image map vm.qcow2
  extant image map --chain --json top.qcow2 | jq 'map(select(.state == \"hole\"))'
  extant image map --through --svg layers.svg vm.qcow2

written: overwritten in place; unwritten: has space, and the first write changes metadata;
hole: has none, in the image or on the host. The JSON is that of qemu-img map, with the state.")]
pub struct MapArgs {
    #[command(flatten)]
    pub look: LookArgs,

    #[command(flatten)]
    pub chain: ChainArgs,

    /// Begin at this byte of the disk
    #[arg(long, short = 's', value_name = "OFFSET", value_parser = parse_size, default_value = "0")]
    pub start_offset: ByteSize,

    /// End after this many bytes [default: at the end of the disk]
    #[arg(long, short = 'l', value_name = "LENGTH", value_parser = parse_size)]
    pub max_length: Option<ByteSize>,

    /// Show the layers below the image as well, at the offsets of the disk, as extant map does
    #[arg(long, conflicts_with_all = ["chain", "start_offset", "max_length"])]
    pub through: bool,

    /// The pictures of the layers
    #[command(flatten)]
    pub pictures: PictureArgs,

    #[command(flatten)]
    pub share: ShareArgs,

    #[command(flatten)]
    pub form: FormArgs,
}

impl MapArgs {
    /// The part of a disk that is mapped.
    fn range(&self, disk_bytes: u64) -> ByteRange {
        let start = self.start_offset.0.min(disk_bytes);
        let length = self.max_length.map_or(u64::MAX, |length| length.0);
        ByteRange::new(start, start.saturating_add(length).min(disk_bytes))
    }
}

/// A line of the JSON.
#[derive(Serialize)]
struct MapEntry {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    compressed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    state: ExtentState,
    shared: bool,
}

impl From<&ImageExtent> for MapEntry {
    fn from(extent: &ImageExtent) -> Self {
        Self {
            start: extent.guest.start(),
            length: extent.guest.len(),
            depth: extent.depth,
            present: extent.is_present,
            zero: extent.is_zero,
            data: extent.is_data,
            compressed: extent.flags.contains(ExtentFlags::ENCODED),
            offset: extent.offset,
            state: extent.state,
            shared: extent.flags.contains(ExtentFlags::SHARED),
        }
    }
}

/// Maps.
pub(super) fn run(args: &MapArgs, cancel: &CancelToken) -> Result<ExitCode> {
    if args.through {
        let look = &args.look;
        return map::run(&map::MapArgs {
            format: look.format,
            extents: true,
            json: args.form.is_json(),
            ..map::MapArgs::through(&look.file, look.image.as_deref(), &args.pictures)
        });
    }
    if args.pictures.any() {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("--svg and --png are pictures of the layers, with --through"));
    }
    let looked = args.look.open(args.chain.follow(), Purpose::Look, cancel)?;
    let named = looked.layer.check_data_names();
    named.map_err(|error| error.at(&args.look.file))?;
    let range = args.range(looked.layer.virtual_bytes());
    let mut out = BufWriter::new(io::stdout().lock());
    let written = if args.form.is_json() {
        json(&looked.layer, range, &mut out)
    } else {
        table(&looked.layer, range, &mut out)
    };
    written.map_err(|error| error.at(&args.look.file))?;
    out.flush().map_err(output_error)?;
    Ok(ExitCode::SUCCESS)
}

fn json(layer: &Layer, range: ByteRange, out: &mut impl Write) -> Result<()> {
    let mut separator = "[";
    each(layer, range, &mut |extent| {
        out.write_all(separator.as_bytes())?;
        separator = ",\n";
        serde_json::to_writer(&mut *out, &MapEntry::from(extent)).map_err(io::Error::from)
    })?;
    let end = if separator == "[" { "[]\n" } else { "]\n" };
    out.write_all(end.as_bytes()).map_err(output_error)
}

fn table(layer: &Layer, range: ByteRange, out: &mut impl Write) -> Result<()> {
    writeln!(
        out,
        "{:>16} {:>14} {:>16} {:>5}  state, flags",
        "offset", "length", "in the file", "depth"
    )
    .map_err(output_error)?;
    each(layer, range, &mut |extent| {
        let place = extent
            .offset
            .map_or("-".to_owned(), |place| place.to_string());
        let mut words = extent.state.name().to_owned();
        for flag in extent.flags.names() {
            words.push_str(", ");
            words.push_str(flag);
        }
        writeln!(
            out,
            "{:>16} {:>14} {place:>16} {:>5}  {words}",
            extent.guest.start(),
            extent.guest.len(),
            extent.depth
        )
    })
}

fn each(
    layer: &Layer,
    range: ByteRange,
    write: &mut dyn FnMut(&ImageExtent) -> io::Result<()>,
) -> Result<()> {
    layer.for_each_extent(range, &mut |extent| {
        write(&extent).map_err(output_error)?;
        Ok(ControlFlow::Continue(()))
    })
}
