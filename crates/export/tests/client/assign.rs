//! The extension `extant:assign`: space in the host file of the server, by requests of a client.
//! The state of the file is that of `filefrag`, not of our own report.

use std::env;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_blockdev::{
    Assigned, Device, Features, Geometry, HostDevice, HostOptions, MemoryDevice, MemoryOptions,
    Operation, Persistence, RangeStatus, Request, Speed, Zeroing,
};
use extant_export::ServerOptions;
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_nbd::{NbdAssign, NbdDevice, NbdOptions};
use extant_space::{ByteRange, ErrorKind, ExtentState, LayerRange, Result};
use extant_testkit::command::{must, tool};
use extant_testkit::oracle::filefrag;
use extant_testkit::{listener, require, requires};
use tempfile::TempDir;

use crate::{MIB, Served, TEST_TIMEOUT, listen, uri};

/// Names the directory of the server that the test program becomes.
const SERVER_DIRECTORY: &str = "EXTANT_TEST_NBD_SERVER";

/// A sparse file of `size` bytes as a device.
fn sparse(directory: &Path, size: u64) -> HostDevice {
    let path = directory.join("disk.raw");
    if !path.exists() {
        File::create(&path).unwrap().set_len(size).unwrap();
    }
    HostDevice::open(&path, &HostOptions::default()).unwrap()
}

/// Changes of space that a server makes before it holds the others.
const CHANGES_BEFORE_HOLD: u64 = 2;

/// Counts operations that change the space of a device, and holds them on demand.
struct Watched {
    inner: HostDevice,
    changes: AtomicU64,
    /// Where the file `held` says that an operation is held, until there is the file `go`.
    hold: Option<PathBuf>,
}

impl Watched {
    fn new(inner: HostDevice, hold: Option<PathBuf>) -> Self {
        Self {
            inner,
            changes: AtomicU64::new(0),
            hold,
        }
    }

    fn count_change(&self) {
        let count = self.changes.fetch_add(1, Ordering::Relaxed);
        if let Some(directory) = &self.hold
            && count >= CHANGES_BEFORE_HOLD
            && !directory.join("go").exists()
        {
            File::create(directory.join("held")).unwrap();
            loop {
                thread::park();
            }
        }
    }
}

impl Device for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        for request in &*requests {
            if let Operation::Assign(_) | Operation::WriteZeroes(..) = request.operation {
                self.count_change();
            }
        }
        self.inner.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.inner.status(range, visit)
    }
}

#[test]
fn assign_of_a_gibibyte_allocates_the_host_file_in_few_requests() {
    require!(requires::tool("filefrag"));
    let files = tempfile::tempdir().unwrap();
    let below = Arc::new(Watched::new(sparse(files.path(), 1 << 30), None));
    let served = Served::new(below.clone());
    let device = served.connect();
    assert!(device.geometry().features.contains(Features::ASSIGN));
    device
        .write_at(&[7; 4096], 5 * MIB, Persistence::Cached)
        .unwrap();
    let all = device.geometry().range();
    assert_eq!(device.assign(all).unwrap(), Assigned::Done);
    assert!(below.changes.load(Ordering::Relaxed) <= 10);
    device.flush().unwrap();
    let map = filefrag(&files.path().join("disk.raw"));
    assert_eq!(map.bytes(ExtentState::Unwritten), (1 << 30) - 4096);
    assert_eq!(map.bytes(ExtentState::Written), 4096);
    let mut data = [0; 4096];
    device.read_at(&mut data, 5 * MIB).unwrap();
    assert_eq!(data, [7; 4096]);
}

#[test]
fn zeros_that_are_written_below_are_written_in_the_host_file() {
    require!(requires::tool("filefrag"));
    let files = tempfile::tempdir().unwrap();
    let served = Served::new(Arc::new(sparse(files.path(), 64 * MIB)));
    let device = served.connect();
    let written = ByteRange::new(8 * MIB, 24 * MIB);
    device.write_zeroes(written, Zeroing::WRITTEN).unwrap();
    let allocated = ByteRange::new(40 * MIB, 44 * MIB);
    device.write_zeroes(allocated, Zeroing::ALLOCATED).unwrap();
    device.flush().unwrap();
    let map = filefrag(&files.path().join("disk.raw"));
    assert_eq!(map.bytes(ExtentState::Written), 16 * MIB);
    assert_eq!(map.bytes(ExtentState::Unwritten), 4 * MIB);
    // The client sees the same.
    let at = LayerRange {
        depth: 1,
        top_start: 0,
        range: device.geometry().range(),
    };
    let (mut written_bytes, mut unwritten_bytes) = (0, 0);
    let flow = device.visit_layers(at, &mut |found| {
        match found.extent.state {
            ExtentState::Written => written_bytes += found.extent.logical.len(),
            ExtentState::Unwritten => unwritten_bytes += found.extent.logical.len(),
            ExtentState::Hole => {}
        }
        ControlFlow::Continue(())
    });
    assert_eq!(flow.unwrap(), ControlFlow::Continue(()));
    assert_eq!((written_bytes, unwritten_bytes), (16 * MIB, 4 * MIB));
}

