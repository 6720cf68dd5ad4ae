//! An image that the kernel has mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_testkit::command::{run_any_status, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::requires::{self, Requirement};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;

use crate::image::save;

/// Requirements of all tests here.
pub fn needs() -> [Requirement; 6] {
    [
        requires::root(),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("losetup"),
        requires::tool("filefrag"),
        requires::kernel_filesystem("ext4"),
    ]
}

/// A mounted file system. Unmounted when dropped.
pub struct Mounted {
    // Dropped in this order.
    mount: Mount,
    _device: LoopDevice,
    backing: PathBuf,
    _work: Workdir,
}

impl Mounted {
    /// Mounts the file system of a device.
    #[track_caller]
    pub fn new(device: &MemoryDevice) -> Self {
        let work = Workdir::new();
        let backing = work.path().join("image");
        save(device, &backing);
        let loop_device = LoopDevice::attach(&backing);
        let place = work.directory("mount");
        let mount = Mount::new("ext4", loop_device.path(), &place, "");
        keep_unwritten(loop_device.path());
        Self {
            mount,
            _device: loop_device,
            backing,
            _work: work,
        }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Contents of the device now, as after a power cut: with everything synced.
    pub fn cut(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_bytes(&fs::read(&self.backing).unwrap()))
    }

    /// Unmounts; e2fsck finds nothing.
    #[track_caller]
    pub fn unmount(self) -> Arc<MemoryDevice> {
        self.mount.unmount();
        drop(self._device);
        assert_e2fsck_clean(&self.backing);
        Arc::new(MemoryDevice::from_bytes(&fs::read(&self.backing).unwrap()))
    }
}

/// Makes the kernel keep extents unwritten; by default it writes zeros next to data to save
/// extents.
fn keep_unwritten(node: &Path) {
    let name = node.file_name().expect("a node");
    let setting = Path::new("/sys/fs/ext4")
        .join(name)
        .join("extent_max_zeroout_kb");
    fs::write(setting, "0").unwrap();
}

/// Recovery of an unclean image by e2fsck: the journal replayed, the orphans freed.
#[track_caller]
pub fn repaired(device: &MemoryDevice) -> Arc<MemoryDevice> {
    let work = Workdir::new();
    let path = work.path().join("image");
    save(device, &path);
    let output = run_any_status(tool("e2fsck").args(["-f", "-y"]).arg(&path)).unwrap();
    // 1: errors were corrected.
    let code = output.status.code();
    assert!(
        matches!(code, Some(0 | 1)),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_e2fsck_clean(&path);
    Arc::new(MemoryDevice::from_bytes(&fs::read(&path).unwrap()))
}
