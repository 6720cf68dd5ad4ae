//! Random requests from several threads against plain bytes, for every kind of image that qemu-img
//! makes.
//!
//! Threads share clusters, never bytes: they own blocks of 4 KiB round-robin in the first half of
//! the disk, and whole clusters in the second, so that the expected bytes do not depend on the
//! order of the threads.

use std::ops::Range;
use std::path::Path;
use std::thread;

use extant_blockdev::{Device, HostCache, Persistence, Request, Speed, ZeroedSpace, Zeroing};
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_space::{ByteRange, ErrorKind};
use extant_testkit::require;

use crate::support::{
    Ground, MIB, assert_checks, assert_reads, followed, open_with, pattern, qcow2_options, qemu,
    qemu_img, read,
};

const THREADS: u64 = 3;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
const SIZE: u64 = 6 * MIB;
const HALF: u64 = SIZE / 2;

/// The bytes of one thread.
struct Owner<'d> {
    device: &'d ImageDevice,
    number: u64,
    random: fastrand::Rng,
    bytes: Vec<u8>,
    /// For each sector: whether its content after a discard is undefined.
    is_known: Vec<bool>,
    cluster: u64,
}

impl Owner<'_> {
    fn owns(&self, block: u64) -> bool {
        let offset = block * BLOCK;
        if offset < HALF {
            block % THREADS == self.number
        } else {
            (offset - HALF) / (HALF / THREADS) == self.number
        }
    }

    fn set(&mut self, range: ByteRange, is_known: bool, bytes: impl FnOnce(&mut [u8])) {
        bytes(&mut self.bytes[range.start() as usize..range.end() as usize]);
        let sectors = (range.start() / SECTOR) as usize..(range.end() / SECTOR) as usize;
        self.is_known[sectors].fill(is_known);
    }

    fn assert_found(&self, range: ByteRange, found: &[u8]) {
        for (sector, found) in range.chunks(SECTOR).zip(found.chunks(SECTOR as usize)) {
            let at = sector.start() as usize;
            let is_right = !self.is_known[at / SECTOR as usize]
                || self.bytes[at..at + SECTOR as usize] == *found;
            assert!(is_right, "{sector} of thread {}", self.number);
        }
    }

    /// A range of blocks that are its own.
    fn range(&mut self) -> ByteRange {
        loop {
            let start = self.random.u64(..SIZE / BLOCK);
            let most = if start * BLOCK < HALF {
                1
            } else {
                3 * self.cluster / BLOCK + 40
            };
            let end = (start + self.random.u64(1..=most.max(1))).min(SIZE / BLOCK);
            if (start..end).all(|block| self.owns(block)) {
                // Half of them begin and end inside a block of the file below.
                let odd = u64::from(self.random.bool()) * 512;
                return ByteRange::new(start * BLOCK + odd, end * BLOCK - odd);
            }
        }
    }

    fn step(&mut self) {
        let range = self.range();
        match self.random.u8(..12) {
            0..6 => self.write_some(range),
            6 => self.discard(range),
            7 => self.zero(range, ZeroedSpace::MayUnmap),
            8 if self.random.bool() => self.zero(range, ZeroedSpace::Written),
            8 => self.zero(range, ZeroedSpace::Allocated),
            9 => self.device.assign(range).map(drop).unwrap(),
            10 if self.random.u8(..8) == 0 => self.device.flush().unwrap(),
            _ => self.check(range),
        }
    }

    /// A batch of writes next to each other, in parts of any size.
    fn write_some(&mut self, range: ByteRange) {
        let seed = self.random.u64(..);
        let bytes = pattern(range.start(), range.len(), seed);
        let persistence = match self.random.u8(..64) {
            0 => Persistence::Fua,
            _ => Persistence::Cached,
        };
        let mut requests: Vec<_> = bytes
            .chunks(self.random.usize(1..20) * 512)
            .scan(range.start(), |at, part| {
                let offset = *at;
                *at += part.len() as u64;
                Some(Request::write(offset, part, persistence))
            })
            .collect();
        self.device.submit(&mut requests);
        requests
            .into_iter()
            .for_each(|request| request.into_result().unwrap());
        self.set(range, true, |there| there.copy_from_slice(&bytes));
    }

    fn discard(&mut self, range: ByteRange) {
        self.device.discard(range).unwrap();
        self.set(range, false, |_| ());
    }

    fn zero(&mut self, range: ByteRange, space: ZeroedSpace) {
        let speed = if self.random.bool() {
            Speed::OnlyIfFast
        } else {
            Speed::Any
        };
        let zeroing = Zeroing {
            space,
            speed,
            persistence: Persistence::Cached,
        };
        match self.device.write_zeroes(range, zeroing) {
            Ok(()) => self.set(range, true, |there| there.fill(0)),
            Err(error) => {
                assert_eq!(speed, Speed::OnlyIfFast, "{error}");
                // Part of it may be zero now.
                self.set(range, false, |_| ());
            }
        }
    }

    fn check(&mut self, range: ByteRange) {
        let found = read(self.device, range.start(), range.len());
        self.assert_found(range, &found);
    }
}

