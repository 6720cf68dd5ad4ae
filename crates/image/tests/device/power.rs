//! Power cuts at every write: only unflushed data may be lost, and the image has at worst leaked
//! clusters.

mod every;
mod promise;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::simulation::{
    CrashDevice, CrashOptions, CrashState, Done, Fault, FaultRule, FaultyDevice, When,
};
use extant_blockdev::{
    Device, Geometry, MemoryDevice, OperationKind, Persistence, RangeStatus, Request, ZeroedSpace,
    Zeroing,
};
use extant_image::check;
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice, ReferencedStores, Store};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, Extent, FallocateMode, LayerRange,
    LayerVisitor, Result, Silent, SpaceFile, SyncMode,
};
use extant_testkit::{require, seeds};

use promise::{Promise, assert_written, flushed, promise};

use crate::support::{Ground, KIB, MIB, pattern, qcow2_options, qemu, qemu_img};

pub const FILE: u64 = 6 * MIB;
const DISK: u64 = MIB;
const SECTOR: u64 = 512;

/// A file in a device that is larger.
pub struct File<D> {
    pub device: D,
    bytes: AtomicU64,
    /// It keeps its size.
    is_disk: bool,
}

impl<D: Device> Device for File<D> {
    fn geometry(&self) -> Geometry {
        let size = self.bytes.load(Ordering::Relaxed);
        Geometry {
            size,
            ..self.device.geometry()
        }
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        self.device.submit(requests);
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device.status(range, visit)
    }

    fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        self.device.extents(range, visit)
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        self.device.visit_layers(at, visit)
    }
}

impl<D: Device> Store for File<D> {
    fn file_bytes(&self) -> Result<u64> {
        Ok(self.bytes.load(Ordering::Relaxed))
    }

    fn resize(&self, bytes: u64) -> Result<()> {
        if self.is_disk {
            return Err(Error::new(ErrorKind::Unsupported));
        }
        let bytes = bytes.min(self.device.geometry().size);
        let old = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes < old {
            self.device
                .write_zeroes(ByteRange::new(bytes, old), Zeroing::ANY)
        } else {
            Ok(())
        }
    }
}

struct Scenario {
    name: &'static str,
    options: &'static str,
    backing: Option<Arc<dyn Device>>,
    has_snapshot: bool,
    /// It is on a disk with other contents.
    on_disk: bool,
    /// One of this number of changes and flushes below fails, done or not.
    failure_odds: Option<u32>,
}

const PLAIN: Scenario = Scenario {
    name: "4k",
    options: "cluster_size=4k",
    backing: None,
    has_snapshot: false,
    on_disk: false,
    failure_odds: None,
};

impl Scenario {
    fn rules(&self) -> Vec<FaultRule> {
        let Some(odds) = self.failure_odds else {
            return Vec::new();
        };
        let fail = |done| {
            let when = When::Probability(1.0 / f64::from(odds));
            let kind = ErrorKind::Io;
            let kinds = [
                OperationKind::Write,
                OperationKind::WriteZeroes,
                OperationKind::Flush,
            ];
            FaultRule::new(Fault::Fail { kind, done })
                .on(&kinds)
                .when(when)
        };
        [Done::Nothing, Done::Part, Done::All].map(fail).to_vec()
    }
}

