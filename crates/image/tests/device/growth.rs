//! Images with clusters beyond their refcount table: on a disk, and in a file that a crash left
//! longer.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use extant_blockdev::{
    Device, Geometry, MemoryDevice, Operation, Persistence, RangeStatus, Request,
};
use extant_hostfs::Pace;
use extant_image::device::{ImageDevice, Store};
use extant_image::{Format, ImageFile, ResizeOptions, resize};
use extant_space::{ByteRange, CancelToken, Control, Error, ErrorKind, Result, Silent};
use extant_testkit::oracle::qemu::qemu_io;
use extant_testkit::scratch::{DirectIo, LoopDevice};
use extant_testkit::{require, requires};

use crate::support::{
    Ground, KIB, MIB, assert_checks, assert_reads, open, pattern, qcow2_options, qemu, qemu_img,
    read, write,
};

/// Small clusters, and how many bytes of the file the first refcount table counts.
const SMALL: [(&str, u64); 4] = [
    ("cluster_size=512,refcount_bits=64", 2 * MIB),
    ("cluster_size=512", 8 * MIB),
    ("cluster_size=512,refcount_bits=1", 128 * MIB),
    ("cluster_size=1k,refcount_bits=64", 16 * MIB),
];

/// Writes all of the disk and reads it, in two turns of opening.
#[track_caller]
fn assert_can_be_filled(path: &Path, bytes: u64, what: &str) {
    for round in 0..2 {
        let image = open(path);
        for at in (0..bytes).step_by(MIB as usize) {
            image
                .write_at(&pattern(at, MIB, round), at, Persistence::Cached)
                .unwrap_or_else(|error| panic!("{what}, {at:#x}: {error}"));
        }
        image
            .flush()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        drop(image);
        assert_checks(path);
        let image = open(path);
        for at in (0..bytes).step_by(MIB as usize) {
            assert!(
                read(&image, at, MIB) == pattern(at, MIB, round),
                "{what}, {at:#x}"
            );
        }
    }
}

/// The image has one cluster in use behind the others, and the file is longer, as after a crash.
fn after_a_crash(
    ground: &Ground,
    options: &str,
    bytes: u64,
    file_bytes: u64,
) -> std::path::PathBuf {
    let path = ground.qcow2("image.qcow2", options, bytes);
    write(&open(&path), 0, &pattern(0, 4 * KIB, 7));
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file_bytes).unwrap();
    path
}

#[test]
fn file_that_a_crash_left_longer_than_its_refcount_table_can_be_written() {
    require!(qemu_img());
    for (options, counted) in SMALL {
        // The file ends with a region, inside of one, and inside of a cluster.
        for more in [0, 6 * MIB, 5 * MIB + 3 * KIB, 5 * MIB + 100] {
            let ground = Ground::new();
            let path = after_a_crash(&ground, options, 12 * MIB, counted + more);
            assert_can_be_filled(&path, 12 * MIB, &format!("{options} and {more} bytes"));
        }
    }
}

#[test]
fn refcount_table_grows_on_a_disk_that_it_does_not_count() {
    require!(qemu_img(), requires::root());
    const DISK: u64 = 24 * MIB;
    for (sector_bytes, (options, _)) in [512, 512, 512, 1024].into_iter().zip(SMALL) {
        let ground = Ground::new();
        let file = ground.path("disk");
        std::fs::write(&file, vec![0xee; DISK as usize]).unwrap();
        let disk = LoopDevice::attach_with(&file, DirectIo::Off, sector_bytes);
        let size = DISK.to_string();
        qemu(&[
            &"create",
            &"-q",
            &"-f",
            &"qcow2",
            &"-o",
            &options,
            &disk.path(),
            &size,
        ]);
        assert_can_be_filled(disk.path(), 18 * MIB, options);
        // All space can be used, and writes that do not fit are refused.
        let image = open(disk.path());
        let end = (18 * MIB..DISK).step_by(32 << 10).find_map(|at| {
            let written = image.write_at(&pattern(at, 32 * KIB, 1), at, Persistence::Cached);
            written.err().map(|error| (at, error))
        });
        let (end, error) = end.expect("metadata takes space as well");
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(end > DISK - 2 * MIB, "{options}: {end:#x}");
        image.flush().unwrap();
        drop(image);
        assert_checks(disk.path());
        let image = open(disk.path());
        for at in (18 * MIB..end).step_by(32 << 10) {
            assert!(
                read(&image, at, 32 * KIB) == pattern(at, 32 * KIB, 1),
                "{at:#x}"
            );
        }
    }
}