/// Runs `steps` of every thread and returns the final content of the disk.
fn run(path: &Path, options: &DeviceOptions, before: &[u8], cluster: u64, seed: u64) -> Vec<u8> {
    let device = open_with(path, options);
    let owners: Vec<Owner<'_>> = thread::scope(|scope| {
        let run = |number| {
            let mut owner = Owner {
                device: &device,
                number,
                random: fastrand::Rng::with_seed(seed * 100 + number),
                bytes: before.to_vec(),
                is_known: vec![true; (SIZE / SECTOR) as usize],
                cluster,
            };
            scope.spawn(move || {
                (0..250).for_each(|_| owner.step());
                owner
            })
        };
        let threads: Vec<_> = (0..THREADS).map(run).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("no thread fails"))
            .collect()
    });
    let found = read(&device, 0, SIZE);
    for owner in &owners {
        for block in (0..SIZE / BLOCK).filter(|block| owner.owns(*block)) {
            let range = ByteRange::new(block * BLOCK, (block + 1) * BLOCK);
            owner.assert_found(range, &found[range.start() as usize..range.end() as usize]);
        }
    }
    device.flush().unwrap();
    found
}

/// Runs once per seed and verifies after each; returns the final contents of the disk.
#[track_caller]
fn judged(
    path: &Path,
    options: &DeviceOptions,
    before: Vec<u8>,
    cluster: u64,
    seeds: Range<u64>,
) -> Vec<u8> {
    seeds.fold(before, |bytes, seed| {
        let bytes = run(path, options, &bytes, cluster, seed);
        assert_checks(path);
        assert_reads(path, &bytes);
        bytes
    })
}

/// The bytes of a disk that nothing was written to.
fn zeros() -> Vec<u8> {
    vec![0; SIZE as usize]
}

#[track_caller]
fn assert_model(ground: &Ground, options: &str, cluster: u64, seed: u64, openings: u64) {
    let path = ground.qcow2("image.qcow2", options, SIZE);
    let seeds = seed * 10..seed * 10 + openings;
    judged(&path, &qcow2_options(), zeros(), cluster, seeds);
}

#[test]
fn images_of_every_mode_and_cluster_size_read_as_they_were_written() {
    require!(qemu_img());
    let sizes = [(512, "512"), (4096, "4k"), (65_536, "64k"), (2 * MIB, "2M")];
    for (number, (cluster, size)) in sizes.into_iter().enumerate() {
        let modes = ["off", "full", "metadata", "falloc"];
        // The smallest and the largest clusters differ from the others in their tables, not in
        // their space.
        let modes = if number % 3 == 0 {
            &modes[..2]
        } else {
            &modes[..]
        };
        for (more, mode) in modes.iter().enumerate() {
            let ground = Ground::new();
            let options = format!("cluster_size={size},preallocation={mode}");
            let seed = (number * 4 + more) as u64;
            println!("{options}, seed {seed}");
            assert_model(&ground, &options, cluster, seed, 1);
        }
    }
}

