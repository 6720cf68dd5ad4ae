//! Images of mke2fs in memory, and their verification.

use std::fs;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::{Filesystem, Options};
use extant_testkit::command::{run, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::requires::{self, Requirement};
use extant_testkit::workdir::Workdir;

/// Requirements of all tests here.
pub fn needs() -> [Requirement; 2] {
    [requires::tool("mke2fs"), requires::tool("e2fsck")]
}

/// A new file system of the given MiB.
#[track_caller]
pub fn make(mebibytes: u64) -> Arc<MemoryDevice> {
    let work = Workdir::new();
    let path = work.path().join("image");
    let file = fs::File::create(&path).unwrap();
    file.set_len(mebibytes << 20).unwrap();
    let mut mke2fs = tool("mke2fs");
    run(mke2fs
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-L", "volume"])
        .arg(&path))
    .unwrap_or_else(|failure| panic!("{failure}"));
    Arc::new(MemoryDevice::from_bytes(&fs::read(&path).unwrap()))
}

pub fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open(device.clone(), Options::default()).unwrap()
}

/// e2fsck finds nothing.
#[track_caller]
pub fn assert_clean(device: &MemoryDevice) {
    let mut bytes = vec![0; device.geometry().size as usize];
    device.read_at(&mut bytes, 0).unwrap();
    let work = Workdir::new();
    let path = work.path().join("image");
    fs::write(&path, bytes).unwrap();
    assert_e2fsck_clean(&path);
}
