//! Host devices against the memory device: the same random batches to both, through every cache and
//! engine, from and into memory that is not aligned.
//!
//! Each request of a batch stays in a lane of its own, as requests of one batch have no order.

mod host;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use extant_blockdev::{
    Device, HostDevice, HostOptions, MemoryDevice, MemoryOptions, Operation, Persistence,
    ReadBuffers, Request, Speed, WriteBuffers, ZeroedSpace, Zeroing,
};
use extant_space::{ByteRange, ErrorKind};
use extant_testkit::scratch::{DirectIo, Filesystem, LoopDevice, Scratch};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};
use fastrand::Rng;
use host::{MIB, every_way, open, read, uring};

const LANES: u64 = 4;
const LANE: u64 = 5 * MIB / 4;
const SIZE: u64 = LANES * LANE;
const BATCHES: usize = 16;
/// Bytes after the last whole block of the file, which are not part of the device.
const REST: u64 = 300;

/// One random request, as data; ranges are of whole blocks inside a lane.
#[derive(Debug)]
enum Step {
    Write(ByteRange, u8, Persistence),
    Read(ByteRange),
    Flush,
    Discard(ByteRange),
    WriteZeroes(ByteRange, Zeroing),
    Assign(ByteRange),
}

fn step(rng: &mut Rng, lane: u64, block: u64) -> Step {
    let blocks = LANE / block;
    let first = rng.u64(..blocks);
    let most = (blocks - first).min(if rng.u8(..4) == 0 { blocks } else { 40 });
    let count = rng.u64(1..=most);
    let range = ByteRange::at(lane * LANE + first * block, count * block).unwrap();
    let persistence = if rng.bool() {
        Persistence::Cached
    } else {
        Persistence::Fua
    };
    match rng.u8(..12) {
        0..5 => Step::Write(range, rng.u8(1..), persistence),
        5..8 => Step::Read(range),
        8 => Step::Flush,
        9 => Step::Discard(range),
        10 => Step::WriteZeroes(
            range,
            Zeroing {
                space: match rng.u8(..3) {
                    0 => ZeroedSpace::MayUnmap,
                    1 => ZeroedSpace::Allocated,
                    _ => ZeroedSpace::Written,
                },
                speed: if rng.u8(..3) == 0 {
                    Speed::OnlyIfFast
                } else {
                    Speed::Any
                },
                persistence,
            },
        ),
        _ => Step::Assign(range),
    }
}

/// The memory of a request: pieces at odd addresses, of odd lengths.
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    cuts: Vec<usize>,
}

impl Memory {
    fn new(rng: &mut Rng, length: u64, fill: impl Fn(u64) -> u8) -> Self {
        let length = length as usize;
        let start = rng.usize(..4096);
        let mut bytes = vec![0; start + length];
        for (at, byte) in bytes[start..].iter_mut().enumerate() {
            *byte = fill(at as u64);
        }
        let mut cuts: Vec<_> = (0..rng.usize(..4)).map(|_| rng.usize(..=length)).collect();
        cuts.sort_unstable();
        cuts.push(length);
        Self { bytes, start, cuts }
    }

    fn contents(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    fn write_buffers(&self) -> WriteBuffers<'_> {
        let mut at = 0;
        let contents = self.contents();
        let piece = |&cut: &usize| &contents[std::mem::replace(&mut at, cut)..cut];
        self.cuts.iter().map(piece).collect()
    }

    fn read_buffers(&mut self) -> ReadBuffers<'_> {
        let mut rest = &mut self.bytes[self.start..];
        let mut at = 0;
        let mut buffers = ReadBuffers::new();
        for &cut in &self.cuts {
            let (piece, later) = rest.split_at_mut(cut - at);
            buffers.push(piece);
            (rest, at) = (later, cut);
        }
        buffers
    }
}

/// Runs one random batch on both and compares results and content.
fn batch(host: &HostDevice, model: &MemoryDevice, rng: &mut Rng, lanes: std::ops::Range<u64>) {
    let block = u64::from(host.geometry().logical_block);
    let steps: Vec<_> = lanes.map(|lane| step(rng, lane, block)).collect();
    let mut memories: Vec<_> = steps
        .iter()
        .map(|step| match *step {
            Step::Write(range, seed, _) => {
                Memory::new(rng, range.len(), |at| (at / 7) as u8 ^ seed)
            }
            Step::Read(range) => Memory::new(rng, range.len(), |_| 0xEE),
            _ => Memory::new(rng, 0, |_| 0),
        })
        .collect();
    let operations = steps
        .iter()
        .zip(&mut memories)
        .map(|(step, memory)| match *step {
            Step::Write(range, _, persistence) => Operation::Write {
                offset: range.start(),
                from: memory.write_buffers(),
                persistence,
            },
            Step::Read(range) => Operation::Read {
                offset: range.start(),
                into: memory.read_buffers(),
            },
            Step::Flush => Operation::Flush,
            Step::Discard(range) => Operation::Discard(range),
            Step::WriteZeroes(range, zeroing) => Operation::WriteZeroes(range, zeroing),
            Step::Assign(range) => Operation::Assign(range),
        });
    let mut requests: Vec<_> = operations.map(Request::new).collect();
    host.submit(&mut requests);
    let results: Vec<_> = requests.into_iter().map(Request::into_result).collect();
    for ((step, memory), result) in steps.iter().zip(&memories).zip(results) {
        match *step {
            Step::Assign(_) => match result {
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}"),
            },
            Step::WriteZeroes(range, zeroing) => match result {
                Ok(()) => model.write_zeroes(range, zeroing).unwrap(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                    assert_eq!(zeroing.speed, Speed::OnlyIfFast);
                }
            },
            Step::Write(range, _, persistence) => {
                result.unwrap();
                model
                    .write_at(memory.contents(), range.start(), persistence)
                    .unwrap();
            }
            Step::Read(range) => {
                result.unwrap();
                assert!(memory.contents() == read(model, range), "{step:?}");
            }
            Step::Flush => result.unwrap(),
            Step::Discard(range) => {
                result.unwrap();
                // Each byte is unchanged or zero.
                let (before, after) = (read(model, range), read(host, range));
                let is_gone = |(before, after)| after == before || after == &0;
                assert!(before.iter().zip(&after).all(is_gone), "{step:?}");
                model
                    .write_at(&after, range.start(), Persistence::Cached)
                    .unwrap();
            }
        }
    }
}

