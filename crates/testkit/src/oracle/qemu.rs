//! `qemu-img` and `qemu-io`: what QEMU makes of disk images, and whether it is content with them.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{self, Failure, tool};
use crate::requires::{self, Requirement};

/// The need of who asks `qemu-img`.
pub fn qemu_img() -> Requirement {
    requires::tool("qemu-img")
}

/// How long somebody who holds an image is waited for: a process that another thread starts has what this one had open, for a
/// moment.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs `qemu-img`; what it prints.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn qemu(arguments: &[&dyn AsRef<OsStr>]) -> String {
    let mut command = tool("qemu-img");
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    said(&mut command)
}

#[track_caller]
fn said(command: &mut Command) -> String {
    let started = Instant::now();
    loop {
        match command::text(command) {
            Ok(said) => return said,
            Err(failure) if is_lock(&failure) && started.elapsed() < PATIENCE => {
                thread::sleep(PATIENCE / 40);
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

fn is_lock(failure: &Failure) -> bool {
    let said = failure.to_string();
    said.contains("Failed to get") && said.contains("lock")
}

/// Runs `qemu-img` for an answer in JSON.
///
/// # Panics
/// When it fails, or prints something else.
#[track_caller]
pub fn qemu_json(arguments: &[&dyn AsRef<OsStr>]) -> Value {
    let said = qemu(arguments);
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
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
    let said = said(command.arg(image));
    assert!(
        !said.contains("failed") && !said.contains("error"),
        "{commands:?}: {said}"
    );
    said
}

/// QEMU finds neither an error nor a leak in a qcow2 image.
///
/// # Panics
/// With what it found.
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
