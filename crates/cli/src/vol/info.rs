//! `extant vol info`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::VolumeInfo;
use extant_space::{ByteSize, ExtentState, Result};

use super::work::VolumeArgs;
use crate::print;

/// Tell what a volume is, and whether its space is really there.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant vol info vms web.raw
  extant vol info vms web.raw --xml

Exit status: see extant --help.")]
pub struct InfoArgs {
    #[command(flatten)]
    pub volume: VolumeArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print libvirt's XML
    #[arg(long, conflicts_with = "json")]
    pub xml: bool,
}

pub(super) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let pool = args.volume.pool.open()?;
    if args.xml {
        let xml = pool.volume_xml(&args.volume.volume)?;
        return Ok(print::text(xml.trim_end()));
    }
    let info = pool.volume(&args.volume.volume)?;
    Ok(match args.json {
        true => print::json(&info),
        false => print::text(describe(&info, true)),
    })
}

/// A volume in a few lines.
pub(super) fn describe(info: &VolumeInfo, verbose: bool) -> String {
    let capacity = ByteSize(info.capacity_bytes);
    let mut out = format!("{}: {capacity}, {}", info.name, info.format);
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
    let room = match info.may_run_out_of_space {
        true => "a write may fail when the file system is full",
        false => "all there: no write fails for lack of it",
    };
    print::row(&mut out, "space", room);
    if verbose {
        print::row(&mut out, "path", print::path(&info.path));
        let owner = format!("{:04o}, user {}, group {}", info.mode, info.uid, info.gid);
        print::row(&mut out, "mode", owner);
    }
    out
}
