//! `extant image info`.

use std::process::ExitCode;

use clap::Args;
use extant_image::{ImageInfo, Qcow2Info};
use extant_space::{ByteSize, CancelToken, Result};

use super::{ChainArgs, LookArgs};
use crate::print;

/// Tell what an image is, and how much of it is really there.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image info vm.qcow2
  extant image info --json vm.qcow2 | jq .states

The preallocation is what was found: the mode that holds for the whole disk.")]
pub struct InfoArgs {
    #[command(flatten)]
    pub look: LookArgs,

    #[command(flatten)]
    pub chain: ChainArgs,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Tells.
pub(super) fn run(args: &InfoArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let looked = args.look.open(args.chain.follow(), cancel)?;
    let info = looked
        .layer
        .info()
        .map_err(|error| error.at(&args.look.file))?;
    Ok(match args.json {
        true => print::json(&info),
        false => print::text(describe(args, &info)),
    })
}

fn describe(args: &InfoArgs, info: &ImageInfo) -> String {
    let mut out = format!(
        "{}: {} image of {} ({} bytes)",
        print::path(&args.look.file),
        info.format,
        ByteSize(info.virtual_bytes),
        info.virtual_bytes
    );
    print::row(
        &mut out,
        "file",
        format!(
            "{}, of which {} have space",
            ByteSize(info.file_bytes),
            ByteSize(info.allocated_bytes)
        ),
    );
    print::row(
        &mut out,
        "space",
        format!(
            "{} written, {} unwritten, {} holes: preallocation {}",
            ByteSize(info.states.written),
            ByteSize(info.states.unwritten),
            ByteSize(info.states.hole),
            info.preallocation
        ),
    );
    if let Some(qcow2) = &info.qcow2 {
        describe_qcow2(&mut out, qcow2);
    }
    out
}

fn describe_qcow2(out: &mut String, qcow2: &Qcow2Info) {
    print::row(
        out,
        "qcow2",
        format!(
            "compat {}, clusters of {}, refcounts of {} bits{}, {}",
            qcow2.compat,
            ByteSize(qcow2.cluster_bytes),
            qcow2.refcount_bits,
            if qcow2.lazy_refcounts { " (lazy)" } else { "" },
            qcow2.compression
        ),
    );
    if let Some(name) = &qcow2.backing_file {
        let format = qcow2.backing_format.as_deref().unwrap_or("no format told");
        print::row(
            out,
            "backing",
            format!("{} ({format:?})", print::path(name)),
        );
    }
    if let Some(name) = &qcow2.data_file {
        let kind = if qcow2.data_file_raw {
            "raw"
        } else {
            "not raw"
        };
        print::row(out, "data file", format!("{} ({kind})", print::path(name)));
    }
    for snapshot in &qcow2.snapshots {
        print::row(
            out,
            "snapshot",
            format!("{:?} {:?}", snapshot.id, snapshot.name),
        );
    }
    let untold = qcow2.snapshot_count as usize - qcow2.snapshots.len();
    if untold > 0 {
        print::row(out, "", format!("and {untold} more"));
    }
    if qcow2.is_dirty {
        print::row(
            out,
            "note",
            "dirty: refcounts are rebuilt before it is written",
        );
    }
    if qcow2.is_corrupt {
        print::row(
            out,
            "note",
            "marked as corrupt: it is not written until repaired",
        );
    }
}
