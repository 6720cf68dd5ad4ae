//! `extant vol info`.

use std::process::ExitCode;

use clap::Args;
use extant_hostfs::DeviceBelow;
use extant_image::Format;
use extant_pool::{ImageFacts, Pool, VolumeInfo};
use extant_space::{ByteSize, Error, ErrorKind, ExtentState, LayerStates, Result};
use serde::Serialize;

use super::work::VolumeArgs;
use crate::map::{MapArgs, PictureArgs};
use crate::pool::json::VolumeJson;
use crate::{layers, print};

/// Print the format, size and allocation of a volume.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol info vms web.raw
  extant vol info vms web.raw --xml
  extant vol info vms web.raw --through --svg layers.svg

Exit status: see extant --help.")]
pub struct InfoArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Show the space of the volume in each layer below it as well, and the devices between them
    #[arg(long)]
    pub through: bool,

    /// The pictures of the layers
    #[command(flatten)]
    pub pictures: PictureArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print libvirt's XML
    #[arg(long, conflicts_with_all = ["json", "through"])]
    pub xml: bool,
}

pub(super) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let pool = args.volume.pool.open()?;
    if args.xml {
        let xml = extant_libvirt::volume_xml(&pool, &args.volume.volume)?;
        return Ok(print::text(xml.trim_end()));
    }
    let info = pool.volume(&args.volume.volume)?;
    if args.through {
        return through(args, &pool, &info);
    }
    if args.pictures.any() {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("--svg and --png are pictures of the layers, with --through"));
    }
    Ok(if args.json {
        print::json(&VolumeJson::new(&pool, &info))
    } else {
        print::text(describe(&info, true))
    })
}

/// A volume with its layers.
#[derive(Serialize)]
struct Layered<'a> {
    #[serde(flatten)]
    volume: VolumeJson<'a>,
    layers: Vec<LayerStates>,
    devices: Vec<DeviceBelow>,
}

fn through(args: &InfoArgs, pool: &Pool, info: &VolumeInfo) -> Result<ExitCode> {
    let place = pool.place_of(&args.volume.volume, false)?;
    if place.device().is_some() {
        return Err(Error::new(ErrorKind::Unsupported)
            .at(&place.path)
            .detail("--through: the volume is no file")
            .advice("extant map --through shows its disk"));
    }
    let map = MapArgs {
        format: Some(place.format.into()),
        ..MapArgs::through(&place.path, place.image.as_deref(), &args.pictures)
    };
    let (layers, devices) = map.layers()?;
    let status = map.draw()?;
    let printed = if args.json {
        print::json(&Layered {
            volume: VolumeJson::new(pool, info),
            layers,
            devices,
        })
    } else {
        let mut out = describe(info, true);
        layers::describe(&mut out, &layers);
        for device in &devices {
            print::row(&mut out, "device", layers::device(device));
        }
        print::text(out)
    };
    Ok(if status == ExitCode::SUCCESS {
        printed
    } else {
        status
    })
}

/// A volume in a few lines.
pub(super) fn describe(info: &VolumeInfo, verbose: bool) -> String {
    let capacity = ByteSize(info.capacity_bytes);
    let format = match info.format {
        Some(format) => format.name(),
        None => "of no known format: it looks like qcow2 (see extant vol format)",
    };
    let mut out = format!("{}: {capacity}, {format}", info.name);
    print::row(&mut out, "allocated", ByteSize(info.allocation_bytes));
    print::row(&mut out, "written", ByteSize(info.written_bytes));
    let unwritten = info.map.bytes(ExtentState::Unwritten);
    if unwritten > 0 {
        print::row(&mut out, "unwritten", ByteSize(unwritten));
    }
    if info.map.shared_bytes() > 0 {
        print::row(&mut out, "shared", ByteSize(info.map.shared_bytes()));
    }
    let fragments = info.map.fragments();
    let pieces = if fragments == 1 { "piece" } else { "pieces" };
    print::row(
        &mut out,
        "extents",
        format!("{}, in {fragments} {pieces}", info.extents),
    );
    let room = if info.may_run_out_of_space {
        "a write may fail when the file system is full"
    } else {
        "complete: no write fails with ENOSPC"
    };
    print::row(&mut out, "space", room);
    if let Some(image) = &info.image {
        describe_image(&mut out, image);
    }
    if verbose {
        print::row(&mut out, "path", print::path(&info.path));
        let owner = format!("{:04o}, user {}, group {}", info.mode, info.uid, info.gid);
        print::row(&mut out, "mode", owner);
    }
    out
}

fn describe_image(out: &mut String, image: &ImageFacts) {
    let facts = &image.qcow2;
    let mut words = format!(
        "preallocation {}, clusters of {}, compat {}",
        image.preallocation,
        ByteSize(facts.cluster_bytes),
        facts.compat
    );
    if facts.lazy_refcounts {
        words.push_str(", lazy refcounts");
    }
    print::row(out, "image", words);
    if let Some(name) = &facts.backing_file {
        let format = facts
            .backing_format
            .as_deref()
            .unwrap_or("of unspecified format");
        let backing = format!("{} ({format}), not opened", print::path(name));
        print::row(out, "backing", backing);
    }
    if facts.snapshot_count > 0 {
        print::row(out, "snapshots", facts.snapshot_count);
    }
    for (is_so, word) in [(facts.is_dirty, "dirty"), (facts.is_corrupt, "corrupt")] {
        if is_so {
            print::row(out, "marked", format!("{word}: see extant image check"));
        }
    }
}

/// The name of a format in a table.
pub(super) fn format_word(format: Option<Format>) -> &'static str {
    format.map_or("unknown", Format::name)
}
