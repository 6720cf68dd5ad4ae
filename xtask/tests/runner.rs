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

#[test]
fn failed_test_is_run_again_alone_and_reported() {
    let directory = std::env::temp_dir().join(format!("extant-runner-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let marker = directory.join("ran").display().to_string();
    let script = |second: &str| {
        format!(
            "if [ -e {marker} ]; then echo \"$0 $@\"; {second}; fi; touch {marker};
            echo 'test a::b ... FAILED'; exit 101"
        )
    };
    let run = |second: &str| {
        let program = directory.join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{}\n", script(second))).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, executable).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("run-test")
            .arg(&program)
            .output();
        std::fs::remove_file(&marker).unwrap();
        output.unwrap()
    };
    let passes = run("exit 0");
    let fails = run("exit 7");
    std::fs::remove_dir_all(&directory).unwrap();
    assert_eq!(passes.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&passes.stdout).contains("--exact --test-threads=1 a::b"));
    assert!(String::from_utf8_lossy(&passes.stderr).contains("a::b failed and run again"));
    assert_eq!(fails.status.code(), Some(101));
}
