//! What the tests share: qemu-img as a judge, and images by name in a folder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use extant_image::{Format, ImageOptions, Preallocation};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::command;
use extant_testkit::requires::{Requirement, tool};
use extant_testkit::workdir::Workdir;
use serde_json::Value;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

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

/// QEMU finds neither an error nor a leak.
#[track_caller]
pub fn assert_checks(image: &Path) {
    qemu(&[&"check", &"-q", &"-f", &"qcow2", &image]);
}

/// Both read the same.
#[track_caller]
pub fn assert_same(one: (&Path, Format), other: (&Path, Format)) {
    qemu(&[
        &"compare",
        &"-q",
        &"-f",
        &one.1.name(),
        &"-F",
        &other.1.name(),
        &one.0,
        &other.0,
    ]);
}

/// A folder for one test.
pub struct Ground(Workdir);

impl Ground {
    pub fn new() -> Self {
        Self(Workdir::new())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

pub fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
    work(Control::new(&CancelToken::new(), &Silent))
}

pub fn qcow2(virtual_bytes: u64, preallocation: Preallocation) -> ImageOptions {
    let mut options = ImageOptions::new(Format::Qcow2, virtual_bytes);
    options.preallocation = preallocation;
    options
}

/// Makes the image, which must not fail.
#[track_caller]
pub fn create(path: &Path, options: &ImageOptions) {
    let file = extant_hostfs::CreateOptions::new(1);
    silent(|control| extant_image::create(path, options, &file, control))
        .unwrap_or_else(|error| panic!("{error}; {options:?}"));
}

/// A raw file of zeros.
#[track_caller]
pub fn zeros(path: &Path, size: u64) {
    let file = std::fs::File::create(path).expect("a new file");
    file.set_len(size).expect("a sparse file");
}
