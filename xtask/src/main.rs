//! The project's own commands, run as `cargo xtask NAME`.
//!
//! One file per command. A command prints one heading per step, names the step that failed, and
//! does nothing where nothing is to be done.
//!
//! Module layers, lowest first:
//!
//! 1. `claims`, `libtest`, `runner`, `step`: who runs a test program, what it says, and how it is
//!    run; headings, commands, errors
//! 2. `workspace`: the workspace, and cargo commands in it
//! 3. `cargo_tool`, `instructions`, `notices`, `provenance`, `publish`, `reproducible`,
//!    `screenshot`, `setup`, `tidy`: programs from the package registry; instruction counts;
//!    licences of others; commit and date of results; crates for the registry; builds for users;
//!    README's picture; the machine's packages; house rules
//! 4. `coverage`, `deny`, `fuzz`, `msrv`, `proof`, `sbom`, `semver`, `suites`, `test`: code that
//!    tests reach; licences; coverage-guided fuzzing; the oldest Rust; complete exhaustive tests;
//!    bills of materials; breaking changes; third-party suites; all tests
//! 5. `dist`, `evidence`, `soak`, `static_program`, `wheel`: the files that are installed; the page
//!    of numbers; tests with fresh seeds for hours; the program in one file; the module for Python
//! 6. `ci`, `install`, `oci`: all of CI; installation; the container image
//! 7. `packages`: packages for distributions
//! 8. `delivery`: everything that users get, in parts
//! 9. `release`: a version

#![forbid(unsafe_code)]

mod cargo_tool;
mod ci;
mod claims;
mod coverage;
mod delivery;
mod deny;
mod dist;
mod evidence;
mod fuzz;
mod install;
mod instructions;
mod libtest;
mod msrv;
mod notices;
mod oci;
mod packages;
mod proof;
mod provenance;
mod publish;
mod release;
mod reproducible;
mod runner;
mod sbom;
mod screenshot;
mod semver;
mod setup;
mod soak;
mod static_program;
mod step;
mod suites;
mod test;
mod tidy;
mod wheel;
mod workspace;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::dist::Build;
use crate::install::Places;
use crate::workspace::Workspace;

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what tests and benches need: Debian packages, oracles, the guest
    Setup(SetupArgs),
    /// Set up, then run every test; nothing is skipped
    Test(TestArgs),
    /// Check the format, the layers and the house rules
    Tidy(TidyArgs),
    /// Count the instructions of hot paths and compare them with the baseline
    Instructions(InstructionsArgs),
    /// Run test suites of others against a mount
    Suites,
    /// Run the exhaustive tests completely, of which CI runs a shard
    Proof(ProofArgs),
    /// Fuzz the targets of extant-fuzz, guided by coverage, and report per target
    Fuzz(FuzzArgs),
    /// Run the tests with random inputs in turns with fresh seeds until a time is over
    Soak(SoakArgs),
    /// Measure the code that the tests of crates reach, those of the core unless others are named
    Coverage(CoverageArgs),
    /// Keep the results of proof, fuzz, soak and coverage, and make the page of numbers
    Evidence(EvidenceArgs),
    /// Everything that CI runs, in its order
    Ci(CiArgs),
    /// Build what users get: files to install, the static program, packages, the Python wheel
    Dist(DistArgs),
    /// Build everything of a version in target/dist-release, with checksums and a signature
    Release(ReleaseArgs),
    /// Install the program, man pages, completions and systemd units: DESTDIR= PREFIX= PROGRAM=
    Install(PlacesArgs),
    /// Remove what was installed: DESTDIR= PREFIX=
    Uninstall(PlacesArgs),
    /// Check the packages of all crates and publish them, in the order of their dependencies
    Publish(PublishArgs),
    /// Compile what is published with the oldest Rust that it claims to support
    Msrv,
    /// Find changes of the published libraries that break their users
    Semver(SemverArgs),
    /// Make the picture of the report in README.md from the kept results
    Screenshot,
    /// Run a test program with a time limit, as cargo's runner
    #[command(hide = true)]
    RunTest(RunTestArgs),
}

