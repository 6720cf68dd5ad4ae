//! The lines of Rust's libtest: what a test program says of its tests.

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
}
