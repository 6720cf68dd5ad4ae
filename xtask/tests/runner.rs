//! `xtask run-test` as cargo starts it.

use std::path::Path;
use std::process::{Command, Output};

fn run_test(limit_seconds: u32, script: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["run-test", "sh", "-c", script]);
    command.env("EXTANT_TEST_LIMIT", limit_seconds.to_string());
    command.output().unwrap()
}

fn assert_killed(output: &Output, problem: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains(problem), "{stderr}");
    let pid = String::from_utf8_lossy(&output.stdout);
    assert!(
        stderr.contains(&format!("process {}: ", pid.trim())),
        "{stderr}"
    );
    // A zombie process has no command line any more.
    let line = std::fs::read(Path::new("/proc").join(pid.trim()).join("cmdline"));
    assert!(line.unwrap_or_default().is_empty(), "{stderr}");
}

#[test]
fn program_that_exceeds_the_limit_fails_and_ends_with_its_children() {
    let output = run_test(1, "sleep 1000 & echo $!; wait");
    assert_eq!(output.status.code(), Some(1));
    assert_killed(&output, "exceeds its limit of 1 s");
}

#[test]
fn processes_that_outlive_the_program_are_killed_and_its_status_remains() {
    let output = run_test(100, "setsid sleep 1000 >/dev/null 2>&1 & echo $!; exit 3");
    assert_eq!(output.status.code(), Some(3));
    assert_killed(&output, "outlive their program");
}

#[test]
fn program_that_ends_in_time_is_reported_with_its_times_only() {
    let output = run_test(100, "echo done");
    assert!(output.status.success());
    assert_eq!(output.stdout, b"done\n");
    let report = String::from_utf8(output.stderr).unwrap();
    assert_eq!(report.lines().count(), 1, "{report}");
    assert!(report.starts_with("xtask: sh of "), "{report}");
    assert!(report.ends_with(" s of processors\n"), "{report}");
}

/// Output of libtest with one failed test.
const FAILS: &str = "echo 'running 2 tests'; echo 'test a::b ... FAILED'
    echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored'; exit 101";

/// The program's script the first time, and when its failed tests are run again.
fn run_twice(first: &str, second: &str) -> (Output, String) {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let marker = place("ran").display().to_string();
    let program = place("program-06b907aadae772ff");
    let script = format!(
        "#!/bin/sh\nif [ -e {marker} ]; then echo \"again $@\"; {second}; exit; fi; touch {marker}\n{first}\n"
    );
    std::fs::write(&program, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, executable).unwrap();
    std::fs::write(place("retried"), "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("run-test")
        .arg(&program)
        .env("EXTANT_TEST_RETRIED", place("retried"))
        .env("CARGO_PKG_NAME", "extant-tested")
        .output();
    let retried = std::fs::read_to_string(place("retried")).unwrap();
    (output.unwrap(), retried)
}

#[test]
fn failed_test_is_run_again_alone_and_reported() {
    let (passes, retried) = run_twice(FAILS, "echo 'running 1 test'; exit 0");
    assert_eq!(passes.status.code(), Some(0));
    assert!(
        String::from_utf8_lossy(&passes.stdout)
            .contains("--exact --test-threads=1 --include-ignored a::b")
    );
    assert!(String::from_utf8_lossy(&passes.stderr).contains("a::b failed and run again"));
    assert_eq!(retried, "a::b of program of extant-tested\n");

    let (fails, retried) = run_twice(FAILS, "echo 'running 1 test'; exit 7");
    assert_eq!(fails.status.code(), Some(101));
    assert_eq!(retried, "");
}

#[test]
fn failed_test_that_is_not_found_again_fails() {
    let (output, retried) = run_twice(FAILS, "echo 'running 0 tests'; exit 0");
    assert_eq!(output.status.code(), Some(101));
    assert_eq!(retried, "");
}

#[test]
fn program_that_crashes_after_a_failed_test_fails_and_is_not_run_again() {
    let passes = "echo 'running 1 test'; exit 0";
    for crash in ["kill -ABRT $$", "kill -SEGV $$", "exit 3"] {
        let first = format!("echo 'test a::b ... FAILED'; {crash}");
        let (output, _) = run_twice(&first, passes);
        assert!(!output.status.success(), "{crash}");
        assert_eq!(output.stdout, b"test a::b ... FAILED\n", "{crash}");
    }
}

#[test]
fn failed_test_without_a_line_of_its_own_fails() {
    let first = "echo 'test a::b ... FAILED'; echo 'test a::c ... output'; echo FAILED
        echo 'test result: FAILED. 1 passed; 2 failed; 0 ignored'; exit 101";
    let (output, _) = run_twice(first, "echo 'running 1 test'; exit 0");
    assert_eq!(output.status.code(), Some(101));
}
