//! Shared by the tests: images by name in a directory. qemu-img is the oracle.

use std::path::{Path, PathBuf};

use extant_image::{Format, ImageOptions, Preallocation};
use extant_space::{CancelToken, Control, Silent};
pub use extant_testkit::oracle::qemu::{
    assert_checks, assert_reads_same, qemu, qemu_img, qemu_io, qemu_json,
};
use extant_testkit::workdir::Workdir;

pub const KIB: u64 = 1 << 10;
pub const MIB: u64 = 1 << 20;

/// A directory for one test.
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
