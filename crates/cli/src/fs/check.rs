//! `extant fs check`: the consistency check, with the exit status of `e2fsck -n`.
//!
//! The journal is first replayed in memory. A journal too damaged for that is a finding, and the
//! device is checked without replay.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use extant_ext4::Filesystem;
use extant_fsck::{
    CheckOptions, Coverage, Finding, FindingKind, JournalState, Location, Report, Totals, check,
};
use extant_space::{CancelToken, Control, Error, ErrorKind, Result};

use crate::exit;
use crate::fs_image::{Image, passes_over_journals, refuse_without_ext4};
use crate::print;
use crate::progress::{Display, ProgressArgs};

/// Errors were found.
const FOUND: u8 = 4;
/// The check itself failed.
const FAILED: u8 = 8;

/// Check the consistency of a file system, without changing it.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs check disk.img
  extant fs check --json disk.img | jq .findings_by_kind

What is in the journal is replayed in memory, as for all commands that only look.
Exit status, as e2fsck -n: 0 clean, 4 errors were found, 8 the check could not be made; 130 cancelled.")]
pub struct CheckArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Print at most this many findings; more are counted
    #[arg(long, value_name = "COUNT", default_value_t = 1000)]
    pub findings: usize,

    #[command(flatten)]
    pub progress: ProgressArgs,

    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Checks.
pub(super) fn run(args: &CheckArgs, cancel: &CancelToken) -> ExitCode {
    match args.progress.show(|display| report(args, cancel, display)) {
        Ok(report) => {
            let printed = if args.json {
                print::json(&report)
            } else {
                print::text(format!("{}: {report}", print::path(&args.image)))
            };
            let found = if report.is_clean() {
                ExitCode::SUCCESS
            } else {
                ExitCode::from(FOUND)
            };
            print::unless_lost(printed, found)
        }
        Err(error) => exit::report_as(&error, args.progress.error_style(), FAILED),
    }
}

fn report(args: &CheckArgs, cancel: &CancelToken, display: &Display) -> Result<Report> {
    let control = Control::new(cancel, display);
    let at_image = |error: Error| error.at(&args.image);
    let device = Image::look_at_device(&args.image)?;
    refuse_without_ext4(&*device).map_err(at_image)?;
    let stored = (Arc::clone(&device), JournalState::NotReplayed);
    let mut failed_replay = None;
    let (device, journal) = if passes_over_journals() {
        stored
    } else {
        match Filesystem::recovered_device(device) {
            Ok(recovered) => (recovered, JournalState::Replayed),
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                failed_replay = Some(error);
                stored
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Err(at_image(error.advice("check it with e2fsck")));
            }
            Err(error) => return Err(at_image(error)),
        }
    };
    let options = CheckOptions {
        findings_max: args.findings,
        // Linux writes them at unmount; a copy of a mounted disk has outdated ones.
        totals: Totals::Ignore,
        journal,
        ..CheckOptions::default()
    };
    let mut report = check(&*device, &options, control).map_err(at_image)?;
    // A finding about the superblock, the journal's inode or its superblock is the reason already.
    let is_explained = report.coverage == Coverage::Superblock
        || report.findings_by_kind.contains_key(&FindingKind::Journal);
    if let Some(error) = failed_replay.filter(|_| !is_explained) {
        let finding = Finding {
            kind: FindingKind::Journal,
            place: Location::default(),
            words: format!("the journal cannot be replayed: {error}"),
        };
        report.add_first(finding, &options);
    }
    Ok(report)
}
