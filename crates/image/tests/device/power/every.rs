//! Bounded exhaustive power cuts: every sequence of two requests and offline changes of a small
//! image, with every placement of flushes and of opening it again, is cut at every write below.
//! After each cut the image has at worst leaked clusters, each sector has a version that a cut may
//! leave, and a snapshot its data. `qemu-img check` agrees on a sample.
//!
//! Each run tests all sequences of one, and a shard of those of two, which changes from day to day;
//! `cargo xtask proof` tests all. Sequences of three are sampled. `extant_testkit::exhaustive`
//! describes the variables that choose sequences.

mod cuttable;
mod operations;
mod shadow;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use extant_blockdev::simulation::{
    CrashDevice, CrashOptions, CrashState, Fault, FaultRule, FaultyDevice, WriteLog,
};
use extant_blockdev::{Device, MemoryDevice, OperationKind, Persistence, ZeroedSpace, Zeroing};
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice, ReferencedStores};
use extant_image::format::{Header, read_snapshots};
use extant_image::{Format, ImageFile, Layer, Preallocation, ResizeOptions, check, resize};
use extant_space::{ByteRange, CancelToken, Control, Result, Silent};
use extant_testkit::exhaustive::{
    self, Sequence, Sequences, Shard, Tally, on_all_processors, samples,
};
use extant_testkit::require;

use super::{File, Memory, SECTOR, assert_qemu_agrees, file_of};
use crate::support::{Ground, pattern, qcow2_options, qemu, qemu_img};
use cuttable::Cuttable;
use operations::{CLUSTER, DISK, Step, moves};
use shadow::Shadow;

/// Bytes that the file can have.
const FILE: u64 = 192 << 10;
/// Most states of a position. If there are fewer, they are all.
const STATES_MAX: u64 = 16;
/// Shards of the sequences of two.
const SHARDS: usize = 47;
/// Sequences of three that are cut by default.
const SAMPLES: usize = 100;
/// The running count of samples is printed at this interval.
const SAMPLES_SHOWN: usize = 1000;
/// Intervals in cuts: passed to QEMU, written to.
const BY_QEMU: u64 = 503;
const WRITTEN: u64 = 11;

/// The disk below the recorded one.
type Below = FaultyDevice<CrashDevice>;

/// An image at the beginning.
struct Bed {
    name: &'static str,
    backing: Option<Arc<MemoryDevice>>,
    has_snapshot: bool,
    file: MemoryDevice,
    file_bytes: u64,
    disk: Vec<u8>,
    faults: Vec<FaultRule>,
}

/// A sequence that was run.
struct Life {
    log: WriteLog,
    /// Before the first step, and after each.
    shadows: Vec<Shadow>,
    /// Contents that a cut in the middle of each step may leave besides.
    during: Vec<Shadow>,
}

impl Bed {
    fn new(name: &'static str) -> Self {
        let ground = Ground::new();
        std::fs::write(ground.path("given.raw"), "").unwrap();
        let (has_backing, has_snapshot) = (name == "backing file", name == "snapshot");
        let mut options = format!("cluster_size={CLUSTER}");
        let backing = has_backing.then(|| {
            options += ",backing_file=given.raw,backing_fmt=raw";
            let below = MemoryDevice::new(DISK);
            below
                .write_at(&pattern(0, DISK, 90), 0, Persistence::Cached)
                .unwrap();
            Arc::new(below)
        });
        let path = ground.qcow2("image.qcow2", &options, DISK);
        let options = device_options(&backing, ImageAccess::ReadWrite);
        let open = || ImageDevice::open(&path, &options).unwrap();
        let write = |image: &ImageDevice, cluster: u64, seed| {
            let data = pattern(cluster * CLUSTER, CLUSTER, seed);
            image
                .write_at(&data, cluster * CLUSTER, Persistence::Cached)
                .unwrap();
        };
        let image = open();
        [0, 1, 4, 5]
            .into_iter()
            .for_each(|cluster| write(&image, cluster, 91));
        for (cluster, space) in [(2, ZeroedSpace::MayUnmap), (6, ZeroedSpace::Allocated)] {
            let range = ByteRange::new(cluster * CLUSTER, (cluster + 1) * CLUSTER);
            let zeroing = Zeroing {
                space,
                ..Zeroing::ANY
            };
            image.write_zeroes(range, zeroing).unwrap();
        }
        image.flush().unwrap();
        drop(image);
        if has_snapshot {
            qemu(&[&"snapshot", &"-c", &"one", &path]);
            write(&open(), 4, 92);
        }
        let mut disk = vec![0; DISK as usize];
        open().read_at(&mut disk, 0).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
        let file = MemoryDevice::new(FILE);
        file.write_at(&bytes, 0, Persistence::Cached).unwrap();
        Self {
            name,
            backing,
            has_snapshot,
            file,
            file_bytes: bytes.len() as u64,
            disk,
            faults: Vec::new(),
        }
    }

