//! `extant image check`: refcounts compared with references, with the exit status of `qemu-img
//! check`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use extant_hostfs::Pace;
use extant_image::detect::{self, Kind, Purpose};
use extant_image::{
    CheckReport, FindingKind, Format, ImageFile, check, rebuild_refcounts, repair_leaks,
};
use extant_space::{ByteSize, CancelToken, Control, Error, ErrorKind, Result};
use serde::Serialize;

use super::qemu::Fixed;
use super::{FormArgs, LookArgs, ShareArgs, qemu};
use crate::file_location::FileLocation;
use crate::progress::{Display, ProgressArgs};
use crate::{exit, print};

/// The check could not be made.
const FAILED: u8 = 1;
/// The format has no metadata.
const NOTHING_TO_CHECK: u8 = 63;
const CORRUPTIONS: u8 = 2;
const LEAKS: u8 = 3;

/// Check whether the refcounts of a qcow2 image match its tables.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image check vm.qcow2
  extant image check --repair leaks vm.qcow2
  extant image check --repair all vm.qcow2      refcounts are made what the tables use

A corruption is a cluster that may be given away while it is in use, a leak one that is lost.
Exit status, as qemu-img check: 0 clean, 2 corruptions, 3 leaks, 1 the check could not be made,
63 a raw image, which has no metadata to check; 130 cancelled.")]
pub struct CheckArgs {
    #[command(flatten)]
    pub look: LookArgs,

    /// Make refcounts right, before the check: those above the uses, or all
    #[arg(long, short = 'r', value_name = "WHAT", conflicts_with_all = ["image", "force_share"])]
    pub repair: Option<Repair>,

    /// Print at most this many findings; more are counted
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub findings: usize,

    #[command(flatten)]
    pub share: ShareArgs,

    /// Print nothing but errors; the exit status has the result
    #[arg(long, short = 'q')]
    pub quiet: bool,

    #[command(flatten)]
    pub progress: ProgressArgs,

    #[command(flatten)]
    pub form: FormArgs,
}

/// Errors that are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Repair {
    /// Counts above the uses, in an image without other corruptions
    Leaks,
    /// All refcounts and copied flags, as after a crash with lazy refcounts
    All,
}

/// Checks.
pub(super) fn run(args: &CheckArgs, cancel: &CancelToken) -> ExitCode {
    let result = args
        .progress
        .show(|display| report(args, cancel, display).map_err(|error| error.at(&args.look.file)));
    match result {
        Ok(Some((report, fixed))) => {
            let printed = match (args.form.is_json(), args.quiet) {
                (true, _) => print::json(&told(args, &report, fixed)),
                (false, true) => ExitCode::SUCCESS,
                (false, false) => print::text(describe(args, &report, fixed)),
            };
            let found = match (report.corruptions, report.leaks) {
                (0, 0) => ExitCode::SUCCESS,
                (0, _) => ExitCode::from(LEAKS),
                _ => ExitCode::from(CORRUPTIONS),
            };
            print::unless_lost(printed, found)
        }
        Ok(None) => {
            let nothing = Error::new(ErrorKind::Unsupported)
                .at(&args.look.file)
                .detail("raw images have no metadata to check");
            exit::report_as(&nothing, args.progress.error_style(), NOTHING_TO_CHECK)
        }
        Err(error) => exit::report_as(&error, args.progress.error_style(), FAILED),
    }
}

/// `None` for a raw image.
fn report(
    args: &CheckArgs,
    cancel: &CancelToken,
    display: &Display,
) -> Result<Option<(CheckReport, Fixed)>> {
    let control = Control::new(cancel, display);
    let (file, outer) = args.look.open_file(args.share)?;
    // A damaged signature is damage as well: the name counts.
    let purpose = match detect::of_name(&args.look.file) {
        Some(Kind::Qcow2) => Purpose::Use,
        _ => Purpose::Look,
    };
    if args.look.format_in(&*file, purpose)? == Format::Raw {
        return Ok(None);
    }
    let Some(repair) = args.repair else {
        let report = check(file, args.findings, control)?;
        return Ok(Some((report, Fixed::default())));
    };
    let before = check(file, 0, control)?;
    drop(outer);
    let target = ImageFile::host(&args.look.file, Pace::Full)?;
    let file = Arc::clone(target.file());
    match repair {
        Repair::Leaks => repair_leaks(file, control)?,
        Repair::All => rebuild_refcounts(file, control)?,
    };
    drop(target);
    let (file, _outer) = args.look.open_file(args.share)?;
    let report = check(file, args.findings, control)?;
    let fixed = Fixed {
        corruptions: before.corruptions.saturating_sub(report.corruptions),
        leaks: before.leaks.saturating_sub(report.leaks),
    };
    Ok(Some((report, fixed)))
}

/// The result as JSON.
#[derive(Serialize)]
struct CheckOutput<'a> {
    #[serde(flatten)]
    place: FileLocation,
    format: Format,
    #[serde(flatten)]
    qemu: qemu::Check,
    #[serde(flatten)]
    report: &'a CheckReport,
}

fn told<'a>(args: &CheckArgs, report: &'a CheckReport, fixed: Fixed) -> CheckOutput<'a> {
    CheckOutput {
        place: args.look.place(),
        format: Format::Qcow2,
        qemu: qemu::Check::of(&args.look.file, report, fixed),
        report,
    }
}

fn describe(args: &CheckArgs, report: &CheckReport, fixed: Fixed) -> String {
    let mut out = format!(
        "{}: {}",
        print::path(&args.look.file),
        if report.is_clean() {
            "clean".to_owned()
        } else {
            format!("{} corruptions, {} leaks", report.corruptions, report.leaks)
        }
    );
    if fixed.corruptions + fixed.leaks > 0 {
        let counts = format!("{} corruptions, {} leaks", fixed.corruptions, fixed.leaks);
        print::row(&mut out, "repaired", counts);
    }
    for finding in &report.findings {
        let kind = match finding.kind {
            FindingKind::Corruption => "corrupt",
            FindingKind::Leak => "leak",
        };
        print::row(&mut out, kind, &finding.detail);
    }
    let untold = report.corruptions + report.leaks - report.findings.len() as u64;
    if untold > 0 {
        print::row(&mut out, "", format!("and {untold} more"));
    }
    print::row(
        &mut out,
        "clusters",
        format!(
            "{} of {} have space, {} compressed, {} not behind the one before",
            report.allocated_clusters,
            report.total_clusters,
            report.compressed_clusters,
            report.fragmented_clusters
        ),
    );
    let end = ByteSize(report.image_end_bytes);
    print::row(&mut out, "end", format!("{end} into the file"));
    out
}
