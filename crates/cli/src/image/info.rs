//! `extant image info`.

use std::process::ExitCode;

use clap::Args;
use extant_image::detect::Purpose;
use extant_image::{Layer, Qcow2Info, ReferencedFiles, backing_of, open_path};
use extant_space::{ByteSize, CancelToken, Result};
use serde::Serialize;

use super::{ChainArgs, Facts, FormArgs, LookArgs, ShareArgs, not_inside, qemu};
use crate::file_location::FileLocation;
use crate::{image_format, print};

/// Print the format of an image, and its allocation.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image info vm.qcow2
  extant image info --json vm.qcow2 | jq .states
  extant image info --backing-chain top.qcow2

The preallocation is determined from the image: the mode that holds for the whole disk.")]
pub struct InfoArgs {
    #[command(flatten)]
    pub look: LookArgs,

    #[command(flatten)]
    pub chain: ChainArgs,

    /// Describe every image of its backing chain as well; they are opened as with --chain
    #[arg(long)]
    pub backing_chain: bool,

    #[command(flatten)]
    pub share: ShareArgs,

    #[command(flatten)]
    pub form: FormArgs,
}

/// Prints the information.
pub(super) fn run(args: &InfoArgs, cancel: &CancelToken) -> Result<ExitCode> {
    if args.backing_chain && args.look.image.is_some() {
        return Err(not_inside());
    }
    let looked = args.look.open(args.chain.follow(), Purpose::Look, cancel)?;
    let mut told = vec![InfoReport::of(args.look.place(), &looked.layer)?];
    if args.backing_chain {
        let mut next = looked.layer.header().map(|header| {
            backing_of(&args.look.file, header, 0).map_err(|error| error.at(&args.look.file))
        });
        while let Some((path, format)) = next.take().transpose()?.flatten() {
            let layer =
                open_path(&path, Some(format), ReferencedFiles::Ignore)?.with_cancel(cancel);
            told.push(InfoReport::of(FileLocation::new(&path, None), &layer)?);
            let depth = told.len() as u32 - 1;
            next = layer
                .header()
                .map(|header| backing_of(&path, header, depth).map_err(|error| error.at(&path)));
        }
    }
    Ok(match (args.form.is_json(), args.backing_chain) {
        // As in qemu-img, a list.
        (true, true) => print::text(print::plain_json(&told)),
        (true, false) => print::json(&told[0]),
        (false, _) => {
            let described: Vec<String> = told.iter().map(describe).collect();
            print::text(described.join("\n\n"))
        }
    })
}

/// An image in JSON.
#[derive(Serialize)]
struct InfoReport {
    #[serde(flatten)]
    facts: Facts,
    #[serde(flatten)]
    qemu: qemu::Info,
    notes: Vec<String>,
}

impl InfoReport {
    fn of(place: FileLocation, layer: &Layer) -> Result<Self> {
        let info = layer.info().map_err(|error| error.at(place.path()))?;
        let notes = image_format::disagreement(place.path(), info.format);
        Ok(Self {
            qemu: qemu::Info::of(&place, &info),
            notes: notes.into_iter().collect(),
            facts: Facts { place, info },
        })
    }
}

fn describe(told: &InfoReport) -> String {
    let info = &told.facts.info;
    let mut out = format!(
        "{}: {} image of {} ({} bytes)",
        print::path(told.facts.place.path()),
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
    for note in &told.notes {
        print::row(&mut out, "note", note);
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
        let format = qcow2.backing_format.as_deref().unwrap_or("no format given");
        print::row(
            out,
            "backing",
            format!("{} ({format:?})", print::path(name)),
        );
    }
    if qcow2.has_data_file {
        let kind = if qcow2.data_file_raw {
            "raw"
        } else {
            "not raw"
        };
        let name = match &qcow2.data_file {
            Some(name) => print::path(name),
            None => "required, and not named".to_owned(),
        };
        print::row(out, "data file", format!("{name} ({kind})"));
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