    fn open(&self, file: Arc<File<Below>>) -> Result<ImageDevice> {
        ImageDevice::open_store(file, &device_options(&self.backing, ImageAccess::ReadWrite))
    }

    /// Runs a sequence; `None` if a step is outside of the disk.
    fn live(&self, sequence: &Sequence<'_, Step>) -> Option<Life> {
        let recorded = CrashDevice::new(self.file.snapshot());
        let file = Arc::new(File {
            device: FaultyDevice::new(recorded, 1, self.faults.clone()),
            bytes: AtomicU64::new(self.file_bytes),
            is_disk: false,
        });
        let mut shadows = vec![Shadow::of(&self.disk)];
        let mut during = Vec::new();
        let mut image = self.open(file.clone()).unwrap();
        for (number, step) in sequence.steps().into_iter().enumerate() {
            let mut shadow = shadows[number].clone();
            let size = shadow.size();
            let is_inside = match step {
                Step::Write(start, length, _)
                | Step::Zero(start, length, _)
                | Step::Discard(start, length)
                | Step::Assign(start, length) => start + length <= size,
                Step::Resize(bytes) => bytes != size,
                Step::Flush | Step::Reopen => true,
            };
            if !is_inside {
                return None;
            }
            if let Step::Resize(bytes) = step {
                shadow.resize(bytes);
                during.push(shadow.clone());
                image.flush().unwrap();
                drop(image);
                self.resize(&file, bytes).unwrap();
                image = self.open(file.clone()).unwrap();
                shadow.flush();
                file.device.inner().mark(number.to_string());
                shadows.push(shadow);
                continue;
            }
            image = self.apply(number, step, image, &file, &mut shadow);
            let mut found = vec![0; size as usize];
            image.read_at(&mut found, 0).unwrap();
            assert_eq!(shadow.differs(&found), None, "{}: {step:?}", self.name);
            file.device.inner().mark(number.to_string());
            during.push(shadow.clone());
            shadows.push(shadow);
        }
        drop(image);
        let log = file.device.inner().log();
        Some(Life {
            log,
            shadows,
            during,
        })
    }

    fn resize(&self, file: &Arc<File<Below>>, bytes: u64) -> Result<()> {
        let options = ResizeOptions {
            preallocation: Some(Preallocation::Off),
            may_shrink: true,
        };
        let mut target = ImageFile::held(Arc::new(Cuttable(file.clone())));
        if let Some(backing) = &self.backing {
            let below = Arc::new(Memory(backing.snapshot()));
            target = target.with_backing(Layer::open(below, Format::Raw)?);
        }
        silent(|control| resize(&target, Format::Qcow2, bytes, &options, control)).map(drop)
    }

    fn apply(
        &self,
        number: usize,
        step: Step,
        image: ImageDevice,
        file: &Arc<File<Below>>,
        shadow: &mut Shadow,
    ) -> ImageDevice {
        match step {
            Step::Write(start, length, persistence) => {
                let data = pattern(start, length, 2 * number as u64 + 1);
                image.write_at(&data, start, persistence).unwrap();
                shadow.write(start, &data, persistence);
            }
            Step::Zero(start, length, space) => {
                let zeroing = Zeroing {
                    space,
                    ..Zeroing::ANY
                };
                let range = ByteRange::new(start, start + length);
                image.write_zeroes(range, zeroing).unwrap();
                shadow.write(start, &vec![0; length as usize], Persistence::Cached);
            }
            Step::Discard(start, length) => {
                image
                    .discard(ByteRange::new(start, start + length))
                    .unwrap();
                let mut found = vec![0; length as usize];
                image.read_at(&mut found, start).unwrap();
                shadow.discard(start, &found);
            }
            Step::Assign(start, length) => {
                let range = ByteRange::new(start, start + length);
                image.assign(range).unwrap();
            }
            Step::Flush => {
                image.flush().unwrap();
                shadow.flush();
            }
            Step::Reopen => {
                image.flush().unwrap();
                shadow.flush();
                drop(image);
                return self.open(file.clone()).unwrap();
            }
            Step::Resize(_) => unreachable!("not a request"),
        }
        image
    }