#[test]
fn image_past_the_page_cache_reads_as_it_was_written() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=16k", SIZE);
    let options = DeviceOptions {
        cache: HostCache::Direct,
        ..qcow2_options()
    };
    if let Err(error) = ImageDevice::open(&path, &options) {
        // The directory of the tests may be on a file system without direct I/O.
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        return;
    }
    judged(&path, &options, zeros(), 16 << 10, 600..602);
}

#[test]
fn images_of_every_version_and_refcount_width_read_as_they_were_written() {
    require!(qemu_img());
    let kinds = [
        "compat=0.10,cluster_size=4k",
        "lazy_refcounts=on,cluster_size=8k",
        "refcount_bits=1,cluster_size=4k",
        "refcount_bits=8,cluster_size=1k",
        "refcount_bits=64,cluster_size=512",
    ];
    for (seed, options) in kinds.into_iter().enumerate() {
        println!("{options}, seed {seed}");
        assert_model(&Ground::new(), options, 4096, 100 + seed as u64, 2);
    }
}

#[test]
fn image_over_a_backing_file_reads_as_it_was_written() {
    require!(qemu_img());
    for (seed, options) in [
        "cluster_size=64k",
        "cluster_size=4k",
        "compat=0.10,cluster_size=8k",
    ]
    .into_iter()
    .enumerate()
    {
        let ground = Ground::new();
        println!("{options}, seed {seed}");
        // Shorter than the disk: the disk reads as zeros beyond its end.
        let base = pattern(0, SIZE - MIB / 2 * 3, 9);
        std::fs::write(ground.path("base.raw"), &base).unwrap();
        let options = format!("{options},backing_file=base.raw,backing_fmt=raw");
        let path = ground.qcow2("image.qcow2", &options, SIZE);
        let mut bytes = base.clone();
        bytes.resize(SIZE as usize, 0);
        let seed = 200 + seed as u64 * 10;
        judged(&path, &followed(), bytes, 65_536, seed..seed + 2);
        assert_eq!(std::fs::read(ground.path("base.raw")).unwrap(), base);
    }
}

#[test]
fn image_with_a_data_file_reads_as_it_was_written() {
    require!(qemu_img());
    for (seed, raw) in ["off", "on"].into_iter().enumerate() {
        let ground = Ground::new();
        let data = ground.path("data.raw");
        let options = format!("data_file={},data_file_raw={raw}", data.display());
        let path = ground.qcow2("image.qcow2", &options, SIZE);
        let seed = 300 + seed as u64 * 10;
        judged(&path, &followed(), zeros(), 65_536, seed..seed + 2);
    }
}

#[test]
fn compressed_image_reads_as_it_was_written() {
    require!(qemu_img());
    for (seed, kind) in ["zlib", "zstd"].into_iter().enumerate() {
        let ground = Ground::new();
        let source = ground.path("source.raw");
        let mut bytes = pattern(0, SIZE, 5);
        bytes[MIB as usize..2 * MIB as usize].fill(0);
        std::fs::write(&source, &bytes).unwrap();
        let path = ground.path("image.qcow2");
        let options = format!("compression_type={kind}");
        qemu(&[
            &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &"-o", &options, &source, &path,
        ]);
        let seed = 400 + seed as u64 * 10;
        judged(&path, &qcow2_options(), bytes, 65_536, seed..seed + 2);
    }
}

#[test]
fn snapshots_keep_their_data_while_the_disk_is_written() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=4k", SIZE);
    let options = qcow2_options();
    let first = judged(&path, &options, zeros(), 4096, 500..501);
    qemu(&[&"snapshot", &"-c", &"one", &path]);
    let second = judged(&path, &options, first.clone(), 4096, 501..502);
    qemu(&[&"snapshot", &"-c", &"two", &path]);
    judged(&path, &options, second.clone(), 4096, 502..503);
    for (name, bytes) in [("one", &first), ("two", &second)] {
        qemu(&[&"snapshot", &"-a", &name, &path]);
        assert_reads(&path, bytes);
        assert_checks(&path);
    }
}