#[test]
fn assign_without_space_fails_with_it_and_one_that_is_refused_says_so() {
    let served = Served::new(Arc::new(MemoryDevice::with_options(MemoryOptions {
        capacity: Some(MIB),
        ..MemoryOptions::new(64 * MIB)
    })));
    let device = served.connect();
    let error = device.assign(ByteRange::new(0, 2 * MIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(
        device.assign(ByteRange::new(0, MIB / 2)).unwrap(),
        Assigned::Done
    );
    // One writer at a time.
    drop(device);
    let off = NbdOptions {
        assign: NbdAssign::Off,
        ..NbdOptions::default()
    };
    let device = NbdDevice::connect(&served.uri(), off).unwrap();
    assert!(!device.geometry().features.contains(Features::ASSIGN));
    let range = ByteRange::new(0, MIB);
    assert_eq!(device.assign(range).unwrap(), Assigned::Refused);
    let fast = Zeroing {
        speed: Speed::OnlyIfFast,
        ..Zeroing::WRITTEN
    };
    let error = device.write_zeroes(range, fast).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

fn wait_for(file: &Path) {
    let start = Instant::now();
    while !file.exists() {
        assert!(start.elapsed() < TEST_TIMEOUT, "no {}", file.display());
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn assign_through_two_servers_and_qcow2_is_few_extents_of_the_host_file() {
    require!(requires::tool("filefrag"), requires::tool("qemu-img"));
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("disk.qcow2");
    let qemu_img = |arguments: &[&str]| {
        must(tool("qemu-img").args(arguments));
    };
    let image = path.to_str().unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", image, "256M"]);
    let device = ImageDevice::open(&path, &DeviceOptions::default()).unwrap();
    let lower = Served::new(Arc::new(device));
    let upper = Served::new(Arc::new(lower.connect()));
    let device = upper.connect();
    let range = ByteRange::new(64 * MIB, 192 * MIB);
    assert_eq!(device.assign(range).unwrap(), Assigned::Done);
    let zeroed = ByteRange::new(64 * MIB, 80 * MIB);
    device.write_zeroes(zeroed, Zeroing::WRITTEN).unwrap();
    device.flush().unwrap();
    let map = filefrag(&path);
    assert!(map.bytes(ExtentState::Written) >= 16 * MIB, "{map:?}");
    assert!(map.bytes(ExtentState::Unwritten) >= 111 * MIB, "{map:?}");
    assert!(map.extent_count <= 8, "{map:?}");
    drop((device, upper, lower));
    qemu_img(&["check", "-q", image]);
}

#[test]
fn space_that_runs_out_is_reported_through_two_servers() {
    let below = MemoryDevice::with_options(MemoryOptions {
        capacity: Some(MIB),
        ..MemoryOptions::new(64 * MIB)
    });
    let lower = Served::new(Arc::new(below));
    let upper = Served::new(Arc::new(lower.connect()));
    let device = upper.connect();
    let error = device.assign(ByteRange::new(0, 2 * MIB)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let range = ByteRange::new(0, 2 * MIB);
    let error = device.write_zeroes(range, Zeroing::WRITTEN).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

/// A server in a process of its own: this test program, started again.
struct Process {
    child: Child,
}

impl Process {
    fn start(directory: &Path) -> Self {
        let _ = std::fs::remove_file(directory.join("s"));
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "assign::server_of_other_tests", "--ignored"]);
        command.env(SERVER_DIRECTORY, directory);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        listener::wait_for(&directory.join("s"));
        Self { child }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
#[ignore = "the server that other tests start and kill"]
fn server_of_other_tests() {
    let directory = PathBuf::from(env::var_os(SERVER_DIRECTORY).expect("started by a test"));
    let below = Watched::new(sparse(&directory, 1 << 30), Some(directory.clone()));
    let below = Arc::new(below);
    let _server = listen(&directory, below, ServerOptions::default());
    loop {
        thread::park();
    }
}

/// Runs `change` on a server that is killed meanwhile; returns the directory with its file.
fn run_on_a_killed_server(change: impl Fn(&NbdDevice) + Sync) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let mut server = Process::start(directory.path());
    let uri = uri(directory.path());
    let device = NbdDevice::connect(&uri, NbdOptions::default()).unwrap();
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            change(&device);
            device.flush().unwrap();
        });
        wait_for(&directory.path().join("held"));
        server.kill();
        assert!(!changes.is_finished(), "nothing was held");
        File::create(directory.path().join("go")).unwrap();
        server = Process::start(directory.path());
    });
    directory
}

#[test]
fn server_killed_during_an_assign_has_done_it_in_the_end() {
    require!(requires::tool("filefrag"));
    let directory = run_on_a_killed_server(|device| {
        let all = device.geometry().range();
        assert_eq!(device.assign(all).unwrap(), Assigned::Done);
    });
    let map = filefrag(&directory.path().join("disk.raw"));
    assert_eq!(map.bytes(ExtentState::Unwritten), 1 << 30);
}

#[test]
fn server_killed_during_write_zeroes_has_written_them_in_the_end() {
    require!(requires::tool("filefrag"));
    let directory = run_on_a_killed_server(|device| {
        for start in (0..64).step_by(8) {
            let range = ByteRange::new(start * MIB, (start + 8) * MIB);
            device.write_zeroes(range, Zeroing::WRITTEN).unwrap();
        }
    });
    let map = filefrag(&directory.path().join("disk.raw"));
    assert_eq!(map.bytes(ExtentState::Written), 64 * MIB);
}
