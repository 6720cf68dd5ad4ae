//! The lines of Rust's libtest: what a test program says of its tests.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::step;

/// The name in the line of a failed test, as `--exact` takes it.
pub fn failed_test(line: &str) -> Option<&str> {
    let test = line.trim_end().strip_prefix("test ")?;
    let name = test.strip_suffix(" ... FAILED")?;
    Some(name.strip_suffix(" - should panic").unwrap_or(name))
}

/// How many tests a program is about to run, in its first line.
pub fn running(line: &str) -> Option<usize> {
    let (count, tests) = line.strip_prefix("running ")?.split_once(' ')?;
    let is_count = matches!(tests.trim_end(), "test" | "tests");
    count.parse().ok().filter(|_| is_count)
}

/// How many tests of a program failed, in its last line.
pub fn failures(line: &str) -> Option<usize> {
    let counts = line.strip_prefix("test result: FAILED. ")?;
    let mut counts = counts.split("; ");
    counts.find_map(|count| count.strip_suffix(" failed")?.parse().ok())
}

/// Whether the last program in an output ran a test. None runs where a filter matches nothing, and
/// libtest succeeds.
pub fn ran_tests<'l>(lines: impl IntoIterator<Item = &'l str>) -> bool {
    let last = lines.into_iter().filter_map(running).last();
    last.is_some_and(|count| count > 0)
}

/// Runs `cargo test` with its output shown, and returns the lines of it; also an error where its
/// last program ran no test.
pub fn run(command: &mut Command) -> Result<Vec<String>> {
    let line = step::shown(command);
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("`{line}` does not start"))?;
    let output = child.stdout.take().context("the output of a child")?;
    let mut lines = Vec::new();
    let mut output = BufReader::new(output);
    let mut bytes = Vec::new();
    // A test may print anything, also bytes that are not UTF-8.
    while output.read_until(b'\n', &mut bytes)? > 0 {
        let text = String::from_utf8_lossy(&bytes);
        print!("{text}");
        lines.push(text.trim_end_matches('\n').to_owned());
        bytes.clear();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    ensure!(
        ran_tests(lines.iter().map(String::as_str)),
        "`{line}` ran no test: nothing has this name any more"
    );
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_have_the_names_by_which_they_run_again() {
        assert_eq!(failed_test("test a::b_c ... FAILED\n"), Some("a::b_c"));
        assert_eq!(
            failed_test("test a::b - should panic ... FAILED\n"),
            Some("a::b")
        );
        assert_eq!(failed_test("test a::b_c ... ok\n"), None);
        assert_eq!(failed_test("thread 'a' panicked"), None);
    }

    #[test]
    fn counts_are_those_of_the_first_and_the_last_line() {
        assert_eq!(running("running 12 tests\n"), Some(12));
        assert_eq!(running("running 1 test"), Some(1));
        assert_eq!(running("running 2 commands"), None);
        let result =
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 1 filtered out";
        assert_eq!(failures(result), Some(2));
        assert_eq!(failures("test result: ok. 3 passed; 0 failed"), None);
    }

    #[test]
    fn last_program_must_run_a_test() {
        assert!(ran_tests(["running 0 tests", "running 1 test", "ok"]));
        assert!(!ran_tests(["running 4 tests", "ok", "running 0 tests"]));
        assert!(!ran_tests(["ok"]));
    }

    #[test]
    fn run_without_a_test_fails_and_names_its_command() {
        let run = |script: &str| run(Command::new("sh").args(["-c", script]));
        let lines = run("echo 'running 1 test'; echo ok").unwrap();
        assert_eq!(lines, ["running 1 test", "ok"]);
        let error = run("echo 'running 0 tests'").unwrap_err().to_string();
        assert!(error.contains("`sh -c echo 'running 0 tests'` ran no test"));
        let error = run("echo 'running 1 test'; exit 101").unwrap_err();
        assert!(error.to_string().contains("failed"), "{error}");
    }
}
