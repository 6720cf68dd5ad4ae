//! `extant-bench`: measurements of Extant and its peers.
//!
//! `cargo run --release -p extant-bench -- NAME` runs one bench; `list` names them all.
//! Measurements, pitfalls and goals: docs/benchmarks.md.
//!
//! One file per bench in `benches/`, one registry there. A bench fills an [`Outcome`] with
//! metrics, tables and the values of its goals. The frame provides the rest:
//! arguments and directory ([`mod@bench`]), statistics ([`metrics`]), evaluation of goals
//! ([`goal`]), the printed and the JSON report ([`report`]), peers ([`needs`], [`fio`]),
//! idle time between samples ([`disk`], [`memory`]).
//!
//! Module layers, lowest first:
//!
//! 1. `disk`, `document`, `fio`, `goal`, `latency`, `measured`, `metrics`, `needs`, `paired`,
//!    `peers`, `process`, `product`, `random`: the fixtures of a bench, its measurements, its goals
//!    and their texts
//! 2. `commit`, `directory`, `machine`, `memory`, `table`: the tree, the machine and the directory
//!    of a run; tables in text
//! 3. `bench`: the interface of a bench
//! 4. `benches`, `report`, `saved`: all benches; the report of a run, and as it is read again
//! 5. `compare`, `results`: two results compared; kept results, and the pages made from them
//! 6. `page`: results as one HTML page
//! 7. `publish`: the command `report`
//!
//! [`Outcome`]: bench::Outcome

#![deny(unsafe_code)]

mod bench;
mod benches;
mod commit;
mod compare;
mod directory;
mod disk;
mod document;
mod fio;
mod goal;
mod latency;
mod machine;
mod measured;
mod memory;
mod metrics;
mod needs;
mod page;
mod paired;
mod peers;
mod process;
mod product;
mod publish;
mod random;
mod report;
mod results;
mod saved;
mod table;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, Subcommand};
use extant_fuse::options::IoUring;
use extant_space::{BackgroundShare, ByteSize};

use crate::bench::{Bench, Context, Options};
use crate::benches::exports::noop;
use crate::benches::methods;
use crate::benches::mount::floor;
use crate::benches::scaling::worker;
use crate::publish::ReportArguments;
use crate::report::Report;

/// A goal is missed, with `--check`.
const MISSED: u8 = 3;

/// Measure Extant beside its peers.
#[derive(Debug, Default, Parser)]
#[command(
    name = "extant-bench",
    version,
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "\
Examples:
  extant-bench list
  extant-bench written --quick
  extant-bench written --runs 9 --json > written.json
  extant-bench neighbour --check
  extant-bench neighbour --background-share 10 --pairs 2000
  extant-bench images --only modes --only disk --only 'qcow2 off'
  extant-bench mount --only 'direct random'
  extant-bench report                     one page of the kept results, with charts

Exit status: 0 done, 1 failed, 2 wrong arguments, 3 a goal is missed (--check),\n4 a figure is worse (report --compare)."
)]
struct Arguments {
    #[command(subcommand)]
    inner: Option<Inner>,

    /// The bench; `list` names them, `pages` makes the pages of docs/results from their data
    name: Option<String>,

    /// Smaller and fewer: under a minute, for a look; its metrics settle nothing
    #[arg(long)]
    quick: bool,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,

    /// Keep the result in docs/results
    #[arg(long, conflicts_with = "quick")]
    save: bool,

    /// End with status 3 when a goal is missed
    #[arg(long)]
    check: bool,

    /// Rounds: samples of each method
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,

    /// Size of the files, such as 8GiB
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// In `neighbour`: the share of extant create --background=PERCENT% [default: 5]
    #[arg(long, value_name = "PERCENT")]
    background_share: Option<BackgroundShare>,

    /// In `images`, `exports`, `mount` and `fragments`: measure only parts and samples whose name
    /// contains TEXT (all, if given more than once). In `images`: creation, load, floor, modes, or
    /// of the modes a place, image or engine; likewise in `exports`, and a client. In `mount`:
    /// fallocate2, files, listing, tree, sqlite, log, transfer, or of transfer such as "direct
    /// random". In `fragments`: disk, simulated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,

    /// In `neighbour`: pairs of intervals of each case at most [default: 1200, or 40]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pairs: Option<u32>,

    /// Where to measure [default: a directory under target/]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// The extant to measure [default: built from this tree]
    #[arg(long, value_name = "PROGRAM")]
    extant: Option<PathBuf>,
}