    /// Cuts the sequences of these numbers everywhere.
    fn sweep(&self, sequences: &Sequences<Step>, numbers: &[usize]) -> Tally {
        let work = |worker: &mut (Ground, Tally), number| {
            let (ground, tally) = worker;
            let sequence = sequences.get(number);
            tally.sequences += 1;
            let Some(life) = self.live(&sequence) else {
                return;
            };
            tally.possible += 1;
            if let Err(wrong) = self.cut(&life, sequence.shared_steps(), ground, tally) {
                let repeat = exhaustive::repeat(number, sequences.count());
                panic!("{}: {wrong}\n{repeat}: {sequence}", self.name);
            }
        };
        let worker = || {
            let ground = Ground::new();
            std::fs::write(ground.path("given.raw"), "").unwrap();
            (ground, Tally::default())
        };
        on_all_processors(numbers, worker, work, |(_, tally)| *tally)
    }

    /// Cuts behind the first `shared` steps.
    fn cut(
        &self,
        life: &Life,
        shared: usize,
        ground: &Ground,
        tally: &mut Tally,
    ) -> Result<(), String> {
        let options = CrashOptions {
            states_max: STATES_MAX,
            ..CrashOptions::seeded(1)
        };
        let changed = life.log.changed_ranges();
        let mut seen = HashSet::new();
        let mut cursor = life.log.cursor();
        let ended = |mark: Option<&str>| mark.map_or(0, |mark| mark.parse::<usize>().unwrap() + 1);
        while cursor.advance().is_some() {
            let ended = ended(cursor.mark().map(|mark| &**mark));
            if ended < shared || !cursor.is_crash_point() {
                continue;
            }
            for crash in cursor.crash_states(options) {
                if !seen.insert((ended, crash.digest(&changed))) {
                    tally.equal += 1;
                    continue;
                }
                tally.cuts += 1;
                let wrong = |words| format!("{crash}: {words}");
                self.judge(life, ended, &crash).map_err(wrong)?;
                if tally.cuts.is_multiple_of(WRITTEN) {
                    self.write_all(&crash).map_err(wrong)?;
                }
                if tally.cuts.is_multiple_of(BY_QEMU) {
                    assert_qemu_agrees(ground, &crash.image, &crash.to_string());
                    tally.by_oracle += 1;
                }
            }
        }
        Ok(())
    }

    fn judge(&self, life: &Life, ended: usize, crash: &CrashState) -> Result<(), String> {
        let found = self.read(crash.image.snapshot())?;
        life.shadows[ended].explain(life.during.get(ended), &found)?;
        if self.has_snapshot && self.read(snapshot(&crash.image)?)? != self.held() {
            return Err("the snapshot has other data".into());
        }
        only_leaks(crash.image.snapshot())
    }

    /// The disk when the snapshot was taken.
    fn held(&self) -> Vec<u8> {
        let mut disk = self.disk.clone();
        let place = 4 * CLUSTER as usize..5 * CLUSTER as usize;
        disk[place].copy_from_slice(&pattern(4 * CLUSTER, CLUSTER, 91));
        disk
    }

    fn read(&self, file: MemoryDevice) -> Result<Vec<u8>, String> {
        let options = device_options(&self.backing, ImageAccess::ReadOnly);
        let image = ImageDevice::open_store(file_of(file), &options).map_err(text)?;
        let mut disk = vec![0; image.geometry().size as usize];
        image.read_at(&mut disk, 0).map_err(text)?;
        Ok(disk)
    }

