//! File systems in memory, mounted.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use extant_blockdev::MemoryDevice;
use extant_ext4::Filesystem;
use extant_fsck::{CheckOptions, check};
use extant_fuse::Session;
use extant_mount::MountOptions;
use extant_mount::volume::{Volume, VolumeOptions, filesystem_options};
use extant_space::{CancelToken, Control, Silent};
use extant_testkit::busy::try_while_in_use;
use extant_testkit::command::{run, tool};
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::workdir::Workdir;

/// A file system of the given MiB, made by mke2fs with `options`.
#[track_caller]
pub fn make(options: &str, mebibytes: u64) -> Arc<MemoryDevice> {
    let work = Workdir::new();
    let path = work.path().join("image");
    let file = fs::File::create(&path).unwrap();
    file.set_len(mebibytes << 20).unwrap();
    run(tool("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(options.split_whitespace())
        .arg(&path))
    .unwrap_or_else(|failure| panic!("{failure}"));
    Arc::new(MemoryDevice::from_bytes(&fs::read(&path).unwrap()))
}

/// Mounts the file system of a device while `work` runs; nothing in it is open afterwards.
///
/// # Panics
/// When it cannot be mounted or unmounted, or the server panics.
pub fn mounted<T>(
    device: &Arc<MemoryDevice>,
    options: &str,
    place: &Path,
    work: impl FnOnce(&FuseWatchdog) -> T,
) -> T {
    let options: MountOptions = options.parse().unwrap();
    let filesystem = Filesystem::open(device.clone(), filesystem_options(&options)).unwrap();
    let volume = Volume::new(filesystem, VolumeOptions::from(&options)).unwrap();
    let volume = volume.reporting(|error| eprintln!("the file system: {error}"));
    let session = Session::mount(Arc::new(volume), place, &options.fuse).unwrap();
    let unmounter = session.unmounter();
    let watchdog = FuseWatchdog::watch(place);
    let server = thread::spawn(move || session.run());
    let result = work(&watchdog);
    if let Err(error) = try_while_in_use(|| unmounter.unmount()) {
        let _ = unmounter.detach();
        panic!("{error}");
    }
    server.join().unwrap().unwrap();
    result
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
    fs::write(&path, device.to_vec()).unwrap();
    assert_e2fsck_clean(&path);
}
