//! `extant create`: a new file whose space is really there.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use extant_hostfs::{
    CopyOnWrite, CreateOptions, CreateReport, Existing, OnFailure, Plan, Verified,
};
use extant_space::{ByteSize, CancelToken, Control, MapSummary, Preallocation};

use crate::arguments::{OutputArgs, PaceArgs, parse_mode, parse_size};
use crate::inside::{self, InsideArgs};
use crate::{exit, print};

/// Make a new file of SIZE bytes whose space is really there.
///
/// The file appears under its name only when it is complete. After a cancel or an error nothing
/// is left (see --keep-partial); after a crash or a kill a file .NAME.extant-partial is, and the
/// same command takes it up and writes only what is missing.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant create vm.raw 20GiB                         zeroed and written, as fast as the disk goes
  extant create vm.raw 20GiB --background            the same, behind everybody else
  extant create vm.raw 20GiB --preallocation falloc  reserved, unwritten (as fallocate -l)
  extant create vm.raw 1TiB --allocation 20GiB       the first 20 GiB written, the rest sparse
  extant create --in disk.img /var/swap 1GiB         a file inside an ext4 image

Sizes: 4096, 512k, 10G and 10GiB (1024), 10GB (1000).
Exit status: see extant --help.")]
pub struct CreateArgs {
    /// The file to make
    pub path: PathBuf,

    /// Its size (capacity)
    #[arg(value_parser = parse_size, allow_negative_numbers = true)]
    pub size: ByteSize,

    /// What is done about its space
    #[arg(long, value_name = "MODE", default_value = "full")]
    pub preallocation: Mode,

    /// Make only the first part real; the rest stays sparse
    #[arg(long, value_name = "SIZE", value_parser = parse_size, allow_negative_numbers = true)]
    pub allocation: Option<ByteSize>,

    #[command(flatten)]
    pub pace: PaceArgs,

    /// Turn copy-on-write off for the file (as chattr +C; btrfs)
    #[arg(long, conflicts_with = "image")]
    pub nocow: bool,

    /// Keep the partial file after a cancel or an error, for the next run
    #[arg(long, conflicts_with = "image")]
    pub keep_partial: bool,

    /// Replace PATH if it is a file, in one step, when the new one is complete
    #[arg(long, short)]
    pub force: bool,

    /// Permissions of the file [default: 0666 without the umask]
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<u32>,

    #[command(flatten)]
    pub inside: InsideArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Modes of preallocation, by QEMU's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Nothing: the file is sparse
    Off,
    /// Space is reserved, unwritten
    Falloc,
    /// Space is written with zeros: later writes change no metadata
    Full,
}

impl From<Mode> for Preallocation {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Off => Self::Off,
            Mode::Falloc => Self::Falloc,
            Mode::Full => Self::Full,
        }
    }
}

impl CreateArgs {
    /// The same for the library.
    pub fn options(&self) -> CreateOptions {
        let mut options = CreateOptions::new(self.size.0);
        options.allocation_bytes = self.allocation.map(|size| size.0);
        options.preallocation = self.preallocation.into();
        options.pace = self.pace.pace();
        options.mode = self.mode;
        if self.force {
            options.existing = Existing::Replace;
        }
        if self.nocow {
            options.copy_on_write = CopyOnWrite::Disable;
        }
        if self.keep_partial {
            options.on_failure = OnFailure::KeepPartial;
        }
        options
    }
}

/// Creates the file and tells what was done.
pub fn run(args: &CreateArgs, cancel: &CancelToken) -> ExitCode {
    let display = args.output.progress.display();
    let control = Control::new(cancel, &display);
    let result = match &args.inside.image {
        None => {
            extant_hostfs::create(&args.path, &args.options(), control).map(|report| {
                match args.output.json {
                    true => print::json(&report),
                    false => print::text(describe(&Told::from(&report), args.output.verbose)),
                }
            })
        }
        Some(image) => inside::create(args, image, control).map(|report| match args.output.json {
            true => print::json(&report),
            false => print::text(describe(&report.told(), args.output.verbose)),
        }),
    };
    drop(display);
    match result {
        Ok(status) => status,
        Err(error) => exit::report(&error, args.output.progress.error_style()),
    }
}

