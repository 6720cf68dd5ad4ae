//! `extant image check`: refcounts held against uses, with the exit status of `qemu-img check`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use extant_hostfs::{Access, HostFile};
use extant_image::{
    CheckReport, FindingKind, Format, Use, check, lock, rebuild_refcounts, repair_leaks,
};
use extant_space::{ByteSize, CancelToken, Control, Error, ErrorKind, Result};

use super::LookArgs;
use crate::progress::{Display, ProgressArgs};
use crate::{exit, print};

/// The check could not be made.
const FAILED: u8 = 1;
const CORRUPTIONS: u8 = 2;
const LEAKS: u8 = 3;

/// Check whether the refcounts of a qcow2 image are what its tables use.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant image check vm.qcow2
  extant image check --repair leaks vm.qcow2
  extant image check --repair all vm.qcow2      refcounts are made what the tables use

A corruption is a cluster that may be given away while it is in use, a leak one that is lost.
Exit status, as qemu-img check: 0 clean, 2 corruptions, 3 leaks, 1 the check could not be made;
130 cancelled.")]
pub struct CheckArgs {
    #[command(flatten)]
    pub look: LookArgs,

    /// Make refcounts right, before the check: those above the uses, or all
    #[arg(long, value_name = "WHAT", conflicts_with = "image")]
    pub repair: Option<Repair>,

    /// Show so many findings; more are counted
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub findings: usize,

    #[command(flatten)]
    pub progress: ProgressArgs,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// What is repaired.
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
        Ok(report) => {
            match args.json {
                true => print::json(&report),
                false => print::text(describe(args, &report)),
            };
            match (report.corruptions, report.leaks) {
                (0, 0) => ExitCode::SUCCESS,
                (0, _) => ExitCode::from(LEAKS),
                _ => ExitCode::from(CORRUPTIONS),
            }
        }
        Err(error) => exit::report_as(&error, args.progress.error_style(), FAILED),
    }
}

fn report(args: &CheckArgs, cancel: &CancelToken, display: &Display) -> Result<CheckReport> {
    let control = Control::new(cancel, display);
    if args.look.format() == Some(Format::Raw) {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail("a raw image holds nothing that could be checked"));
    }
    if let Some(repair) = args.repair {
        let file = HostFile::open(&args.look.file, Access::ReadWrite)?;
        lock(&file, Use::Write)?;
        let file = Arc::new(file);
        match repair {
            Repair::Leaks => repair_leaks(file, control)?,
            Repair::All => rebuild_refcounts(file, control)?,
        };
    }
    let (file, _outer) = args.look.open_file()?;
    check(file, args.findings, control)
}

fn describe(args: &CheckArgs, report: &CheckReport) -> String {
    let mut out = format!(
        "{}: {}",
        print::path(&args.look.file),
        match report.is_clean() {
            true => "clean".to_owned(),
            false => format!("{} corruptions, {} leaks", report.corruptions, report.leaks),
        }
    );
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