#[test]
fn image_that_a_crash_left_longer_than_its_refcount_table_is_resized() {
    require!(qemu_img(), requires::tool("qemu-io"));
    for (options, counted) in SMALL {
        let ground = Ground::new();
        let path = after_a_crash(&ground, options, 4 * MIB, counted + 5 * MIB + 3 * KIB);
        let mut bytes = read(&open(&path), 0, 4 * MIB);
        for size in [12 * MIB, 3 * MIB, 6 * MIB] {
            let target = ImageFile::host(&path, Pace::Full).unwrap();
            let options = ResizeOptions {
                preallocation: None,
                may_shrink: true,
            };
            let (token, reporter) = (CancelToken::new(), Silent);
            let control = Control::new(&token, &reporter);
            resize(&target, Format::Qcow2, size, &options, control).unwrap();
            drop(target);
            bytes.resize(size as usize, 0);
            assert_checks(&path);
            assert_reads(&path, &bytes);
        }
        qemu_io(&path, "qcow2", &["write -P 1 0 6M"]);
        assert_checks(&path);
    }
}

/// A store that panics once it is armed, at the first flush or at the first write, and counts the
/// changes after that.
struct Panicking {
    memory: MemoryDevice,
    at_flush: bool,
    is_armed: AtomicBool,
    written_after: AtomicU64,
}

impl Device for Panicking {
    fn geometry(&self) -> Geometry {
        self.memory.geometry()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        let is_it = |request: &Request<'_>| match request.operation {
            Operation::Flush => self.at_flush,
            Operation::Write { .. } => !self.at_flush,
            _ => false,
        };
        if requests.iter().any(is_it) && self.is_armed.swap(false, Ordering::SeqCst) {
            self.written_after.store(0, Ordering::SeqCst);
            panic!("the test asks for it");
        }
        if requests.iter().any(|request| request.operation.changes()) {
            self.written_after.fetch_add(1, Ordering::SeqCst);
        }
        self.memory.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.memory.status(range, visit)
    }
}

impl Store for Panicking {
    fn file_bytes(&self) -> Result<u64> {
        Ok(self.memory.geometry().size)
    }

    fn resize(&self, _: u64) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported))
    }
}

#[test]
fn panic_in_a_change_of_metadata_ends_the_device() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=512", 4 * MIB);
    // A write of the first data makes an L2 table, under the lock; a flush commits, without it.
    for at_flush in [false, true] {
        let memory = MemoryDevice::new(8 * MIB);
        memory
            .write_at(&std::fs::read(&path).unwrap(), 0, Persistence::Cached)
            .unwrap();
        let store = Arc::new(Panicking {
            memory,
            at_flush,
            is_armed: AtomicBool::new(false),
            written_after: AtomicU64::new(0),
        });
        let image = Arc::new(ImageDevice::open_store(store.clone(), &qcow2_options()).unwrap());
        write(&image, 0, &pattern(0, 4 * KIB, 1));
        image.flush().unwrap();
        write(&image, 0, &pattern(0, 4 * KIB, 2));
        write(&image, 3 * MIB, &pattern(0, 4 * KIB, 2));
        store.is_armed.store(true, Ordering::SeqCst);
        let device = Arc::clone(&image);
        let change = move || {
            if at_flush {
                device.flush()
            } else {
                device.write_at(&[1; 4096], MIB, Persistence::Cached)
            }
        };
        thread::spawn(change).join().expect_err("the panic");
        // No thread waits for an event that cannot occur.
        let device = Arc::clone(&image);
        let after = thread::spawn(move || {
            let mut byte = [0; 512];
            let range = ByteRange::new(0, 64 * KIB);
            [
                device.read_at(&mut byte, 0),
                device.write_at(&[1; 512], 0, Persistence::Cached),
                device.write_at(&[1; 512], 2 * MIB, Persistence::Cached),
                device.run(Operation::Discard(range)),
                device.flush(),
            ]
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        while !after.is_finished() {
            assert!(Instant::now() < deadline, "a request waits after a panic");
            thread::sleep(Duration::from_millis(5));
        }
        for result in after.join().unwrap() {
            let error = result.expect_err("a request after a panic");
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        }
        drop(Arc::into_inner(image));
        assert_eq!(
            store.written_after.load(Ordering::SeqCst),
            0,
            "at a flush: {at_flush}"
        );
        let image = ImageDevice::open_store(store, &qcow2_options()).unwrap();
        let found = read(&image, 0, 4 * KIB);
        assert!(found == pattern(0, 4 * KIB, 1) || found == pattern(0, 4 * KIB, 2));
    }
}
