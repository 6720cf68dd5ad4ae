//! `qemu-img` and `qemu-io`: QEMU's reading and checking of disk images.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{self, Failure, tool};
use crate::requires::{self, Requirement};

/// The requirement of a test that runs `qemu-img`.
pub fn qemu_img() -> Requirement {
    requires::tool("qemu-img")
}

/// How long to retry while an image is locked: a child forked by another thread inherits this
/// process's files until its exec.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs `qemu-img`; its output.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn qemu(arguments: &[&dyn AsRef<OsStr>]) -> String {
    let mut command = tool("qemu-img");
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    output(&mut command)
}

#[track_caller]
fn output(command: &mut Command) -> String {
    let started = Instant::now();
    loop {
        match command::text(command) {
            Ok(output) => return output,
            Err(failure) if is_lock(&failure) && started.elapsed() < LOCK_TIMEOUT => {
                thread::sleep(LOCK_TIMEOUT / 40);
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

fn is_lock(failure: &Failure) -> bool {
    let output = failure.to_string();
    output.contains("Failed to get") && output.contains("lock")
}

/// Runs `qemu-img` for an answer in JSON.
///
/// # Panics
/// When it fails, or prints something else.
#[track_caller]
pub fn qemu_json(arguments: &[&dyn AsRef<OsStr>]) -> Value {
    let output = qemu(arguments);
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// Runs commands of `qemu-io` on an image or an export.
///
/// # Panics
/// When one of them fails, or reads something else than it names.
#[track_caller]
pub fn qemu_io(image: impl AsRef<OsStr>, format: &str, commands: &[&str]) -> String {
    let mut command = tool("qemu-io");
    command.args(["-f", format]);
    for words in commands {
        command.args(["-c", words]);
    }
    let output = output(command.arg(image));
    assert!(
        !output.contains("failed") && !output.contains("error"),
        "{commands:?}: {output}"
    );
    output
}

/// QEMU finds neither an error nor a leak in a qcow2 image.
///
/// # Panics
/// With its findings.
#[track_caller]
pub fn assert_checks(image: &Path) {
    qemu(&[&"check", &"-q", &"-f", &"qcow2", &image]);
}

/// QEMU reads the same in both images, each given with its format.
///
/// # Panics
/// With the first difference.
#[track_caller]
pub fn assert_reads_same(one: (&Path, &str), other: (&Path, &str)) {
    let ((one, one_format), (other, other_format)) = (one, other);
    qemu(&[
        &"compare",
        &"-q",
        &"-f",
        &one_format,
        &"-F",
        &other_format,
        &one,
        &other,
    ]);
}