fn compare(host: &HostDevice, seed: u64) {
    let model = MemoryDevice::with_options(MemoryOptions {
        logical_block: host.geometry().logical_block,
        ..MemoryOptions::new(SIZE)
    });
    let whole = ByteRange::new(0, SIZE);
    let mut rng = Rng::with_seed(seed);
    for number in 0..BATCHES {
        // A single request takes another path than several.
        let lanes = if number % 3 == 0 { 2..3 } else { 0..LANES };
        batch(host, &model, &mut rng, lanes);
        let same = read(host, whole) == read(&model, whole);
        assert!(same, "seed {seed}: contents differ after batch {number}");
    }
}

fn compare_every_way(path: &Path) {
    for (seed, options) in every_way().into_iter().enumerate() {
        eprintln!("{options:?}, seed {seed}");
        let host = open(path, &options);
        assert_eq!(host.engine(), options.engine);
        let clear = host.write_zeroes(ByteRange::new(0, SIZE), Zeroing::ANY);
        clear.unwrap();
        compare(&host, seed as u64);
        host.flush().unwrap();
    }
}

fn compare_on(filesystem: Filesystem) {
    require!(requires::root(), filesystem.requirement(), uring());
    let size = filesystem.size_bytes_min().max(64 * MIB);
    let scratch = Scratch::new(filesystem, size);
    let path = host::sparse(scratch.path(), "file", SIZE + REST);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[0xEE; REST as usize], SIZE).unwrap();
    compare_every_way(&path);
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, SIZE + REST);
    assert!(bytes[SIZE as usize..].iter().all(|&byte| byte == 0xEE));
}

#[test]
fn file_on_ext4_under_random_batches_equals_memory() {
    compare_on(Filesystem::Ext4);
}

#[test]
fn file_on_ext4_with_small_blocks_under_random_batches_equals_memory() {
    compare_on(Filesystem::Ext4SmallBlocks);
}

#[test]
fn file_on_ext2_under_random_batches_equals_memory() {
    compare_on(Filesystem::Ext2);
}

#[test]
fn file_on_xfs_under_random_batches_equals_memory() {
    compare_on(Filesystem::Xfs);
}

#[test]
fn file_on_btrfs_under_random_batches_equals_memory() {
    compare_on(Filesystem::Btrfs);
}

#[test]
fn file_on_tmpfs_under_random_batches_equals_memory() {
    compare_on(Filesystem::Tmpfs);
}

#[test]
fn disk_under_random_batches_equals_memory() {
    require!(
        requires::root(),
        requires::tool("losetup"),
        requires::device("/dev/loop-control"),
        uring()
    );
    for sector_bytes in [512, 4096] {
        let work = Workdir::new();
        let backing = host::sparse(work.path(), "backing", SIZE);
        let disk = LoopDevice::attach_with(&backing, DirectIo::Off, sector_bytes);
        compare_every_way(disk.path());
        let host = open(disk.path(), &HostOptions::default());
        assert_eq!(host.geometry().logical_block, sector_bytes);
        assert_eq!(host.geometry().size, SIZE);
    }
}

#[test]
fn concurrent_threads_each_read_their_writes() {
    require!(uring());
    const THREADS: u64 = 20;
    let work = Workdir::new();
    for options in every_way() {
        let path = host::sparse(work.path(), "file", THREADS * LANE);
        let host = open(&path, &options);
        thread::scope(|scope| {
            for number in 0..THREADS {
                let host = &host;
                scope.spawn(move || {
                    let part = |at: u64| number * LANE + at * 64 * 1024;
                    for round in 0..6 {
                        let data = vec![(number * 7 + round) as u8 + 1; 64 * 1024];
                        let mut writes: Vec<_> = (0..8)
                            .map(|at| Request::write(part(at), &data, Persistence::Cached))
                            .collect();
                        host.submit(&mut writes);
                        assert!(writes.into_iter().all(|write| write.into_result().is_ok()));
                        let range = ByteRange::new(part(0), part(8));
                        assert!(read(host, range).iter().all(|&byte| byte == data[0]));
                    }
                });
            }
        });
    }
}
