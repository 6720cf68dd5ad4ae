//! File systems of mke2fs in memory.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_ext4::{Filesystem, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::mke2fs;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::workdir::Workdir;

/// Options of mke2fs for file systems that differ in ways the engine must handle.
pub const FORMATS: [&str; 11] = [
    "-t ext4 -b 4096",
    "-t ext4 -b 1024 -O casefold,encrypt,verity",
    "-t ext4 -b 2048 -O ^metadata_csum,uninit_bg",
    "-t ext4 -b 4096 -O ^orphan_file",
    "-t ext4 -b 1024 -O ^64bit,^flex_bg,^metadata_csum",
    "-t ext4 -b 4096 -O ^dir_index,^huge_file,^dir_nlink -I 128",
    "-t ext4 -O sparse_super2,large_dir -b 1024",
    "-t ext3 -b 4096",
    "-t ext3 -b 1024 -I 128",
    "-t ext4 -b 2048 -O ^extents,^64bit",
    "-t ext4 -O ^has_journal -b 1024",
];

/// Makes a file system of `mebibytes` MiB by mke2fs with `options`.
#[track_caller]
pub fn make(options: &str, mebibytes: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_bytes(&mke2fs(options, mebibytes << 20)))
}

/// Writes the content of a device to a new file; zeros become holes.
#[track_caller]
pub fn save(device: &MemoryDevice, path: &Path) {
    const PIECE: usize = 64 << 10;
    let bytes = device.to_vec();
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        if *piece != [0; PIECE][..piece.len()] {
            file.write_all_at(piece, (number * PIECE) as u64).unwrap();
        }
    }
}

#[track_caller]
pub fn open(device: &Arc<MemoryDevice>) -> Filesystem {
    Filesystem::open(device.clone(), Options::default()).unwrap()
}

/// Our check finds nothing.
#[track_caller]
pub fn assert_checked(device: &MemoryDevice) {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let report = check(device, &CheckOptions::default(), control).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
}

/// Our check and e2fsck find nothing.
#[track_caller]
pub fn assert_clean(device: &MemoryDevice) {
    assert_checked(device);
    let work = Workdir::new();
    let path = work.path().join("image");
    save(device, &path);
    assert_e2fsck_clean(&path);
}
