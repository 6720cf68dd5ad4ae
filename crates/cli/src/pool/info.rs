//! `extant pool info`.

use std::process::ExitCode;

use clap::Args;
use extant_pool::{PoolInfo, PoolKind};
use extant_rbd::PoolStatistics;
use extant_space::{ByteSize, Result};

use super::PoolArgs;
use super::json::PoolJson;
use crate::print;
use crate::words::count;

/// Print the space of a pool, and the promised space.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant pool info vms
  extant pool info /srv/other         a directory, with the default limits
  extant pool info ./disk.img         an ext4 image, without a mount
  extant pool info vms --xml          for virsh pool-define

Exit status: see extant --help.")]
pub struct InfoArgs {
    #[command(flatten)]
    pub pool: PoolArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Print libvirt's XML
    #[arg(long, conflicts_with = "json")]
    pub xml: bool,
}

pub(super) fn run(args: &InfoArgs) -> Result<ExitCode> {
    let pool = args.pool.open()?;
    if args.xml {
        return Ok(print::text(extant_libvirt::pool_xml(&pool)?.trim_end()));
    }
    let info = pool.info()?;
    Ok(if args.json {
        print::json(&PoolJson::from(&info))
    } else {
        print::text(describe(&info))
    })
}

fn describe(info: &PoolInfo) -> String {
    let (space, limits) = (&info.space, &info.limits);
    let path = match info.kind {
        PoolKind::Rbd => info.path.clone().into(),
        _ => std::path::absolute(&info.path).unwrap_or_else(|_| info.path.clone().into()),
    };
    let volumes = count(space.volumes, "volume");
    let mut out = match &info.name {
        Some(name) => format!("{name}: {}, {volumes}", info.kind.name()),
        // The name in libvirt's XML.
        None => {
            let name = path.file_name().unwrap_or(path.as_os_str());
            let name = print::path(name.as_ref());
            format!(
                "{name}: {}, {volumes}, without a definition",
                info.kind.name()
            )
        }
    };
    print::row(&mut out, "path", print::path(&path));
    if let Some(directory) = &info.directory {
        print::row(&mut out, "directory", directory);
    }
    print::row(&mut out, "total", ByteSize(space.total_bytes));
    print::row(&mut out, "allocated", ByteSize(space.allocated_bytes));
    let promised = format!(
        "{}, with an overcommit of {}",
        ByteSize(space.promised_bytes),
        limits.overcommit
    );
    print::row(&mut out, "promised", promised);
    print::row(&mut out, "available", ByteSize(space.available_bytes));
    if let Some(bytes) = info.largest_gap_bytes {
        print::row(&mut out, "largest gap", ByteSize(bytes));
    }
    if let Some(cluster) = &info.cluster {
        print::row(&mut out, "cluster", describe_cluster(cluster));
    }
    if info.jobs > 0 {
        let reserved = ByteSize(space.reserved_bytes);
        print::row(
            &mut out,
            "jobs",
            format!("{}, which will take {reserved} more", info.jobs),
        );
    }
    if let Some(rate) = limits.rate {
        let rate = format!("{}/s for all jobs in the background", ByteSize(rate.get()));
        print::row(&mut out, "rate", rate);
    }
    out
}

fn describe_cluster(cluster: &PoolStatistics) -> String {
    let percent = |ratio: f64| (ratio * 100.0).round();
    let state = match (cluster.is_full, cluster.is_nearfull) {
        (true, _) => ", full",
        (false, true) => ", nearly full",
        (false, false) => "",
    };
    format!(
        "{} stored, {} more can be, in {}; warns at {} %, full at {} %{state}",
        ByteSize(cluster.stored_bytes),
        ByteSize(cluster.available_bytes),
        match cluster.copies {
            1 => "1 copy".to_owned(),
            copies => format!("{copies} copies"),
        },
        percent(cluster.nearfull_ratio),
        percent(cluster.full_ratio),
    )
}