#[derive(Args)]
struct SetupArgs {
    /// Leave out the guest: tests that boot a newer kernel will then fail or skip
    #[arg(long)]
    no_guest: bool,
}

#[derive(Args)]
#[command(override_usage = "cargo xtask test [ARGS]... [-- TEST_ARGS...]")]
struct TestArgs {
    /// Passed to cargo test: filters and options such as `-p extant-hostfs` or `--release`;
    /// arguments after `--` are passed to the test programs, such as `--nocapture`
    #[arg(allow_hyphen_values = true, value_name = "ARGS")]
    cargo_args: Vec<String>,
}

#[derive(Args)]
struct TidyArgs {
    /// First write what is generated: the diagram of docs/design.md, the symbols of libextant0
    #[arg(long)]
    write: bool,
}

#[derive(Args)]
struct InstructionsArgs {
    /// Make the counts of this run the baseline
    #[arg(long)]
    update: bool,
}

#[derive(Args)]
struct DistArgs {
    /// Packages of an unoptimised build, uncompressed, in target/quick-packages: for tests
    #[arg(long)]
    quick: bool,
    /// Then install, use and remove the packages in clean systems
    #[arg(long)]
    check: bool,
    /// Only these parts
    #[arg(value_parser = PossibleValuesParser::new(delivery::names()))]
    parts: Vec<String>,
}

#[derive(Args)]
struct ReleaseArgs {
    /// Set no tag; the changelog may lack the version, and the tree may have changes
    #[arg(long)]
    dry_run: bool,
    /// Private key of ssh that signs the checksums
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(Args)]
struct PlacesArgs {
    /// DESTDIR=DIR is put before every path, PREFIX=DIR is /usr/local unless given, PROGRAM=FILE is
    /// installed in place of a new build; also LIBDIR, SBINDIR, PYTHONDIR
    #[arg(value_name = "NAME=VALUE")]
    words: Vec<String>,
}

#[derive(Args)]
struct PublishArgs {
    /// Everything but the upload: package each crate, and build it from its package
    #[arg(long)]
    dry_run: bool,
}

#[derive(Args)]
struct ProofArgs {
    /// Only these parts
    #[arg(value_parser = PossibleValuesParser::new(proof::names()))]
    parts: Vec<String>,
}

#[derive(Args)]
struct FuzzArgs {
    /// Time for all targets together
    #[arg(long, default_value_t = 0.1)]
    hours: f64,
    /// Afterwards replace the kept inputs by those that the coverage needs
    #[arg(long)]
    minimise: bool,
    /// Only these targets
    targets: Vec<String>,
}

#[derive(Args)]
struct SoakArgs {
    /// No round of tests begins later
    #[arg(long, default_value_t = 0.1)]
    hours: f64,
    /// The first seed, instead of one of the clock
    #[arg(long)]
    seed: Option<u64>,
    /// Only these programs
    #[arg(value_parser = PossibleValuesParser::new(soak::names()))]
    programs: Vec<String>,
}

#[derive(Args)]
struct CoverageArgs {
    /// Names without `extant-`
    crates: Vec<String>,
}

#[derive(Args)]
struct EvidenceArgs {
    /// Only make the page again, from the kept results
    #[arg(long, conflicts_with = "parts")]
    render: bool,
    /// Keep the results of a soak also where rounds failed
    #[arg(long, conflicts_with = "render")]
    allow_failures: bool,
    /// Only these parts
    #[arg(value_parser = PossibleValuesParser::new(evidence::names()))]
    parts: Vec<String>,
}

#[derive(Args)]
struct CiArgs {
    /// Only these steps: `tidy clippy docs` take two minutes and need no set-up
    #[arg(value_parser = PossibleValuesParser::new(ci::names()))]
    steps: Vec<String>,
}

#[derive(Args)]
struct SemverArgs {
    /// Compare with this revision of git, such as the tag of the last release
    #[arg(long, value_name = "REV")]
    baseline: String,
}