/// Runs random requests with the image in a device that records them, then checks the state after
/// every power cut.
fn assert_survives(scenario: &Scenario, seed: u64, steps: usize) {
    let ground = Ground::new();
    // QEMU's check opens it.
    std::fs::write(ground.path("given.raw"), "").unwrap();
    let path = ground.qcow2("image.qcow2", scenario.options, DISK);
    if scenario.has_snapshot {
        let image = ImageDevice::open(&path, &qcow2_options()).unwrap();
        image
            .write_at(&pattern(0, DISK / 2, 3), 0, Persistence::Cached)
            .unwrap();
        drop(image);
        qemu(&[&"snapshot", &"-c", &"one", &path]);
    }
    let mut first = std::fs::read(&path).unwrap();
    first.resize(first.len().next_multiple_of(SECTOR as usize), 0);
    let memory = MemoryDevice::new(FILE);
    if scenario.on_disk {
        let old = vec![0xee; FILE as usize];
        memory.write_at(&old, 0, Persistence::Cached).unwrap();
    }
    memory.write_at(&first, 0, Persistence::Cached).unwrap();
    let options = DeviceOptions {
        referenced: ReferencedStores::Given {
            backing: scenario.backing.clone(),
            data: None,
        },
        // Two tables of the smallest clusters: some are dropped and read again.
        cache_bytes: 0,
        ..qcow2_options()
    };
    let bytes = if scenario.on_disk {
        FILE
    } else {
        first.len() as u64
    };
    let file = Arc::new(File {
        device: FaultyDevice::new(CrashDevice::new(memory), seed, Vec::new()),
        bytes: AtomicU64::new(bytes),
        is_disk: scenario.on_disk,
    });
    let image = ImageDevice::open_store(file.clone(), &options).unwrap();
    let mut disk = vec![0; DISK as usize];
    image.read_at(&mut disk, 0).unwrap();
    let mut promises = vec![promise(&disk, HashSet::new())];
    let mut random = fastrand::Rng::with_seed(seed);
    file.device.set_rules(scenario.rules());
    let mut failures = 0;
    let mut streams = [0, DISK / 2];
    for _ in 0..steps {
        match step(&image, &mut random, &mut streams, &mut disk, &mut promises) {
            Ok(None) => {}
            Ok(Some(promise)) => file.device.inner().mark(promise.to_string()),
            Err(error) => {
                assert!(scenario.failure_odds.is_some(), "{error}");
                failures += 1;
            }
        }
    }
    assert_eq!(failures > 0, scenario.failure_odds.is_some(), "{failures}");
    file.device.set_rules(Vec::new());
    image.flush().unwrap();
    flushed(&disk, &mut promises);
    file.device.inner().mark((promises.len() - 1).to_string());
    drop(image);
    let log = file.device.inner().log();
    let options = CrashOptions {
        states_max: 3,
        ..CrashOptions::seeded(seed)
    };
    let (mut written, mut cuts) = (0, 0);
    for (number, crash) in log.crashes(options).enumerate() {
        let what = format!("{} seed {seed}, {crash}", scenario.name);
        assert_never_corrupt(&crash, &what);
        let from = crash
            .mark()
            .map_or(0, |mark| mark.parse().expect("a number"));
        cuts += 1;
        written += assert_promises(scenario, &crash, &promises[from..], &what);
        if number % 20 == 0 {
            assert_can_be_written(scenario, &crash, &what);
        }
        if number % 400 == 0 {
            assert_qemu_agrees(&ground, &crash.image, &what);
        }
    }
    seeds::counted(cuts, "cuts");
    // Of a device that fails, few flushes succeed.
    let is_enough = written > 0 || scenario.failure_odds.is_some();
    assert!(is_enough, "{}: nothing was written below", scenario.name);
}

/// One request, of which some continue one of `streams`. Reads show the disk's contents afterwards,
/// whether it fails or not. Returns the number of a new promise.
fn step(
    image: &ImageDevice,
    random: &mut fastrand::Rng,
    streams: &mut [u64],
    disk: &mut [u8],
    promises: &mut Vec<Promise>,
) -> Result<Option<usize>> {
    let stream = random.usize(..2 * streams.len());
    let start = match streams.get(stream) {
        Some(start) => *start,
        None => random.u64(..DISK / SECTOR) * SECTOR,
    };
    let most = [SECTOR, 8 * KIB, 64 * KIB][random.usize(..3)];
    let length = (random.u64(1..=most / SECTOR) * SECTOR).min(DISK - start);
    if let Some(next) = streams.get_mut(stream) {
        *next = (start + length) % DISK;
    }
    let range = ByteRange::new(start, start + length);
    let sectors = start / SECTOR..range.end() / SECTOR;
    let now = promises.last_mut().expect("one at the start");
    let mut wanted = None;
    let done = match random.u8(..10) {
        0..5 => {
            let bytes = wanted.insert(pattern(start, length, random.u64(..)));
            image.write_at(bytes, start, Persistence::Cached)
        }
        5..7 => {
            now.unknown.extend(sectors.clone());
            now.unmap(sectors);
            image.discard(range)
        }
        7 => {
            let space = match random.u8(..3) {
                0 => ZeroedSpace::MayUnmap,
                1 => ZeroedSpace::Allocated,
                _ => ZeroedSpace::Written,
            };
            wanted = Some(vec![0; length as usize]);
            let zeroing = Zeroing {
                space,
                ..Zeroing::ANY
            };
            if space != ZeroedSpace::Written {
                now.unmap(sectors.clone());
            }
            let done = image.write_zeroes(range, zeroing);
            if space == ZeroedSpace::Written && done.is_ok() {
                now.zeroed.extend(sectors);
            }
            done
        }
        8 => image.assign(range).map(drop),
        _ => {
            image.flush()?;
            flushed(disk, promises);
            return Ok(Some(promises.len() - 1));
        }
    };
    let there = &mut disk[start as usize..range.end() as usize];
    image.read_at(there, start).unwrap();
    let is_as_wanted = wanted.as_deref().is_none_or(|wanted| *wanted == *there);
    assert!(done.is_err() || is_as_wanted, "{range} reads otherwise");
    for version in wanted.as_deref().into_iter().chain([&*there]) {
        for (number, sector) in (start / SECTOR..).zip(version.chunks(SECTOR as usize)) {
            let versions = now.versions.entry(number).or_default();
            versions.push(sector.to_vec());
        }
    }
    done.map(|()| None)
}

