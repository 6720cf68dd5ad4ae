//! Support of the tests: images made by qemu-img, and checked by it afterwards.

use std::path::{Path, PathBuf};

use extant_blockdev::{Device, Persistence};
use extant_image::Format;
use extant_image::device::{DeviceOptions, ImageDevice, ReferencedStores};
use extant_testkit::oracle::qemu::assert_reads_same;
pub use extant_testkit::oracle::qemu::{assert_checks, qemu, qemu_img};
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

    /// An image made by qemu-img with options (`-o`).
    #[track_caller]
    pub fn qcow2(&self, name: &str, options: &str, bytes: u64) -> PathBuf {
        let path = self.path(name);
        let bytes = bytes.to_string();
        match options {
            "" => qemu(&[&"create", &"-u", &"-q", &"-f", &"qcow2", &path, &bytes]),
            _ => qemu(&[
                &"create", &"-u", &"-q", &"-f", &"qcow2", &"-o", &options, &path, &bytes,
            ]),
        };
        path
    }
}

#[track_caller]
pub fn open(path: &Path) -> ImageDevice {
    open_with(path, &qcow2_options())
}

#[track_caller]
pub fn open_with(path: &Path, options: &DeviceOptions) -> ImageDevice {
    ImageDevice::open(path, options).unwrap_or_else(|error| panic!("{error}"))
}

pub fn qcow2_options() -> DeviceOptions {
    DeviceOptions {
        format: Some(Format::Qcow2),
        ..DeviceOptions::default()
    }
}

pub fn followed() -> DeviceOptions {
    DeviceOptions {
        referenced: ReferencedStores::Followed,
        ..qcow2_options()
    }
}

#[track_caller]
pub fn read(device: &impl Device, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = vec![0xee; length as usize];
    device
        .read_at(&mut bytes, offset)
        .unwrap_or_else(|error| panic!("{error}"));
    bytes
}

#[track_caller]
pub fn write(device: &impl Device, offset: u64, bytes: &[u8]) {
    let written = device.write_at(bytes, offset, Persistence::Cached);
    written.unwrap_or_else(|error| panic!("{error}"));
}

/// QEMU finds no error in an image that is flushed, and open here.
#[track_caller]
pub fn assert_checks_in_use(path: &Path) {
    qemu(&[&"check", &"-q", &"-U", &"-f", &"qcow2", &path]);
}

/// QEMU reads these bytes in the image.
#[track_caller]
pub fn assert_reads(path: &Path, bytes: &[u8]) {
    let raw = path.with_extension("expected");
    std::fs::write(&raw, bytes).expect("a file for the expected bytes");
    assert_reads_same((path, "qcow2"), (&raw, "raw"));
}

/// Bytes that encode their offset and which of several writers wrote them.
pub fn pattern(offset: u64, length: u64, seed: u64) -> Vec<u8> {
    let byte = |at: u64| (at ^ (at >> 8) ^ (at >> 16)).wrapping_add(seed) as u8 | 1;
    (offset..offset + length).map(byte).collect()
}
