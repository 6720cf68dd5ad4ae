//! What qemu-img says of an image.

use std::ffi::OsStr;
use std::path::Path;

use extant_testkit::command;
use extant_testkit::requires::{Requirement, tool};
use serde_json::Value;

pub fn qemu_img() -> Requirement {
    tool("qemu-img")
}

/// Runs qemu-img; what it prints.
#[track_caller]
pub fn qemu(arguments: &[&dyn AsRef<OsStr>]) -> String {
    let mut command = command::tool("qemu-img");
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    command::text(&mut command).unwrap_or_else(|failure| panic!("{failure}"))
}

#[track_caller]
pub fn qemu_json(arguments: &[&dyn AsRef<OsStr>]) -> Value {
    serde_json::from_str(&qemu(arguments)).expect("JSON of qemu-img")
}

/// Neither an error nor a leak.
#[track_caller]
pub fn assert_checks(image: &Path) {
    qemu(&[&"check", &"-q", &"-f", &"qcow2", &image]);
}