/// `report`, and internal commands, for which the bench starts itself.
#[derive(Debug, Subcommand)]
enum Inner {
    Report(Box<ReportArguments>),
    #[command(name = measured::WORD, hide = true)]
    Measure {
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    #[command(name = memory::WORD, hide = true)]
    Touch {
        bytes: u64,
    },
    #[command(name = floor::WORD, hide = true)]
    Floor {
        #[arg(long)]
        io_uring: bool,
        directory: PathBuf,
        data: Option<PathBuf>,
    },
    #[command(name = noop::WORD, hide = true)]
    Noop {
        socket: PathBuf,
        bytes: u64,
    },
    #[command(name = methods::WORD, hide = true)]
    Zeroes {
        file: PathBuf,
        bytes: u64,
        write_bytes: Option<usize>,
    },
    #[command(name = worker::WORD, hide = true)]
    Fallocate2 {
        file: PathBuf,
        cpu: usize,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("extant-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    match &arguments.inner {
        Some(Inner::Measure { command }) => measured::serve(command)?,
        Some(Inner::Touch { bytes }) => memory::serve(*bytes)?,
        Some(Inner::Floor {
            io_uring,
            directory,
            data,
        }) => {
            let io_uring = if *io_uring { IoUring::On } else { IoUring::Off };
            floor::serve(directory, data.as_deref(), io_uring)?;
        }
        Some(Inner::Noop { socket, bytes }) => noop::serve(socket, *bytes)?,
        Some(Inner::Zeroes {
            file,
            bytes,
            write_bytes,
        }) => methods::serve(file, *bytes, *write_bytes)?,
        Some(Inner::Fallocate2 { file, cpu }) => worker::serve(file, *cpu)?,
        Some(Inner::Report(arguments)) => {
            return publish::run(arguments, |bench, quick| {
                let arguments = Arguments {
                    quick,
                    ..Arguments::default()
                };
                report_of(bench, &arguments)
            });
        }
        None => return measure(arguments),
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(arguments: Arguments) -> Result<ExitCode> {
    let name = arguments.name.as_deref().unwrap_or_default();
    if name == "list" {
        for bench in benches::ALL {
            println!("{:<12} {}", bench.name(), bench.about());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if name == "pages" {
        results::write_pages()?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(bench) = benches::find(name) else {
        let names: Vec<_> = benches::ALL.iter().map(|bench| bench.name()).collect();
        bail!("no bench {name:?}; there are {}", names.join(", "));
    };
    let report = report_of(bench, &arguments).with_context(|| name.to_owned())?;
    if arguments.save {
        results::save(&report)?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    let missed = report.missed();
    if arguments.check && !missed.is_empty() {
        eprintln!("extant-bench: {name}: missed {}", missed.join(", "));
        return Ok(ExitCode::from(MISSED));
    }
    Ok(ExitCode::SUCCESS)
}

/// The benches that `--only` is for.
const SELECTIVE: [&str; 5] = ["images", "modes", "exports", "mount", "fragments"];

fn report_of(bench: &'static dyn Bench, arguments: &Arguments) -> Result<Report> {
    ensure!(
        arguments.background_share.is_none() && arguments.pairs.is_none()
            || bench.name() == "neighbour",
        "--background-share and --pairs are for neighbour"
    );
    ensure!(
        arguments.only.is_empty() || SELECTIVE.contains(&bench.name()),
        "--only is for {}",
        SELECTIVE.join(", ")
    );
    needs::check(bench.needs())?;
    let options = Options {
        quick: arguments.quick,
        runs: arguments.runs.map(|runs| runs as usize),
        size_bytes: arguments.size.map(|size| size.0),
        background_share: arguments.background_share,
        only: arguments.only.clone(),
        pairs: arguments.pairs.map(|pairs| pairs as usize),
    };
    let extant = match &arguments.extant {
        Some(program) => program.clone(),
        None => product::build()?,
    };
    let context = Context::new(bench, options, arguments.dir.as_deref(), extant)?;
    Report::of(bench, &context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }

    #[test]
    fn name_with_options_is_no_inner_command() {
        let arguments = Arguments::parse_from(["x", "written", "--quick", "--size", "2GiB"]);
        assert_eq!(arguments.name.as_deref(), Some("written"));
        assert_eq!(arguments.size, Some(ByteSize(2 << 30)));
        assert!(arguments.inner.is_none());
    }

    #[test]
    fn command_to_measure_keeps_its_options() {
        let arguments = Arguments::parse_from(["x", measured::WORD, "dd", "--help", "-v"]);
        let Some(Inner::Measure { command }) = arguments.inner else {
            panic!("{arguments:?}");
        };
        assert_eq!(command, ["dd", "--help", "-v"]);
    }
}
