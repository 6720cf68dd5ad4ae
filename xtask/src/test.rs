//! `cargo xtask test`: every test, and none skipped.
//!
//! `EXTANT_TEST_STRICT=1` makes the test kit fail where it would otherwise skip because a tool, a
//! file system or a privilege is missing (docs/testing.md).

use std::fs;
use std::io::{self, Seek};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result};

use crate::setup::{self, Guest};
use crate::workspace::Workspace;
use crate::{claims, libtest, runner, step};

/// Options of cargo test that choose packages, so that `--workspace` stays away.
const PACKAGE_OPTIONS: [&str; 2] = ["-p", "--package"];
/// Options that say how to build, as they matter to `cargo build` as well.
const PROFILE_OPTIONS: [&str; 2] = ["-r", "--release"];

/// Crates whose concurrent parts run under a model checker instead of the standard library's
/// primitives.
const SHUTTLE_CRATES: [&str; 2] = ["extant-mballoc", "extant-jbd2"];

/// Sets up, builds the binaries, and runs the tests.
pub fn run(workspace: &Workspace, cargo_args: &[String], test_args: &[String]) -> Result<()> {
    setup::run(workspace, Guest::Wanted)?;
    let mut retried = Vec::new();
    let result = run_tests(workspace, cargo_args, test_args, &mut retried);
    if !retried.is_empty() {
        step::heading("tests that passed only when they were run again");
        eprintln!("{}", retried.join("\n"));
    }
    result
}

/// As [`run`], on a machine that is set up; `retried` gets the tests that passed only when they
/// were run again.
pub fn run_tests(
    workspace: &Workspace,
    cargo_args: &[String],
    test_args: &[String],
    retried: &mut Vec<String>,
) -> Result<()> {
    let list = tempfile::NamedTempFile::new().context("a temporary file")?;
    let runner = Runner {
        // The path is taken before the build, which may replace the file.
        setting: runner_setting()?,
        retried: list.path(),
    };
    let result = run_programs(workspace, &runner, cargo_args, test_args);
    let noted = fs::read_to_string(list.path()).context("the list of repeated tests")?;
    retried.extend(noted.lines().map(str::to_owned));
    result
}

/// How cargo starts test programs.
struct Runner<'a> {
    /// Cargo's setting that runs them by `xtask run-test`.
    setting: String,
    /// The list of tests that passed only when they were run again.
    retried: &'a Path,
}

impl Runner<'_> {
    /// `cargo test` with this runner.
    fn cargo(&self, workspace: &Workspace) -> Command {
        let mut test = workspace.cargo(&["test", "--config", &self.setting]);
        runner::note_retried(&mut test, self.retried);
        test
    }
}

fn run_programs(
    workspace: &Workspace,
    runner: &Runner<'_>,
    cargo_args: &[String],
    test_args: &[String],
) -> Result<()> {
    // Tests of the guest and the kill loops run the binaries by their path in
    // the target directory; cargo test alone builds only those of the crate under test.
    step::heading("build the binaries");
    let mut build = workspace.cargo(&["build", "--workspace", "--bins"]);
    if !chooses_packages(cargo_args) {
        // With the features of the tests: without them all crates would be built twice.
        build.args(["--tests", "--examples"]);
    }
    build.args(build_args(cargo_args));
    step::run(&mut build)?;

    if test_args.is_empty() && build_args(cargo_args).len() == cargo_args.len() {
        all(workspace, runner, cargo_args)?;
    } else {
        let mut test = cargo_test(workspace, runner);
        if !chooses_packages(cargo_args) {
            test.arg("--workspace");
        }
        test.args(cargo_args);
        if !test_args.is_empty() {
            test.arg("--").args(test_args);
        }
        step::heading("test");
        step::run(&mut test)?;
        if cargo_args.iter().any(|arg| !arg.starts_with('-')) || !test_args.is_empty() {
            // A filter chooses among the ordinary tests.
            return Ok(());
        }
    }
    shuttle(workspace, runner)
}

/// Runs every test program, two at a time: one waits for a part of its time, and has two threads.
fn all(workspace: &Workspace, runner: &Runner<'_>, cargo_args: &[String]) -> Result<()> {
    let claims = tempfile::tempdir().context("a temporary directory")?;
    let cargo = |targets: &[&str]| {
        let mut test = cargo_test(workspace, runner);
        // All failures are shown, as CI runs once.
        test.args(["--workspace", "--no-fail-fast"]).args(targets);
        test.args(cargo_args);
        claims::share(&mut test, claims.path());
        test
    };
    // Examples of documentation have no names to claim.
    let mut second = cargo(&["--lib", "--bins", "--tests"]);
    let mut printed = tempfile::tempfile().context("a temporary file")?;
    second
        .stdout(printed.try_clone()?)
        .stderr(printed.try_clone()?);
    let (first, second) = thread::scope(|scope| {
        let second = scope.spawn(|| step::run(&mut second));
        step::heading("test");
        let first = step::run(&mut cargo(&[]));
        (first, second.join().expect("a step does not panic"))
    });
    step::heading("what ran at the same time");
    printed.rewind()?;
    io::copy(&mut printed, &mut io::stdout())?;
    first.and(second)
}

/// `cargo test` whose tests fail where they lack something.
fn cargo_test(workspace: &Workspace, runner: &Runner<'_>) -> Command {
    let mut test = runner.cargo(workspace);
    test.env("EXTANT_TEST_STRICT", "1");
    test
}

/// Cargo's setting that runs test programs by `xtask run-test`.
fn runner_setting() -> Result<String> {
    let xtask = std::env::current_exe().context("the path of xtask")?;
    let xtask = xtask.to_str().context("the path of xtask is not UTF-8")?;
    let words = serde_json::json!([xtask, "run-test"]);
    Ok(format!("target.'cfg(all())'.runner={words}"))
}

/// Runs the tests of the model checker, which replace the ordinary ones in a separate build.
fn shuttle(workspace: &Workspace, runner: &Runner<'_>) -> Result<()> {
    for package in SHUTTLE_CRATES {
        step::heading(&format!("schedules of {package}"));
        let mut test = runner.cargo(workspace);
        test.args(["--features", "shuttle", "--lib", "--test", "shuttle"]);
        libtest::run(test.args(["-p", package]))?;
    }
    Ok(())
}

fn chooses_packages(cargo_args: &[String]) -> bool {
    cargo_args.iter().any(|arg| {
        PACKAGE_OPTIONS.contains(&arg.as_str())
            || arg.starts_with("--package=")
            || (arg.starts_with("-p") && !arg.starts_with("--"))
    })
}

fn build_args(cargo_args: &[String]) -> Vec<&str> {
    let chosen = cargo_args.iter().map(String::as_str);
    chosen
        .filter(|arg| PROFILE_OPTIONS.contains(arg) || arg.starts_with("--profile="))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Vec<String> {
        line.split(' ').map(String::from).collect()
    }

    #[test]
    fn package_option_in_each_spelling_replaces_workspace() {
        for line in [
            "-p extant",
            "-pextant",
            "--package extant",
            "--package=extant",
        ] {
            assert!(chooses_packages(&args(line)), "{line}");
        }
        assert!(!chooses_packages(&args("--release --profile=x name")));
    }

    #[test]
    fn build_takes_profile_and_leaves_filters() {
        let line = args("--release resume -p extant");
        assert_eq!(build_args(&line), ["--release"]);
    }
}
