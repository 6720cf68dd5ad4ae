//! `cargo xtask proof`: the bounded exhaustive tests, complete.
//!
//! Every sequence of one and two operations on the ext4 engine and on qcow2 images is cut at every
//! device write; of the longer ones a part. Each system call of a command fails once with each
//! error. CI runs a shard of the same tests. The output ends with
//! one line for each of them, and `target/proof/report.json` has the numbers.

mod report;

use std::process::Command;

use anyhow::{Result, ensure};

use crate::workspace::Workspace;
use crate::{libtest, step};

/// Tests of one program.
struct Part {
    name: &'static str,
    package: &'static str,
    program: &'static str,
    tests: &'static str,
    environment: &'static [(&'static str, &'static str)],
}

const ALL: (&str, &str) = ("EXTANT_EXHAUSTIVE", "0/1");

const PARTS: [Part; 5] = [
    Part {
        name: "ext4",
        package: "extant-ext4",
        program: "power",
        tests: "every::each",
        environment: &[ALL],
    },
    Part {
        name: "ext4-samples",
        package: "extant-ext4",
        program: "power",
        tests: "every::sampled",
        environment: &[("EXTANT_EXHAUSTIVE_SAMPLES", "20000")],
    },
    Part {
        name: "qcow2",
        package: "extant-image",
        program: "device",
        tests: "power::every::each",
        environment: &[ALL],
    },
    Part {
        name: "qcow2-samples",
        package: "extant-image",
        program: "device",
        tests: "power::every::sampled",
        environment: &[("EXTANT_EXHAUSTIVE_SAMPLES", "20000")],
    },
    Part {
        name: "calls",
        package: "extant",
        program: "failing",
        tests: "each",
        environment: &[ALL],
    },
];

/// The names of the parts, in their order.
pub fn names() -> impl Iterator<Item = &'static str> {
    PARTS.iter().map(|part| part.name)
}

/// Runs the named parts, or all, and prints what they have tested.
pub fn run(workspace: &Workspace, only: &[String]) -> Result<()> {
    // Before hours in which the sources may change.
    let stamp = report::Stamp::now(workspace)?;
    let mut lines = Vec::new();
    let is_wanted = |part: &&Part| only.is_empty() || only.iter().any(|name| name == part.name);
    for part in PARTS.iter().filter(is_wanted) {
        step::heading(&format!("{}: {}", part.package, part.tests));
        let mut cargo = workspace.cargo(&["test", "--locked", "-p", part.package]);
        cargo.args(["--test", part.program, part.tests]);
        // One at a time: each uses all processors.
        cargo.args(["--", "--nocapture", "--test-threads=1"]);
        cargo.env("EXTANT_TEST_STRICT", "1");
        cargo.envs(part.environment.iter().copied());
        lines.extend(counts(&mut cargo)?);
    }
    step::heading("proof");
    for line in &lines {
        println!("{line}");
    }
    report::write(workspace, &stamp, &lines)
}

/// Runs the tests of a part with their output shown; returns the lines of it that count something.
fn counts(command: &mut Command) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for line in libtest::run(command)? {
        keep_count(&line, &mut lines);
    }
    ensure!(
        !lines.is_empty(),
        "`{}` printed no count of what it tested",
        step::shown(command)
    );
    Ok(lines)
}

/// Adds a line that counts something. The test program begins a line with the name of the test. A
/// test that samples counts on: its last line replaces the earlier ones.
pub fn keep_count(line: &str, lines: &mut Vec<String>) {
    let line = line.split_once(" ... ").map_or(line, |(_, rest)| rest);
    if let Some((name, _)) = line.split_once(": ")
        && (line.contains(" sequences, ") || name == "failing calls")
    {
        lines.retain(|earlier| !earlier.starts_with(&format!("{name}: ")));
        lines.push(line.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_count_of_each_name_is_kept() {
        let mut lines = Vec::new();
        for line in [
            "running 2 tests",
            "test a::b ... ext4, full, sampled: 5 sequences, 3 possible",
            "ext4, full, sampled: 10 sequences, 6 possible",
            "ext4, fast, sampled: 5 sequences, 3 possible",
            "failing calls: 3 of 3, 0.1 s",
            "ok",
        ] {
            keep_count(line, &mut lines);
        }
        assert_eq!(
            lines,
            [
                "ext4, full, sampled: 10 sequences, 6 possible",
                "ext4, fast, sampled: 5 sequences, 3 possible",
                "failing calls: 3 of 3, 0.1 s"
            ]
        );
    }

    #[test]
    fn part_without_tests_or_without_a_count_fails() {
        let counts = |script: &str| counts(Command::new("sh").args(["-c", script]));
        let counted = "echo 'running 1 test'; echo 'failing calls: 3 of 3, 0.1 s'";
        assert_eq!(counts(counted).unwrap(), ["failing calls: 3 of 3, 0.1 s"]);
        let error = counts("echo 'running 0 tests'").unwrap_err().to_string();
        assert!(error.contains("ran no test"), "{error}");
        let error = counts("echo 'running 1 test'").unwrap_err().to_string();
        assert!(error.contains("printed no count"), "{error}");
    }
}
