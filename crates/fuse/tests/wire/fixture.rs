//! The memory_fs, mounted, with a thread that answers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use extant_fuse::{MountOptions, Session, Unmounter};
use extant_testkit::fuse_watchdog::FuseWatchdog;
use extant_testkit::requires::{self, Requirement};
use extant_testkit::workdir::Workdir;

use crate::memory_fs::MemoryFs;
use crate::transport;

/// A mount that is removed when dropped.
pub struct Fixture {
    pub memory_fs: Arc<MemoryFs>,
    pub unmounter: Unmounter,
    directory: PathBuf,
    server: Option<JoinHandle<extant_space::Result<()>>>,
    _watchdog: FuseWatchdog,
    _work: Workdir,
}

/// Requirements of every mount.
pub fn can_mount() -> Requirement {
    let device = requires::device("/dev/fuse");
    Requirement::new(
        "root and /dev/fuse",
        device.is_met() && requires::root().is_met(),
    )
}

/// Options that are given, by the way that is tested.
pub fn options(list: &str) -> MountOptions {
    format!("{},{list}", transport()).parse().unwrap()
}

impl Fixture {
    pub fn new(list: &str) -> Self {
        let work = Workdir::new();
        let directory = work.directory("mount");
        let memory_fs = Arc::new(MemoryFs::default());
        let session = Session::mount(memory_fs.clone(), &directory, &options(list)).unwrap();
        assert_eq!(session.directory(), directory);
        let unmounter = session.unmounter();
        let watchdog = FuseWatchdog::watch(&directory);
        Self {
            memory_fs,
            unmounter,
            directory,
            server: Some(thread::spawn(|| session.run())),
            _watchdog: watchdog,
            _work: work,
        }
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Waits for the end of the server.
    pub fn join(&mut self) -> extant_space::Result<()> {
        self.server.take().unwrap().join().unwrap()
    }

    /// Unmounts, and checks that all references were returned.
    pub fn end(mut self) {
        // Releases arrive later, and an unmount does not wait for them.
        wait_for("every handle to be released", || {
            self.memory_fs.handles.load(Ordering::SeqCst) == 0
        });
        self.unmounter.unmount().unwrap();
        self.join().unwrap();
        assert!(self.memory_fs.was_destroyed.load(Ordering::SeqCst));
        assert!(!is_mounted(&self.directory));
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.memory_fs.gate.set_closed(false);
        let _ = self.unmounter.detach();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}

/// Waits until `condition` holds, for as long as a busy machine may need.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{what}: not after 30 seconds");
}

/// Whether something is mounted there.
pub fn is_mounted(directory: &Path) -> bool {
    is_mounted_for(std::process::id(), directory)
}

/// Whether something is mounted there, as a process sees it.
pub fn is_mounted_for(process: u32, directory: &Path) -> bool {
    let table = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).unwrap();
    let place = directory.to_str().unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some(place))
}