    /// After the cut, all of the disk can be written.
    fn write_all(&self, crash: &CrashState) -> Result<(), String> {
        let file = file_of(crash.image.snapshot());
        let options = device_options(&self.backing, ImageAccess::ReadWrite);
        let image = ImageDevice::open_store(file.clone(), &options).map_err(text)?;
        let data = pattern(0, image.geometry().size, 93);
        image
            .write_at(&data, 0, Persistence::Cached)
            .map_err(text)?;
        image.flush().map_err(text)?;
        drop(image);
        if self.read(file.device.snapshot())? != data {
            return Err("written later, it has other data".into());
        }
        only_leaks(file.device.snapshot())
    }
}

fn text(error: extant_space::Error) -> String {
    error.to_string()
}

fn device_options(backing: &Option<Arc<MemoryDevice>>, access: ImageAccess) -> DeviceOptions {
    let backing = backing.clone();
    DeviceOptions {
        referenced: ReferencedStores::Given {
            backing: backing.map(|below| below as Arc<dyn Device>),
            data: None,
        },
        access,
        // Two tables of the smallest clusters: some are dropped and read again.
        cache_bytes: 0,
        ..qcow2_options()
    }
}

fn silent<T>(work: impl FnOnce(Control<'_>) -> T) -> T {
    work(Control::new(&CancelToken::new(), &Silent))
}

fn only_leaks(file: MemoryDevice) -> Result<(), String> {
    let report = silent(|control| check(Arc::new(Memory(file)), 4, control)).map_err(text)?;
    match report.corruptions {
        0 => Ok(()),
        _ => Err(format!("{:?}", report.findings)),
    }
}

/// The image with the table of its snapshot instead of the disk's.
fn snapshot(image: &MemoryDevice) -> Result<MemoryDevice, String> {
    let file = Memory(image.snapshot());
    let header = Header::read(&file).map_err(text)?;
    let mut found = None;
    read_snapshots(&file, &header, &mut |snapshot| {
        found = Some(snapshot);
        Ok(())
    })
    .map_err(text)?;
    let snapshot = found.ok_or("the snapshot is missing")?;
    let view = image.snapshot();
    let mut sector = [0; SECTOR as usize];
    view.read_at(&mut sector, 0).map_err(text)?;
    sector[24..32].copy_from_slice(&DISK.to_be_bytes());
    sector[36..40].copy_from_slice(&snapshot.l1_entries.to_be_bytes());
    sector[40..48].copy_from_slice(&snapshot.l1_offset.to_be_bytes());
    view.write_at(&sector, 0, Persistence::Cached)
        .map_err(text)?;
    Ok(view)
}

const BEDS: [&str; 3] = ["alone", "backing file", "snapshot"];

fn survives(length: u32, shards: usize, words: &str) {
    let sequences = Sequences::new(moves(), length);
    let numbers = Shard::wanted(shards).numbers(sequences.count());
    for name in BEDS {
        let tally = Bed::new(name).sweep(&sequences, &numbers);
        println!("qcow2, {name}, {words}: {tally}");
    }
}

#[test]
fn each_request_survives_every_power_cut() {
    require!(qemu_img());
    survives(1, 1, "one operation");
}

#[test]
fn each_pair_of_requests_survives_every_power_cut() {
    require!(qemu_img());
    survives(2, SHARDS, "two operations");
}

#[test]
fn sampled_triples_of_requests_survive_every_power_cut() {
    require!(qemu_img());
    let sequences = Sequences::new(moves(), 3);
    let numbers = samples(sequences.count(), SAMPLES);
    for name in BEDS {
        let bed = Bed::new(name);
        let mut all = Tally::default();
        for some in numbers.chunks(SAMPLES_SHOWN) {
            all = all.plus(&bed.sweep(&sequences, some));
            println!("qcow2, {name}, three operations, sampled: {all}");
        }
    }
}

#[test]
fn ignored_flushes_break_promises() {
    require!(qemu_img());
    let mut bed = Bed::new("alone");
    bed.faults = vec![FaultRule::new(Fault::Lose).on(&[OperationKind::Flush])];
    let sequences = Sequences::new(moves(), 1);
    let (ground, mut tally) = (Ground::new(), Tally::default());
    let found = (0..sequences.count()).filter(|&number| {
        let life = bed
            .live(&sequences.get(number))
            .expect("inside of the disk");
        bed.cut(&life, 0, &ground, &mut tally).is_err()
    });
    let found = found.count();
    println!("{found} of {} sequences", sequences.count());
    assert!(found >= 20, "{found} sequences");
}