/// What is told of a file that was made, wherever it is.
pub struct Told<'a> {
    pub path: &'a Path,
    pub size_bytes: u64,
    pub allocation_bytes: u64,
    pub preallocation: Preallocation,
    pub written_bytes: u64,
    pub resumed_bytes: u64,
    pub plan: Option<&'a Plan>,
    pub verified: Verified,
    pub map: &'a MapSummary,
    pub notes: &'a [String],
    pub elapsed_seconds: f64,
}

impl<'a> From<&'a CreateReport> for Told<'a> {
    fn from(report: &'a CreateReport) -> Self {
        Self {
            path: &report.path,
            size_bytes: report.size_bytes,
            allocation_bytes: report.allocation_bytes,
            preallocation: report.preallocation,
            written_bytes: report.written_bytes,
            resumed_bytes: report.resumed_bytes,
            plan: report.plan.as_ref(),
            verified: report.verified,
            map: &report.map,
            notes: &report.notes,
            elapsed_seconds: report.elapsed_seconds,
        }
    }
}

fn describe(report: &Told<'_>, verbose: bool) -> String {
    let mut out = format!(
        "{}: {}, {}",
        print::path(report.path),
        ByteSize(report.size_bytes),
        what(report)
    );
    if report.resumed_bytes > 0 {
        print::row(
            &mut out,
            "resumed",
            format!("{} were written already", ByteSize(report.resumed_bytes)),
        );
    }
    if let Some(rate) = rate(report) {
        print::row(
            &mut out,
            "time",
            format!(
                "{:.2} s, {}/s",
                report.elapsed_seconds,
                ByteSize(rate.get())
            ),
        );
    }
    if let Some(plan) = report.plan {
        print::row(&mut out, "how", &plan.reason);
        if verbose {
            describe_plan(&mut out, plan);
        }
    }
    if report.map.extents() > 0 {
        print::row(
            &mut out,
            "extents",
            format!(
                "{}, in {} {} on the device; the largest {}",
                report.map.extents(),
                report.map.fragments(),
                if report.map.fragments() == 1 {
                    "piece"
                } else {
                    "pieces"
                },
                ByteSize(report.map.largest_extent_bytes())
            ),
        );
    }
    if report.allocation_bytes > 0 {
        print::row(&mut out, "checked", checked(report));
    }
    for note in report.notes {
        print::row(&mut out, "note", note);
    }
    out
}

fn what(report: &Told<'_>) -> String {
    let part = if report.allocation_bytes == report.size_bytes {
        "all of it".to_owned()
    } else {
        format!("the first {} of it", ByteSize(report.allocation_bytes))
    };
    match report.preallocation {
        Preallocation::Off => "sparse".to_owned(),
        Preallocation::Falloc => format!("{part} reserved (unwritten)"),
        Preallocation::Full => format!("{part} zeroed and written"),
    }
}

/// Bytes a second, where bytes were written.
fn rate(report: &Told<'_>) -> Option<NonZeroU64> {
    let rate = report.written_bytes as f64 / report.elapsed_seconds.max(1e-9);
    NonZeroU64::new(rate as u64)
}

/// The strategies before the one taken, and the details of I/O.
pub fn describe_plan(out: &mut String, plan: &Plan) {
    for rejected in &plan.rejected {
        print::row(
            out,
            "",
            format!("not {}: {}", rejected.strategy.name(), rejected.reason),
        );
    }
    if let Some(direct) = plan.direct_io {
        print::row(
            out,
            "",
            format!("direct I/O aligned to {} bytes", direct.offset_bytes),
        );
    }
}

fn checked(report: &Told<'_>) -> String {
    let state = report.preallocation.state();
    match report.verified {
        Verified::ExtentMap => format!("the extent map shows every byte {state}"),
        Verified::AllocatedSize => {
            "the blocks counted by the file system; it shows no states of extents".to_owned()
        }
    }
}
