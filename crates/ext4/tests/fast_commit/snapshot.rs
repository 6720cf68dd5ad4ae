//! An image after a crash, and its state after recovery by different implementations.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::{Access, Filesystem, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::command::{describe, run_any_status, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;

use crate::tree::{Tree, tree};

pub struct Snapshot {
    bytes: Vec<u8>,
}

impl Snapshot {
    pub fn of_file(path: &Path) -> Self {
        let bytes = fs::read(path).unwrap();
        Self { bytes }
    }

    pub fn of_device(device: &MemoryDevice) -> Self {
        Self {
            bytes: device.to_vec(),
        }
    }

    /// The transactions that fast commits are on, of which the first blocks are there: such begin
    /// with a head that asks for no features.
    pub fn fast_commits(&self) -> Vec<u32> {
        let heads = self.bytes.chunks(1024);
        let heads = heads.filter_map(|block| block.strip_prefix(&[9, 0, 8, 0, 0, 0, 0, 0]));
        heads
            .map(|rest| u32::from_le_bytes(rest[..4].try_into().unwrap()))
            .collect()
    }

    pub fn has_fast_commits(&self) -> bool {
        !self.fast_commits().is_empty()
    }

    pub fn device(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_bytes(&self.bytes))
    }

    /// Our recovery: replayed on opening, closed, clean.
    #[track_caller]
    pub fn ours(&self) -> Tree {
        let device = self.device();
        let fs = Filesystem::open(device.clone(), Options::default()).unwrap();
        let seen = tree(&fs);
        fs.close().unwrap();
        assert_clean(&device);
        seen
    }

    /// Our view read-only; every byte of the image stays.
    #[track_caller]
    pub fn ours_read_only(&self) -> Tree {
        let device = self.device();
        let options = Options {
            access: Access::ReadOnly,
            ..Options::default()
        };
        let fs = Filesystem::open(device.clone(), options).unwrap();
        let seen = tree(&fs);
        drop(fs);
        assert!(device.to_vec() == self.bytes, "read-only has written");
        seen
    }

    /// Recovery by e2fsck.
    #[track_caller]
    pub fn e2fsck(&self) -> Tree {
        let work = Workdir::new();
        let path = work.path().join("image");
        fs::write(&path, &self.bytes).unwrap();
        let output = run_any_status(tool("e2fsck").args(["-f", "-y"]).arg(&path)).unwrap();
        let report = describe(&output);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{report}");
        Self::of_file(&path).ours_read_only()
    }

    /// Recovery by the kernel.
    #[track_caller]
    pub fn kernel(&self) -> Tree {
        let work = Workdir::new();
        let path = work.path().join("image");
        fs::write(&path, &self.bytes).unwrap();
        let device = LoopDevice::attach(&path);
        Mount::new("ext4", device.path(), &work.directory("mounted"), "").unmount();
        drop(device);
        Self::of_file(&path).ours_read_only()
    }
}

/// Our check and e2fsck find nothing.
#[track_caller]
pub fn assert_clean(device: &MemoryDevice) {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let report = check(device, &CheckOptions::default(), control).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    let work = Workdir::new();
    let path = work.path().join("image");
    let mut bytes = vec![0; device.geometry().size as usize];
    device.read_at(&mut bytes, 0).unwrap();
    fs::write(&path, bytes).unwrap();
    assert_e2fsck_clean(&path);
}
