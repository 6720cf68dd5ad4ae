//! The guarantee of a sync while another thread's commit is in progress.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use extant_blockdev::simulation::CrashDevice;
use extant_blockdev::{Device, Geometry, MemoryDevice, Operation, RangeStatus, Request};
use extant_ext4::{Filesystem, FollowLast};
use extant_space::{ByteRange, Result, SpaceFile, SyncMode};
use extant_testkit::{require, requires};

use crate::image::PLAIN;
use crate::life::options;
use crate::step::Kind;

/// Stops after the next flush, on request.
struct Stopping {
    disk: Arc<CrashDevice>,
    is_armed: AtomicBool,
    flushed: Barrier,
    go_on: Barrier,
}

impl Device for Stopping {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.disk.submit(requests);
        let is_flush = requests
            .iter()
            .any(|request| matches!(request.operation, Operation::Flush));
        if is_flush && self.is_armed.swap(false, Ordering::Relaxed) {
            self.flushed.wait();
            self.go_on.wait();
        }
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.disk.status(range, visit)
    }
}

/// Minimum state after a cut.
fn durable(disk: &CrashDevice) -> MemoryDevice {
    let log = disk.log();
    let mut cursor = log.cursor();
    cursor.advance_to(log.len());
    cursor.durable()
}

fn contents_of(image: MemoryDevice) -> Vec<u8> {
    let filesystem = Filesystem::open(Arc::new(image), options()).unwrap();
    let file = filesystem
        .resolve(b"/f", FollowLast::No)
        .unwrap()
        .file()
        .unwrap();
    let mut bytes = vec![0; 4096];
    let read = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(read);
    bytes
}

#[test]
fn sync_of_data_behind_the_flush_of_a_commit_flushes_again() {
    require!(requires::tool("mke2fs"));
    for mode in [SyncMode::Data, SyncMode::All] {
        let disk = Arc::new(CrashDevice::new(PLAIN.make()));
        let device = Arc::new(Stopping {
            disk: disk.clone(),
            is_armed: AtomicBool::new(false),
            flushed: Barrier::new(2),
            go_on: Barrier::new(2),
        });
        let filesystem = Filesystem::open(device.clone(), options()).unwrap();
        let root = filesystem.root().unwrap();
        let node = root.create(b"f", &Kind::Regular.node(b"")).unwrap();
        let file = node.file().unwrap();
        file.write_at(&[1; 4096], 0).unwrap();
        let other = root.create(b"other", &Kind::Regular.node(b"")).unwrap();
        device.is_armed.store(true, Ordering::Relaxed);
        thread::scope(|scope| {
            let committing = scope.spawn(|| other.sync(SyncMode::All));
            device.flushed.wait();
            // The transaction that the file waits for has flushed, and is not durable yet.
            file.write_at(&[2; 4096], 0).unwrap();
            let syncing = scope.spawn(|| file.sync(mode));
            // Long enough for the sync to find the transaction on its way; else the test shows
            // less.
            thread::sleep(std::time::Duration::from_millis(20));
            device.go_on.wait();
            committing.join().unwrap().unwrap();
            syncing.join().unwrap().unwrap();
        });
        assert_eq!(contents_of(durable(&disk)), [2; 4096], "{mode:?}");
    }
}

#[test]
fn sync_of_everything_flushes_data_that_changed_no_metadata() {
    require!(requires::tool("mke2fs"));
    let disk = Arc::new(CrashDevice::new(PLAIN.make()));
    let filesystem = Filesystem::open(disk.clone(), options()).unwrap();
    let root = filesystem.root().unwrap();
    let node = root.create(b"f", &Kind::Regular.node(b"")).unwrap();
    let file = node.file().unwrap();
    file.write_at(&[0; 4096], 0).unwrap();
    // Within a tick of the clock the times do not change.
    for round in 1..40 {
        file.write_at(&[round; 4096], 0).unwrap();
        filesystem.sync().unwrap();
        let mut seen = vec![0; 4096];
        let log = disk.log();
        let mut cursor = log.cursor();
        cursor.advance_to(log.len());
        assert_eq!(cursor.unflushed(), 0, "round {round}");
        file.read_at(&mut seen, 0).unwrap();
    }
    assert_eq!(contents_of(durable(&disk)), [39; 4096]);
}

#[test]
fn sync_of_data_keeps_a_new_empty_file() {
    require!(requires::tool("mke2fs"));
    let disk = Arc::new(CrashDevice::new(PLAIN.make()));
    let filesystem = Filesystem::open(disk.clone(), options()).unwrap();
    let root = filesystem.root().unwrap();
    let node = root.create(b"f", &Kind::Regular.node(b"")).unwrap();
    node.sync(SyncMode::Data).unwrap();
    assert_eq!(contents_of(durable(&disk)), [0; 0]);
}
