//! A machine: a disk whose power can be cut, with a file system of ours on it, mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use extant_blockdev::simulation::{CrashDevice, FaultRule, FaultyDevice, Survivors};
use extant_blockdev::{Device, MemoryDevice};
use extant_ext4::Filesystem;
use extant_fsck::{CheckOptions, check};
use extant_fuse::{Session, Unmounter};
use extant_mount::MountOptions;
use extant_mount::volume::{Volume, VolumeOptions, filesystem_options};
use extant_space::{CancelToken, Control, Result, Silent};
use extant_testkit::busy::try_while_in_use;
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::mke2fs;
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::workdir::Workdir;

const DISK_BYTES: u64 = 96 << 20;
/// One worker and no timer: changes reach the disk in the order of the steps.
const MOUNT: &str = "no_writeback,no_io_uring,threads=1,commit=100000,noatime";

/// The machine, on or off.
pub struct Machine {
    work: Workdir,
    place: PathBuf,
    disk: Arc<CrashDevice>,
    device: Arc<FaultyDevice<Arc<CrashDevice>>>,
    /// Faults of every request, planted by a test of the test.
    planted: Vec<FaultRule>,
    running: Option<Running>,
}

struct Running {
    unmounter: Unmounter,
    server: JoinHandle<Result<()>>,
    watchdog: FuseWatchdog,
}

impl Machine {
    /// Turned off, with an empty file system.
    pub fn new(seed: u64, planted: Vec<FaultRule>) -> Self {
        let options = "-t ext4 -b 4096 -J size=4 -N 512 -E lazy_itable_init=0";
        let memory = MemoryDevice::from_bytes(&mke2fs(options, DISK_BYTES));
        let disk = Arc::new(CrashDevice::new(memory));
        let device = Arc::new(FaultyDevice::new(disk.clone(), seed, planted.clone()));
        let work = Workdir::new();
        let place = work.directory("mount");
        Self {
            work,
            place,
            disk,
            device,
            planted,
            running: None,
        }
    }

    /// The mount point.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// A directory that is no part of the machine.
    pub fn outside(&self) -> &Path {
        self.work.path()
    }

    /// Opens the file system, which replays its journal, and mounts it.
    pub fn boot(&mut self) -> Result<()> {
        let options: MountOptions = MOUNT.parse()?;
        let filesystem = Filesystem::open(self.device.clone(), filesystem_options(&options))?;
        let volume = Volume::new(filesystem, VolumeOptions::from(&options))?;
        let session = Session::mount(Arc::new(volume), &self.place, &options.fuse)?;
        let unmounter = session.unmounter();
        let watchdog = FuseWatchdog::watch(&self.place);
        let server = thread::spawn(move || session.run());
        self.running = Some(Running {
            unmounter,
            server,
            watchdog,
        });
        Ok(())
    }

    /// Something has been done: the machine does not hang.
    pub fn progress(&self) {
        if let Some(running) = &self.running {
            running.watchdog.progress();
        }
    }

    /// Unmounts. After faults the file system may end with an error.
    pub fn shut_down(&mut self) {
        let running = self.running.take().expect("it is on");
        if let Err(error) = try_while_in_use(|| running.unmounter.unmount()) {
            let _ = running.unmounter.detach();
            panic!("a file is still open: {error}");
        }
        let ended = running.server.join().expect("the server does not panic");
        assert!(ended.is_ok() || self.is_troubled(), "{ended:?}");
    }

    /// Adds faults to come.
    pub fn expect(&self, rules: Vec<FaultRule>) {
        let all = self.planted.iter().cloned().chain(rules);
        self.device.set_rules(all.collect());
    }

    /// Cuts the power when `changes` more changes are done.
    pub fn cut_power_after(&self, changes: u64) {
        self.disk.power_cut_after(changes);
    }

    /// Whether the power was cut, or a fault has struck.
    pub fn is_troubled(&self) -> bool {
        let strikes = self.device.strikes();
        !self.disk.is_powered()
            || strikes[self.planted.len()..]
                .iter()
                .any(|strikes| *strikes > 0)
    }

    /// Whether requests are served.
    pub fn is_powered(&self) -> bool {
        self.disk.is_powered()
    }

    /// Turned off by a power cut, now if it was not before: what was not flushed survives as the
    /// seed says.
    pub fn lose_power(&mut self, seed: u64) -> String {
        self.disk.power_cut();
        self.shut_down();
        self.expect(Vec::new());
        self.disk.restart(Survivors::Seeded(seed)).to_string()
    }

    /// Turned off in order; everything is durable.
    pub fn turn_off(&mut self) {
        self.shut_down();
        self.expect(Vec::new());
        // A failed close has not made everything durable, and the disk is not cut: its cache is
        // written later.
        self.disk.settle();
    }

    /// The findings of our check, after recovery, of a copy of the disk.
    pub fn check(&self) -> Result<Vec<String>> {
        let copy = Arc::new(self.disk.snapshot());
        let options: MountOptions = MOUNT.parse()?;
        Filesystem::open(copy.clone(), filesystem_options(&options))?.close()?;
        findings(&*copy)
    }

    /// e2fsck finds nothing on the disk.
    pub fn assert_e2fsck_agrees(&self) {
        let path = self.outside().join("disk");
        fs::write(&path, self.disk.snapshot().to_vec()).unwrap();
        assert_e2fsck_clean(&path);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // A failed test: files may be open.
            let _ = running.unmounter.detach();
        }
    }
}

/// The findings of our check.
pub fn findings(device: &dyn Device) -> Result<Vec<String>> {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let report = check(device, &CheckOptions::default(), control)?;
    Ok(report
        .findings
        .iter()
        .map(|finding| format!("{finding:?}"))
        .collect())
}
