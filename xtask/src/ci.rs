//! `cargo xtask ci`: exactly what CI runs.
//!
//! Every step runs even after a failed one, so that one run shows all
//! failures; only a failed set-up ends the run. The table of times at the end
//! is compared with the budget: 45 minutes on a fresh machine with two cores.
//! Steps may be selected by name: those that only read the code take two
//! minutes, which is enough before a commit.

use std::env;
use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::setup::{self, Guest};
use crate::workspace::Workspace;
use crate::{deny, instructions, step, test, tidy};

/// A step's name and work, which may add lines to the table.
type Step = (
    &'static str,
    fn(&Workspace, notes: &mut Vec<String>) -> Result<()>,
);

const STEPS: [Step; 7] = [
    ("setup", |workspace, _| setup::run(workspace, Guest::Wanted)),
    ("tidy", |workspace, _| tidy::run(workspace)),
    ("licences", |workspace, _| deny::run(workspace)),
    ("clippy", |workspace, _| clippy(workspace)),
    ("docs", |workspace, _| docs(workspace)),
    ("test", tests),
    ("counts", |workspace, _| {
        instructions::run(workspace, instructions::Then::Compare)
    }),
];

/// The names of the steps, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|(name, _)| *name)
}

/// The result of a step.
struct Outcome {
    name: &'static str,
    took: Duration,
    error: Option<String>,
    notes: Vec<String>,
}

/// Runs the named steps, or all, in the order of CI, and prints their table.
pub fn run(workspace: &Workspace, only: &[String]) -> Result<()> {
    let mut outcomes = Vec::new();
    for (name, work) in wanted(only) {
        step::heading(&format!("ci: {name}"));
        let start = Instant::now();
        let mut notes = Vec::new();
        let error = work(workspace, &mut notes)
            .err()
            .map(|error| format!("{error:#}"));
        if let Some(error) = &error {
            eprintln!("{name}: {error}");
        }
        let stop = name == "setup" && error.is_some();
        outcomes.push(Outcome {
            name,
            took: start.elapsed(),
            error,
            notes,
        });
        if stop {
            break;
        }
    }

    step::heading("ci");
    eprint!("{}", table(&outcomes));
    let failed = failed(&outcomes);
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn wanted(only: &[String]) -> impl Iterator<Item = Step> {
    STEPS
        .into_iter()
        .filter(move |(name, _)| only.is_empty() || only.iter().any(|wanted| wanted == name))
}

fn clippy(workspace: &Workspace) -> Result<()> {
    let args = ["clippy", "--workspace", "--all-targets", "--locked"];
    step::run(workspace.cargo(&args).args(["--", "-D", "warnings"]))
}

fn tests(workspace: &Workspace, notes: &mut Vec<String>) -> Result<()> {
    let mut retried = Vec::new();
    let result = test::run_tests(workspace, &[], &[], &mut retried);
    let retried = retried.into_iter();
    notes.extend(retried.map(|test| format!("passed only when run again: {test}")));
    result
}

fn docs(workspace: &Workspace) -> Result<()> {
    let flags = env::var("RUSTDOCFLAGS").unwrap_or_default();
    let mut cargo = workspace.cargo(&["doc", "--no-deps", "--workspace", "--locked"]);
    cargo.env("RUSTDOCFLAGS", format!("{flags} -D warnings").trim());
    step::run(&mut cargo)
}

fn failed(outcomes: &[Outcome]) -> Vec<&'static str> {
    let failed = outcomes.iter().filter(|outcome| outcome.error.is_some());
    failed.map(|outcome| outcome.name).collect()
}

fn table(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let mut row = |name: &str, took: Duration, words: &str, notes: &[String]| {
        let seconds = took.as_secs_f64();
        writeln!(text, "{name:<10} {seconds:>8.1} s  {words}").expect("a string takes any text");
        for note in notes {
            writeln!(text, "{:<23}{note}", "").expect("a string takes any text");
        }
    };
    for outcome in outcomes {
        // The output of a command may have several lines; they were shown when the step ended.
        let words = outcome.error.as_deref().unwrap_or("ok");
        row(
            outcome.name,
            outcome.took,
            words.lines().next().unwrap_or_default(),
            &outcome.notes,
        );
    }
    let total = outcomes.iter().map(|outcome| outcome.took).sum();
    row("total", total, "", &[]);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &'static str, seconds: u64, error: Option<&str>) -> Outcome {
        Outcome {
            name,
            took: Duration::from_secs(seconds),
            error: error.map(String::from),
            notes: Vec::new(),
        }
    }

    #[test]
    fn table_shows_every_step_and_the_total() {
        let outcomes = [
            outcome("tidy", 2, None),
            outcome("docs", 61, Some("no docs\nat all")),
        ];
        let lines: Vec<_> = table(&outcomes).lines().map(String::from).collect();
        assert_eq!(lines[0], "tidy            2.0 s  ok");
        assert_eq!(lines[1], "docs           61.0 s  no docs");
        assert!(lines[2].starts_with("total          63.0 s"));
    }

    #[test]
    fn table_names_the_tests_that_passed_only_the_second_time() {
        let mut outcome = outcome("test", 2, None);
        outcome.notes = vec!["passed only when run again: a::b of pool of extant".into()];
        let table = table(&[outcome]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines[0], "test            2.0 s  ok");
        assert_eq!(
            lines[1].trim_start(),
            "passed only when run again: a::b of pool of extant"
        );
    }

    #[test]
    fn steps_that_are_named_run_in_the_order_of_ci() {
        let of = |only: &[&str]| -> Vec<&str> {
            let only: Vec<_> = only.iter().map(|name| name.to_string()).collect();
            wanted(&only).map(|(name, _)| name).collect()
        };
        assert_eq!(of(&["docs", "tidy"]), ["tidy", "docs"]);
        assert_eq!(of(&[]), names().collect::<Vec<_>>());
    }

    #[test]
    fn summary_names_only_failed_parts() {
        let outcomes = [
            outcome("tidy", 2, None),
            outcome("docs", 61, Some("no docs")),
        ];
        assert_eq!(failed(&outcomes), ["docs"]);
    }
}
