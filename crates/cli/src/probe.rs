//! `extant probe`: the capabilities of a file system, and the plan of `create` there.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_hostfs::{DeviceProbe, DiskLimits, FileProbe, LayerProbes, ModeResult, ProbeReport};
use extant_space::{ByteSize, Error, Result};
use serde::Serialize;

use crate::create::describe_plan;
use crate::exit::Style;
use crate::file_location::refuse_export;
use crate::{exit, layers, print};

/// Try what the file system at PATH supports, and print what create would do there.
///
/// Everything is tried on unnamed scratch files; nothing is left behind. With --through, the same
/// for each layer below: whether it allocates, writes zeroes and passes allocation on (assign), and
/// why a disk does or does not zero without being sent zeros.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant probe /var/lib/libvirt/images
  extant probe . --json | jq -r .plan.strategy
  extant probe --through /mnt/loop

Exit status: see extant --help.")]
pub struct ProbeArgs {
    /// A directory, or a file in it
    #[arg(default_value = ".")]
    pub path: PathBuf,

    /// Show what each layer below supports, down to the disks. As root, NVMe disks are asked
    #[arg(long)]
    pub through: bool,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// The report, and what concerns the machine instead of the place.
#[derive(Serialize)]
struct Probe<'r> {
    #[serde(flatten)]
    report: &'r ProbeReport,
    ublk: Support,
    rbd: Support,
}

/// Whether something of the machine can be used.
#[derive(Serialize)]
struct Support {
    is_supported: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl Support {
    /// Of `extant serve --ublk`.
    fn ublk() -> Self {
        Self::from(extant_ublk::availability())
    }

    /// Of images of Ceph.
    fn rbd() -> Self {
        Self::from(extant_rbd::availability())
    }

    fn row(self, out: &mut String, name: &str, what: &str) {
        let text = match self.reason {
            None => what.to_owned(),
            Some(reason) => format!("no: {reason}"),
        };
        print::row(out, name, text);
    }
}

impl From<Result<()>> for Support {
    fn from(availability: Result<()>) -> Self {
        let reason = availability.err();
        Self {
            is_supported: reason.is_none(),
            reason: reason.map(|error| error.to_string()),
        }
    }
}

/// Probes the place and prints the result.
pub fn run(args: &ProbeArgs) -> ExitCode {
    let found = refuse_export(&args.path).and_then(|()| {
        std::fs::metadata(&args.path).map_err(|source| Error::from(source).at(&args.path))
    });
    let probe = if args.through {
        extant_hostfs::probe_through
    } else {
        extant_hostfs::probe
    };
    match found.and_then(|_| probe(&args.path)) {
        Ok(report) if args.json => print::json(&Probe {
            report: &report,
            ublk: Support::ublk(),
            rbd: Support::rbd(),
        }),
        Ok(report) => print::text(describe(&report)),
        Err(error) => exit::report(&error, Style::Line),
    }
}

fn describe(report: &ProbeReport) -> String {
    let fs = &report.filesystem;
    let mut out = format!("{}: {}", print::path(&report.directory), fs.name);
    print::row(&mut out, "mounted", fs.mount_point.display());
    print::row(&mut out, "options", fs.options.join(","));
    print::row(
        &mut out,
        "space",
        format!(
            "{} free of {}, blocks of {}",
            ByteSize(fs.available_bytes),
            ByteSize(fs.total_bytes),
            ByteSize(fs.block_bytes)
        ),
    );
    match &report.disk {
        Some(disk) => describe_disk(&mut out, disk),
        None => print::row(&mut out, "disk", "none that can be seen"),
    }
    match report.map_source {
        Some(_) => describe_abilities(&mut out, report),
        None => print::row(&mut out, "tried", "nothing, as no file could be made there"),
    }
    match (&report.plan, &report.refusal) {
        (Some(plan), _) => {
            print::row(
                &mut out,
                "create",
                format!("{}: {}", plan.strategy.name(), plan.reason),
            );
            describe_plan(&mut out, plan);
        }
        (None, Some(refusal)) => print::row(&mut out, "create", format!("refuses: {refusal}")),
        (None, None) => {}
    }
    if let Some(through) = &report.through {
        describe_layers(&mut out, through);
    }
    Support::ublk().row(&mut out, "ublk", "extant serve --ublk makes disks");
    Support::rbd().row(&mut out, "rbd", "images and pools of Ceph");
    out
}

/// Each layer, and below it its devices.
fn describe_layers(out: &mut String, through: &LayerProbes) {
    for layer in &through.layers {
        describe_file(out, layer);
        let own = through.devices.iter();
        let own = own.filter(|found| std::path::Path::new(&found.device.layer) == layer.layer);
        own.for_each(|found| describe_device(out, found));
    }
}

fn describe_file(out: &mut String, layer: &FileProbe) {
    let tried = |mode: &Option<ModeResult>| match mode {
        None => "not tried".to_owned(),
        Some(mode) if mode.is_supported => "yes".to_owned(),
        Some(mode) => format!("no ({})", mode.answer),
    };
    let map = match layer.map_source {
        Some(map) if map.distinguishes_unwritten() => "with states",
        Some(_) => "without states",
        None => "not tried",
    };
    let text = format!(
        "{} on {}: allocate {}, write zeroes {}, assign {}, extent map {map}",
        print::path(&layer.layer),
        layer.filesystem,
        tried(&layer.allocate),
        tried(&layer.write_zeroes),
        if layer.can_assign { "yes" } else { "no" },
    );
    print::row(out, "layer", text);
}

fn describe_device(out: &mut String, found: &DeviceProbe) {
    print::row(out, "device", layers::device(&found.device));
    if let Some(limits) = &found.limits {
        describe_disk(out, limits);
    }
    if let Some(zeroing) = &found.fast_zeroing {
        let qualifies = if zeroing.is_supported {
            "fast"
        } else {
            "not fast"
        };
        let text = format!("{qualifies}: {}", zeroing.reasons.join("; "));
        print::row(out, "zeroing", text);
    }
}

fn describe_disk(out: &mut String, disk: &DiskLimits) {
    let limit = |bytes: u64| match bytes {
        0 => "none".to_owned(),
        bytes => format!("up to {}", ByteSize(bytes)),
    };
    let unmapping = match disk.write_zeroes_unmap_max_bytes {
        None => String::new(),
        Some(bytes) => format!(", unmapping {}", limit(bytes)),
    };
    print::row(
        out,
        "disk",
        format!(
            "{}: write zeroes {}{unmapping}, discard {}, {}",
            disk.name,
            limit(disk.write_zeroes_max_bytes),
            limit(disk.discard_max_bytes),
            if disk.is_rotational {
                "rotational"
            } else {
                "not rotational"
            }
        ),
    );
}

fn describe_abilities(out: &mut String, report: &ProbeReport) {
    match report.direct_io {
        Some(direct) => print::row(
            out,
            "direct",
            format!(
                "offsets aligned to {} bytes, memory to {}",
                direct.offset_bytes, direct.memory_bytes
            ),
        ),
        None => print::row(out, "direct", "no direct I/O"),
    }
    for mode in &report.modes {
        print::row(
            out,
            if mode.is_supported { "yes" } else { "no" },
            if mode.is_supported {
                mode.mode.to_owned()
            } else {
                format!("{} ({})", mode.mode, mode.answer)
            },
        );
    }
    for (is_there, what) in [
        (report.has_reflink, "reflink"),
        (report.has_nocow, "nocow (chattr +C)"),
    ] {
        print::row(out, if is_there { "yes" } else { "no" }, what);
    }
}
