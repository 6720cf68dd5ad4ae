//! The same image mounted twice: through our server, and by the kernel.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use extant_blockdev::simulation::{Fault, FaultRule, FaultyDevice};
use extant_blockdev::{MemoryDevice, OperationKind};
use extant_ext4::Filesystem;
use extant_fuse::{Session, Unmounter};
use extant_mount::MountOptions;
use extant_mount::volume::{Volume, VolumeOptions, filesystem_options};
use extant_testkit::busy::try_while_in_use;
use extant_testkit::command::{run, tool};
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::requires::{self, Requirement};
use extant_testkit::scratch::{LoopDevice, Mount};
use extant_testkit::workdir::Workdir;

/// Requirements of all tests here.
pub fn needs() -> [Requirement; 6] {
    [
        requires::root(),
        requires::device("/dev/fuse"),
        requires::tool("mke2fs"),
        requires::tool("e2fsck"),
        requires::tool("losetup"),
        requires::kernel_filesystem("ext4"),
    ]
}

/// A new file system of the given MiB.
#[track_caller]
pub fn make_image(path: &Path, mebibytes: u64) {
    let file = fs::File::create(path).unwrap();
    file.set_len(mebibytes << 20).unwrap();
    run(tool("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-L", "compared"])
        .arg(path))
    .unwrap_or_else(|failure| panic!("{failure}"));
}

/// A mount that our server answers, on an image in memory. Unmounted and checked when dropped.
pub struct Ours {
    directory: PathBuf,
    device: Arc<FaultyDevice<MemoryDevice>>,
    unmounter: Unmounter,
    server: Option<JoinHandle<extant_space::Result<()>>>,
    watchdog: FuseWatchdog,
    work: Workdir,
}

impl Ours {
    /// A new file system of the given MiB, mounted with `options`, as `mount -o` takes them.
    #[track_caller]
    pub fn new(mebibytes: u64, options: &str) -> Self {
        let work = Workdir::new();
        let image = work.path().join("image");
        make_image(&image, mebibytes);
        let memory = MemoryDevice::from_bytes(&fs::read(&image).unwrap());
        let device = Arc::new(FaultyDevice::new(memory, 0, Vec::new()));
        let directory = work.directory("mount");
        let options: MountOptions = options.parse().unwrap();
        let engine = filesystem_options(&options);
        let filesystem = Filesystem::open(device.clone(), engine).unwrap();
        let volume = Volume::new(filesystem, VolumeOptions::from(&options)).unwrap();
        let session = Session::mount(Arc::new(volume), &directory, &options.fuse).unwrap();
        let unmounter = session.unmounter();
        let server = std::thread::spawn(move || session.run());
        Self {
            watchdog: FuseWatchdog::watch(&directory),
            directory,
            device,
            unmounter,
            server: Some(server),
            work,
        }
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The test makes progress: its deadline moves on.
    pub fn progress(&self) {
        self.watchdog.progress();
    }

    /// Makes the kernel cache written data as long as for a disk; for FUSE servers its limit is
    /// low.
    #[track_caller]
    pub fn trust(&self) {
        let device = fs::metadata(&self.directory).unwrap().dev();
        let number = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        let settings = Path::new("/sys/class/bdi").join(number);
        fs::write(settings.join("strict_limit"), "0").unwrap();
        fs::write(settings.join("max_ratio"), "100").unwrap();
    }

    /// Has every write to the device take so long from now on.
    pub fn slow_writes(&self, delay: Duration) {
        let delay = Fault::Delay {
            least: delay,
            most: delay,
        };
        let rule = FaultRule::new(delay).on(&[OperationKind::Write]);
        self.device.set_rules(vec![rule]);
    }

    /// The present content of the device.
    pub fn content(&self) -> Vec<u8> {
        self.device.inner().to_vec()
    }

    /// Ends the limits of the device.
    pub fn quick_writes(&self) {
        self.device.set_rules(Vec::new());
    }

    /// Unmounts, and returns the contents of the device; e2fsck finds nothing. All files are
    /// closed.
    #[track_caller]
    pub fn end(mut self) -> Arc<MemoryDevice> {
        self.unmount();
        let image = self.work.path().join("after");
        let bytes = self.device.inner().to_vec();
        fs::write(&image, &bytes).unwrap();
        assert_e2fsck_clean(&image);
        Arc::new(MemoryDevice::from_bytes(&bytes))
    }

    /// Unmounts, and returns the content of the device.
    #[track_caller]
    pub fn end_as_it_is(mut self) -> Arc<MemoryDevice> {
        self.unmount();
        Arc::new(MemoryDevice::from_bytes(&self.device.inner().to_vec()))
    }

    #[track_caller]
    fn unmount(&mut self) {
        let Some(server) = self.server.take() else {
            return;
        };
        if let Err(error) = try_while_in_use(|| self.unmounter.unmount()) {
            let _ = self.unmounter.detach();
            panic!("{error}");
        }
        server.join().unwrap().unwrap();
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let _ = self.unmounter.detach();
            let _ = server.join();
        }
    }
}

/// A mount of the kernel's ext4, on an image of the same kind.
pub struct Theirs {
    // Dropped in this order.
    mount: Mount,
    _device: LoopDevice,
    _work: Workdir,
}

impl Theirs {
    #[track_caller]
    pub fn new(mebibytes: u64) -> Self {
        let work = Workdir::new();
        let image = work.path().join("image");
        make_image(&image, mebibytes);
        let device = LoopDevice::attach(&image);
        let mount = Mount::new("ext4", device.path(), &work.directory("mount"), "");
        Self {
            mount,
            _device: device,
            _work: work,
        }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }
}