/// Returns the number of sectors that are promised to be written below.
fn assert_promises(
    scenario: &Scenario,
    crash: &CrashState,
    promises: &[Promise],
    what: &str,
) -> usize {
    let file = left_by(scenario, crash.image.snapshot());
    let image = opened(scenario, file, ImageAccess::ReadOnly, what);
    let mut disk = vec![0; DISK as usize];
    image
        .read_at(&mut disk, 0)
        .unwrap_or_else(|error| panic!("{error}, {what}"));
    for (number, sector) in disk.chunks(SECTOR as usize).enumerate() {
        let number = number as u64;
        let is_allowed = promises
            .iter()
            .any(|promise| promise.allows(number, sector));
        assert!(is_allowed, "sector {number}: {:?}, {what}", &sector[..16]);
    }
    assert_written(&image, promises, what)
}

/// A file as long as the device.
pub fn file_of<D: Device>(device: D) -> Arc<File<D>> {
    file_or_disk(device, false)
}

/// A disk of that size.
pub fn disk_of<D: Device>(device: D) -> Arc<File<D>> {
    file_or_disk(device, true)
}

fn file_or_disk<D: Device>(device: D, is_disk: bool) -> Arc<File<D>> {
    let bytes = device.geometry().size;
    Arc::new(File {
        device,
        bytes: AtomicU64::new(bytes),
        is_disk,
    })
}

/// State after a cut: a file with its greatest size, or the disk.
fn left_by(scenario: &Scenario, device: MemoryDevice) -> Arc<File<MemoryDevice>> {
    file_or_disk(device, scenario.on_disk)
}

fn opened(
    scenario: &Scenario,
    file: Arc<File<MemoryDevice>>,
    access: ImageAccess,
    what: &str,
) -> ImageDevice {
    let options = DeviceOptions {
        referenced: ReferencedStores::Given {
            backing: scenario.backing.clone(),
            data: None,
        },
        access,
        ..qcow2_options()
    };
    ImageDevice::open_store(file, &options).unwrap_or_else(|error| panic!("{error}, {what}"))
}

/// After a power cut, all of the disk can be written, read and flushed.
fn assert_can_be_written(scenario: &Scenario, crash: &CrashState, what: &str) {
    let file = left_by(scenario, crash.image.snapshot());
    let image = opened(scenario, file.clone(), ImageAccess::ReadWrite, what);
    let bytes = pattern(0, DISK, 5);
    for at in (0..DISK).step_by(64 << 10) {
        let part = &bytes[at as usize..][..64 << 10];
        let written = image.write_at(part, at, Persistence::Cached);
        written.unwrap_or_else(|error| panic!("{at:#x}: {error}, {what}"));
    }
    image
        .flush()
        .unwrap_or_else(|error| panic!("{error}, {what}"));
    let mut found = vec![0; DISK as usize];
    image.read_at(&mut found, 0).unwrap();
    assert!(found == bytes, "{what}");
    drop(image);
    assert_only_leaks(file.device.snapshot(), what);
}

pub fn assert_never_corrupt(crash: &CrashState, what: &str) {
    assert_only_leaks(crash.image.snapshot(), what);
}

/// Only leaks, at worst.
fn assert_only_leaks(device: MemoryDevice, what: &str) {
    let file = Arc::new(Memory(device));
    let report = check(file, 4, Control::new(&CancelToken::new(), &Silent))
        .unwrap_or_else(|error| panic!("{error}, {what}"));
    assert_eq!(report.corruptions, 0, "{:?}, {what}", report.findings);
}

/// Source of a check.
pub struct Memory(pub MemoryDevice);