#[derive(Args)]
struct RunTestArgs {
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

fn main() -> ExitCode {
    let (own_args, test_args) = split_at_dashes(env::args().collect());
    match run(Cli::parse_from(own_args).command, &test_args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command, test_args: &[String]) -> Result<ExitCode> {
    if let Command::RunTest(args) = &command {
        // Cargo describes the tested package in the environment here, not the workspace.
        return runner::run(&args.program, &args.args);
    }
    let workspace = Workspace::find()?;
    match command {
        Command::Setup(args) => setup::run(&workspace, setup::Guest::from_flag(args.no_guest)),
        Command::Test(args) => test::run(&workspace, &args.cargo_args, test_args),
        Command::Tidy(args) => {
            if args.write {
                tidy::write(&workspace)?;
            }
            tidy::run(&workspace)
        }
        Command::Instructions(args) => instructions::run(
            &workspace,
            if args.update {
                instructions::Then::Update
            } else {
                instructions::Then::Compare
            },
        ),
        Command::Suites => suites::run(&workspace),
        Command::Proof(args) => proof::run(&workspace, &args.parts),
        Command::Fuzz(args) => {
            let time = duration(args.hours)?;
            let plan = fuzz::Plan {
                time,
                targets: args.targets,
                minimise: args.minimise,
            };
            fuzz::run(&workspace, &plan)
        }
        Command::Soak(args) => {
            let plan = soak::Plan {
                time: duration(args.hours)?,
                seed: args.seed,
                programs: args.programs,
            };
            soak::run(&workspace, &plan)
        }
        Command::Coverage(args) => coverage::run(&workspace, &args.crates),
        Command::Evidence(args) if args.render => evidence::render(&workspace),
        Command::Evidence(args) => {
            let plan = evidence::Plan {
                parts: args.parts,
                allow_failures: args.allow_failures,
            };
            evidence::run(&workspace, &plan)
        }
        Command::Ci(args) => ci::run(&workspace, &args.steps),
        Command::Dist(args) => {
            let options = delivery::Options {
                build: if args.quick {
                    Build::Quick
                } else {
                    Build::Dist
                },
                check: args.check,
            };
            delivery::run(&workspace, &args.parts, options)
        }
        Command::Release(args) => release::run(
            &workspace,
            &release::Release {
                dry_run: args.dry_run,
                key: args.key,
            },
        ),
        Command::Install(args) => install::install(&workspace, &Places::parse(&args.words)?),
        Command::Uninstall(args) => install::uninstall(&Places::parse(&args.words)?),
        Command::Publish(args) => publish::run(
            &workspace,
            if args.dry_run {
                publish::Upload::No
            } else {
                publish::Upload::Yes
            },
        ),
        Command::Msrv => msrv::run(&workspace),
        Command::Semver(args) => semver::run(&workspace, &args.baseline),
        Command::Screenshot => screenshot::run(&workspace),
        Command::RunTest(_) => unreachable!("it returned above"),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn duration(hours: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(hours * 3600.0).context("--hours")
}

/// Arguments before and after the first `--`: clap would claim options of cargo.
fn split_at_dashes(mut args: Vec<String>) -> (Vec<String>, Vec<String>) {
    let Some(at) = args.iter().position(|arg| arg == "--") else {
        return (args, Vec::new());
    };
    let after = args.split_off(at + 1);
    args.pop();
    (args, after)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts the arguments of cargo test, and those of the test programs.
    fn assert_passed(line: &str, cargo: &[&str], program: &[&str]) {
        let (own, test_args) = split_at_dashes(line.split(' ').map(String::from).collect());
        let Command::Test(args) = Cli::try_parse_from(own).unwrap().command else {
            panic!("{line} is another command");
        };
        assert_eq!(args.cargo_args, cargo, "{line}");
        assert_eq!(test_args, program, "{line}");
    }

    #[test]
    fn options_of_cargo_test_pass_through_in_any_place() {
        assert_passed("xtask test", &[], &[]);
        assert_passed(
            "xtask test range --no-fail-fast",
            &["range", "--no-fail-fast"],
            &[],
        );
        assert_passed("xtask test -- --nocapture", &[], &["--nocapture"]);
        assert_passed(
            "xtask test --release -p extant-space range -- --exact x",
            &["--release", "-p", "extant-space", "range"],
            &["--exact", "x"],
        );
    }
}