impl SpaceFile for Memory {
    fn size(&self) -> Result<u64> {
        Ok(self.0.geometry().size)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let start = offset & !(SECTOR - 1);
        let end = (offset + buffer.len() as u64).next_multiple_of(SECTOR);
        let mut bytes = vec![0; (end - start) as usize];
        self.0.read_at(&mut bytes, start)?;
        buffer.copy_from_slice(&bytes[(offset - start) as usize..][..buffer.len()]);
        Ok(buffer.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<()> {
        unreachable!("only read")
    }

    fn resize(&self, _: u64) -> Result<()> {
        unreachable!("only read")
    }

    fn fallocate(&self, _: FallocateMode, _: ByteRange) -> Result<()> {
        unreachable!("only read")
    }

    fn for_each_extent(
        &self,
        _: ByteRange,
        _: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        unreachable!("only read")
    }

    fn sync(&self, _: SyncMode) -> Result<()> {
        unreachable!("only read")
    }
}

/// Leaks at worst (3); 2 would be errors.
pub fn assert_qemu_agrees(ground: &Ground, image: &MemoryDevice, what: &str) {
    let path = ground.path("crash.qcow2");
    std::fs::write(&path, image.to_vec()).unwrap();
    let mut command = extant_testkit::command::tool("qemu-img");
    let output = command
        .args(["check", "-f", "qcow2"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        matches!(output.status.code(), Some(0 | 3)),
        "{}{what}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn assert_all_survive(scenario: &Scenario) {
    for seed in seeds::seeds("EXTANT_POWER_SEEDS", 0..2) {
        assert_survives(scenario, seed, 150);
    }
}

#[test]
fn image_of_small_clusters_survives_power_cuts() {
    require!(qemu_img());
    // Its refcount table grows on the way.
    let options = "cluster_size=512,refcount_bits=64";
    assert_all_survive(&Scenario {
        name: "512",
        options,
        ..PLAIN
    });
}

#[test]
fn image_on_a_disk_survives_power_cuts() {
    require!(qemu_img());
    for (name, options) in [
        ("disk, 512", "cluster_size=512,refcount_bits=64"),
        ("disk, 1k", "cluster_size=1k,refcount_bits=1"),
    ] {
        assert_all_survive(&Scenario {
            name,
            options,
            on_disk: true,
            ..PLAIN
        });
    }
}

#[test]
fn image_survives_power_cuts() {
    require!(qemu_img());
    assert_all_survive(&PLAIN);
}

#[test]
fn image_over_a_backing_file_survives_power_cuts() {
    require!(qemu_img());
    let backing = MemoryDevice::new(DISK / 4 * 3);
    backing
        .write_at(&pattern(0, DISK / 4 * 3, 1), 0, Persistence::Cached)
        .unwrap();
    assert_all_survive(&Scenario {
        name: "backing",
        options: "cluster_size=4k,backing_file=given.raw,backing_fmt=raw",
        backing: Some(Arc::new(backing)),
        ..PLAIN
    });
}

#[test]
fn image_with_a_snapshot_survives_power_cuts() {
    require!(qemu_img());
    assert_all_survive(&Scenario {
        name: "snapshot",
        has_snapshot: true,
        ..PLAIN
    });
}

#[test]
fn image_survives_failures_and_power_cuts_after_them() {
    require!(qemu_img());
    assert_all_survive(&Scenario {
        name: "failing",
        failure_odds: Some(25),
        ..PLAIN
    });
}

/// Nothing is promised here: threads do not wait for each other.
#[test]
fn image_that_several_threads_use_is_never_corrupt_after_a_power_cut() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", PLAIN.options, DISK);
    let mut first = std::fs::read(&path).unwrap();
    first.resize(first.len().next_multiple_of(SECTOR as usize), 0);
    let memory = MemoryDevice::new(FILE);
    memory.write_at(&first, 0, Persistence::Cached).unwrap();
    let file = Arc::new(File {
        device: CrashDevice::new(memory),
        bytes: AtomicU64::new(first.len() as u64),
        is_disk: false,
    });
    let image = ImageDevice::open_store(file.clone(), &qcow2_options()).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let image = &image;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..120 {
                    let start = random.u64(..DISK / (16 * KIB)) * 16 * KIB;
                    let range = ByteRange::new(start, start + 16 * KIB);
                    match random.u8(..6) {
                        0..3 => image.write_at(&[7; 8 << 10], start, Persistence::Cached),
                        3 => image.discard(range),
                        4 => image.write_zeroes(range, Zeroing::ANY),
                        _ => image.flush(),
                    }
                    .unwrap();
                }
            });
        }
    });
    drop(image);
    let options = CrashOptions {
        states_max: 3,
        ..CrashOptions::seeded(1)
    };
    for crash in file.device.log().crashes(options) {
        assert_never_corrupt(&crash, &crash.to_string());
    }
}
