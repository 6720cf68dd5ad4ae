//! Streams of reads and writes against plain bytes, for every kind of image, past the page cache.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use extant_blockdev::{
    Device, HostCache, Request, Transfer, TransferKind, TransferMemory, TransferStream,
};
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice};
use extant_space::{ByteRange, Error, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;
use extant_sys::shared::SharedMemory;
use extant_testkit::scratch::{Filesystem, Scratch};
use extant_testkit::{require, requires};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::support::{
    Ground, KIB, MIB, assert_checks, assert_checks_in_use, assert_reads, followed, open_with,
    pattern, qcow2_options, qemu, qemu_img, read, write,
};

const SIZE: u64 = 8 * MIB;
const TAGS: usize = 48;
const SECTOR: usize = 512;
const TRANSFER_MAX: u64 = 32 * KIB;
const MACHINE_BASE: u64 = 0x10_0000;

/// Numbers of the transfers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sizes {
    /// Blocks of 4 KiB, each of one cluster.
    Blocks,
    /// Sectors, from anywhere to anywhere.
    Any,
}

/// Random reads and writes of one part of the disk, of which no two in flight touch the same bytes.
struct Guest {
    part: ByteRange,
    sizes: Sizes,
    random: fastrand::Rng,
    /// Contents of the disk after all requests.
    bytes: Vec<u8>,
    /// No other thread changes its part.
    is_judged: bool,
    /// For each sector: whether its content is undefined after a failed write.
    is_known: Vec<bool>,
    free: Vec<(usize, AlignedBuffer)>,
    in_flight: Vec<(usize, ByteRange)>,
    most_in_flight: usize,
    /// How many are still to be begun.
    left: usize,
    errors: Vec<Error>,
    batches: usize,
    /// Memory of a machine, `TRANSFER_MAX` for each tag; every other transfer of a stream names it.
    machine: Arc<GuestMemoryMmap>,
    is_streaming: bool,
    /// Buffers of tags whose transfer names the memory of the machine.
    spare: Vec<(usize, AlignedBuffer)>,
    /// Another thread fills the memory with other bytes all the time.
    is_scribbled: bool,
}

impl Guest {
    fn new(sizes: Sizes, part: Range<u64>, bytes: Vec<u8>, seed: u64) -> Self {
        Self {
            part: ByteRange::new(part.start, part.end),
            sizes,
            is_judged: true,
            is_known: vec![true; bytes.len() / SECTOR],
            random: fastrand::Rng::with_seed(seed),
            bytes,
            free: (0..TAGS)
                .map(|tag| (tag, AlignedBuffer::new(TRANSFER_MAX as usize).unwrap()))
                .collect(),
            in_flight: Vec::new(),
            most_in_flight: 0,
            left: 0,
            errors: Vec::new(),
            batches: 0,
            machine: machine(),
            is_streaming: false,
            spare: Vec::new(),
            is_scribbled: false,
        }
    }

    /// The memory of a transfer whose data is in `buffer`.
    fn memory(&mut self, tag: usize, length: usize, buffer: AlignedBuffer) -> TransferMemory {
        if !self.is_streaming || tag.is_multiple_of(2) {
            return buffer.into();
        }
        // Half is apart from the rest.
        let (first, second) = (
            length / 2 / SECTOR * SECTOR,
            length.div_ceil(2 * SECTOR) * SECTOR,
        );
        let start = GuestAddress(MACHINE_BASE + tag as u64 * 2 * TRANSFER_MAX);
        let apart = GuestAddress(start.0 + TRANSFER_MAX);
        let shared = SharedMemory::new(self.machine.clone(), [(start, first), (apart, second)]);
        let shared = shared.expect("the machine has the memory");
        assert!(shared.is_aligned(SECTOR) && shared.remaining() == length);
        if !self.is_scribbled {
            shared.copy_from(&buffer.as_slice()[..length]);
        }
        self.spare.push((tag, buffer));
        TransferMemory::Shared(shared)
    }

    /// A buffer with the data of a transfer.
    fn buffer(&mut self, tag: usize, length: usize, memory: TransferMemory) -> AlignedBuffer {
        match memory {
            TransferMemory::Own(buffer) => buffer,
            TransferMemory::Shared(shared) => {
                let at = self.spare.iter().position(|(spare, _)| *spare == tag);
                let (_, mut buffer) = self.spare.swap_remove(at.expect("kept for it"));
                shared.copy_to(&mut buffer.as_mut_slice()[..length]);
                buffer
            }
        }
    }

    fn range(&mut self) -> ByteRange {
        let (block, most) = match self.sizes {
            Sizes::Blocks => (4 * KIB, 1),
            Sizes::Any => (SECTOR as u64, TRANSFER_MAX / SECTOR as u64),
        };
        let blocks = self.part.len() / block;
        loop {
            let start = self.random.u64(..blocks);
            let end = (start + self.random.u64(1..=most)).min(blocks);
            let at = |number: u64| self.part.start() + number * block;
            let range = ByteRange::new(at(start), at(end));
            let touches = |(_, other): &(usize, ByteRange)| other.intersection(range).is_some();
            if !self.in_flight.iter().any(touches) {
                return range;
            }
        }
    }

    /// Runs `count` transfers, by streams if the device takes them, else by batches.
    fn run(&mut self, device: &ImageDevice, count: usize) {
        self.left = count;
        while self.left > 0 {
            self.is_streaming = device.shared_memory_alignment() == Some(SECTOR);
            if !device.run_stream(self) {
                self.is_streaming = false;
                self.run_batch(device);
            }
            assert!(self.in_flight.is_empty());
        }
    }

    fn run_batch(&mut self, device: &ImageDevice) {
        self.batches += 1;
        let mut transfers: Vec<_> = (0..16).map_while(|_| self.next()).collect();
        let mut requests: Vec<_> = transfers
            .iter_mut()
            .map(|transfer| Request::new(transfer.operation()))
            .collect();
        device.submit(&mut requests);
        let results: Vec<_> = requests.into_iter().map(Request::into_result).collect();
        for (transfer, result) in transfers.into_iter().zip(results) {
            self.ended(transfer, result);
        }
    }

    /// Whatever failed did so for this reason.
    #[track_caller]
    fn assert_errors(&self, kind: ErrorKind) {
        for error in &self.errors {
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}

/// A range in bytes, and in sectors.
fn within(range: ByteRange) -> (Range<usize>, Range<usize>) {
    let (start, end) = (range.start() as usize, range.end() as usize);
    (start..end, start / SECTOR..end / SECTOR)
}

impl TransferStream for Guest {
    fn next(&mut self) -> Option<Transfer> {
        if self.left == 0 {
            return None;
        }
        let (tag, mut buffer) = self.free.pop()?;
        self.left -= 1;
        let range = self.range();
        self.in_flight.push((tag, range));
        self.most_in_flight = self.most_in_flight.max(self.in_flight.len());
        let length = range.len() as usize;
        let kind = match self.random.u8(..3) {
            0 => TransferKind::Read,
            _ => TransferKind::Write,
        };
        let data = &mut buffer.as_mut_slice()[..length];
        match kind {
            TransferKind::Read => data.fill(0xee),
            TransferKind::Write => {
                data.copy_from_slice(&pattern(range.start(), range.len(), self.random.u64(..)));
            }
        }
        Some(Transfer {
            tag,
            kind,
            offset: range.start(),
            length,
            memory: self.memory(tag, length, buffer),
        })
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        let is_it = |flight: &(usize, ByteRange)| flight.0 == transfer.tag;
        let at = self.in_flight.iter().position(is_it).expect("in flight");
        let (tag, range) = self.in_flight.swap_remove(at);
        assert_eq!(
            (transfer.offset, transfer.length as u64),
            (range.start(), range.len())
        );
        let buffer = self.buffer(tag, transfer.length, transfer.memory);
        let data = &buffer.as_slice()[..transfer.length];
        let (bytes, sectors) = within(range);
        let there = &mut self.bytes[bytes];
        let is_known = &mut self.is_known[sectors];
        match (&result, transfer.kind) {
            (Ok(()), TransferKind::Write) if self.is_scribbled => is_known.fill(false),
            (Ok(()), TransferKind::Write) => {
                there.copy_from_slice(data);
                is_known.fill(true);
            }
            (Ok(()), TransferKind::Read) if self.is_judged => {
                let sectors = there.chunks(SECTOR).zip(data.chunks(SECTOR));
                for ((expected, found), is_known) in sectors.zip(is_known) {
                    assert!(!*is_known || expected == found, "{range}");
                }
            }
            (Err(_), TransferKind::Write) => is_known.fill(false),
            (_, TransferKind::Read) => {}
        }
        if let Err(error) = result {
            // An error without a range covers its whole request.
            assert!(error.range().is_none_or(|place| place == range), "{error}");
            self.errors.push(error);
        }
        self.free.push((tag, buffer));
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn machine() -> Arc<GuestMemoryMmap> {
    let bytes = TAGS * 2 * TRANSFER_MAX as usize;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(MACHINE_BASE), bytes)]);
    Arc::new(memory.unwrap())
}

fn direct(options: DeviceOptions) -> DeviceOptions {
    let cache = HostCache::Direct;
    DeviceOptions { cache, ..options }
}

/// Runs a guest on the image and verifies it. Returns the guest.
#[track_caller]
fn judged(
    path: &Path,
    options: DeviceOptions,
    sizes: Sizes,
    before: Vec<u8>,
    (count, seed): (usize, u64),
) -> Guest {
    let device = open_with(path, &direct(options));
    let mut guest = Guest::new(sizes, 0..SIZE, before, seed);
    guest.run(&device, count);
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
    assert!(read(&device, 0, SIZE) == guest.bytes);
    device.flush().unwrap();
    drop(device);
    assert_checks(path);
    assert_reads(path, &guest.bytes);
    guest
}

fn zeros() -> Vec<u8> {
    vec![0; SIZE as usize]
}

#[test]
fn mapped_and_newly_mapped_requests_use_the_stream() {
    require!(qemu_img());
    let kinds = [
        "cluster_size=4k",
        "cluster_size=64k",
        "cluster_size=64k,preallocation=metadata",
        "cluster_size=2M,preallocation=falloc",
        "cluster_size=64k,preallocation=full",
        "compat=0.10",
        "lazy_refcounts=on",
    ];
    for (seed, options) in kinds.into_iter().enumerate() {
        println!("{options}, seed {seed}");
        let ground = Ground::new();
        let path = ground.qcow2("image.qcow2", options, SIZE);
        let run = |sizes, before, seed| judged(&path, qcow2_options(), sizes, before, (600, seed));
        let guest = run(Sizes::Blocks, zeros(), seed as u64);
        assert_eq!(guest.batches, 0);
        assert!(guest.most_in_flight > TAGS / 2, "{}", guest.most_in_flight);
        // Many of these touch several clusters, which may not be contiguous.
        run(Sizes::Any, guest.bytes, 10 + seed as u64);
    }
}

#[test]
fn image_with_a_data_file_takes_streams() {
    require!(qemu_img());
    let ground = Ground::new();
    let data = ground.path("data.raw");
    let options = format!("data_file={},data_file_raw=on", data.display());
    let path = ground.qcow2("image.qcow2", &options, SIZE);
    judged(&path, followed(), Sizes::Any, zeros(), (600, 20));
}

#[test]
fn clusters_to_be_made_go_aside_and_many_of_them_by_batches() {
    require!(qemu_img());
    let ground = Ground::new();
    let base = pattern(0, SIZE - MIB / 2 * 3, 9);
    std::fs::write(ground.path("base.raw"), &base).unwrap();
    let options = "cluster_size=16k,backing_file=base.raw,backing_fmt=raw";
    let path = ground.qcow2("image.qcow2", options, SIZE);
    let mut bytes = base;
    bytes.resize(SIZE as usize, 0);
    let guest = judged(&path, followed(), Sizes::Any, bytes, (800, 30));
    assert!(guest.batches > 0);
    // By and by all clusters are its own.
    let guest = judged(&path, followed(), Sizes::Any, guest.bytes, (8000, 31));
    let again = judged(&path, followed(), Sizes::Blocks, guest.bytes, (800, 32));
    assert_eq!(again.batches, 0);
    qemu(&[&"snapshot", &"-c", &"one", &path]);
    let shared = judged(
        &path,
        followed(),
        Sizes::Any,
        again.bytes.clone(),
        (800, 33),
    );
    assert!(shared.batches > 0);
    qemu(&[&"snapshot", &"-a", &"one", &path]);
    assert_reads(&path, &again.bytes);
}

#[test]
fn compressed_clusters_are_read_and_replaced() {
    require!(qemu_img());
    let ground = Ground::new();
    let source = ground.path("source.raw");
    let bytes = pattern(0, SIZE, 5);
    std::fs::write(&source, &bytes).unwrap();
    let path = ground.path("image.qcow2");
    qemu(&[
        &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &source, &path,
    ]);
    judged(&path, qcow2_options(), Sizes::Any, bytes, (800, 40));
}

#[test]
fn memory_that_changes_during_a_write_changes_nothing_but_the_written_bytes() {
    const SCRIBBLES: [u8; 2] = [0xa5, 0x5a];
    require!(qemu_img());
    let ground = Ground::new();
    let source = ground.path("source.raw");
    // Clusters that are mapped, compressed, and zeros.
    let mut before = pattern(0, SIZE, 7);
    before[SIZE as usize / 2..].fill(0);
    std::fs::write(&source, &before).unwrap();
    let path = ground.path("image.qcow2");
    qemu(&[
        &"convert", &"-c", &"-f", &"raw", &"-O", &"qcow2", &source, &path,
    ]);
    let device = open_with(&path, &direct(qcow2_options()));
    assert_eq!(device.shared_memory_alignment(), Some(SECTOR));
    let mut guest = Guest::new(Sizes::Any, 0..SIZE, before, 45);
    (guest.is_judged, guest.is_scribbled) = (false, true);
    let is_over = AtomicBool::new(false);
    let machine = guest.machine.clone();
    thread::scope(|scope| {
        scope.spawn(|| {
            let lines = SCRIBBLES.map(|byte| vec![byte; TAGS * 2 * TRANSFER_MAX as usize]);
            for line in lines.iter().cycle() {
                machine
                    .write_slice(line, GuestAddress(MACHINE_BASE))
                    .unwrap();
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let _end = End(&is_over);
        guest.run(&device, 1500);
    });
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
    let after = read(&device, 0, SIZE);
    let sectors = after.chunks(SECTOR).zip(guest.bytes.chunks(SECTOR));
    let mut scribbled = 0;
    for ((found, before), is_known) in sectors.zip(&guest.is_known) {
        let is_scribble = found.iter().all(|byte| SCRIBBLES.contains(byte));
        assert!(!is_known || found == before);
        scribbled += usize::from(!is_known && is_scribble);
    }
    assert!(scribbled > 100, "{scribbled}");
    device.flush().unwrap();
    drop(device);
    assert_checks(&path);
    assert_reads(&path, &after);
}

/// Has the other threads end.
struct End<'f>(&'f AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn discarded_clusters_are_reused_without_writers_in_flight() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "cluster_size=16k", SIZE);
    let device = open_with(&path, &direct(qcow2_options()));
    let quarters: Vec<_> = ByteRange::new(0, SIZE).chunks(SIZE / 4).collect();
    let is_over = AtomicBool::new(false);
    let guest = thread::scope(|scope| {
        // Writes to clusters that are discarded at the same time; they must not reach other
        // clusters.
        scope.spawn(|| {
            let mut guest = Guest::new(Sizes::Blocks, SIZE / 4..SIZE / 2, zeros(), 51);
            guest.is_judged = false;
            while !is_over.load(Ordering::Relaxed) {
                guest.run(&device, 400);
            }
            assert!(guest.errors.is_empty(), "{:?}", guest.errors);
        });
        scope.spawn(|| {
            let data = vec![0x77; SIZE as usize / 4];
            while !is_over.load(Ordering::Relaxed) {
                write(&device, quarters[2].start(), &data);
                device.flush().unwrap();
                for quarter in &quarters[1..3] {
                    device.discard(*quarter).unwrap();
                    device.flush().unwrap();
                }
            }
        });
        // Also when this one fails.
        let _end = End(&is_over);
        let mut guest = Guest::new(Sizes::Blocks, 0..SIZE / 4, zeros(), 50);
        for _ in 0..40 {
            guest.run(&device, 400);
            assert!(read(&device, 0, SIZE / 4) == guest.bytes[..SIZE as usize / 4]);
            device.discard(quarters[0]).unwrap();
            guest.bytes.fill(0);
        }
        guest.run(&device, 400);
        guest
    });
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
    assert_eq!(guest.batches, 0);
    device.discard(ByteRange::new(SIZE / 4, SIZE)).unwrap();
    device.flush().unwrap();
    drop(device);
    assert_checks(&path);
    assert_reads(&path, &guest.bytes);
}

#[test]
fn no_space_fails_the_request_that_needs_it() {
    require!(requires::root(), qemu_img());
    let scratch = Scratch::new(Filesystem::Ext4, 24 * MIB);
    let path = scratch.path().join("a.qcow2");
    qemu(&[&"create", &"-q", &"-f", &"qcow2", &path, &"64M"]);
    let device = open_with(&path, &direct(qcow2_options()));
    let mut guest = Guest::new(Sizes::Any, 0..64 * MIB, vec![0; 64 << 20], 60);
    guest.run(&device, 8000);
    assert!(!guest.errors.is_empty());
    guest.assert_errors(ErrorKind::NoSpace);
    assert_checks_in_use(&path);
    // Space is freed, and writing continues.
    device.discard(ByteRange::new(0, 64 * MIB)).unwrap();
    device.flush().unwrap();
    device.flush().unwrap();
    guest.bytes.fill(0);
    guest.is_known.fill(true);
    guest.errors.clear();
    guest.part = ByteRange::new(0, 4 * MIB);
    guest.run(&device, 500);
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
    assert!(read(&device, 0, 4 * MIB) == guest.bytes[..4 << 20]);
    device.flush().unwrap();
    drop(device);
    assert_checks(&path);
}

#[test]
fn image_for_reading_takes_no_writes_and_reads_past_the_end_of_its_file() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "preallocation=metadata", SIZE);
    let bytes = pattern(0, SIZE, 3);
    let image = open_with(&path, &qcow2_options());
    write(&image, 0, &bytes);
    image.flush().unwrap();
    drop(image);
    // Inside the last cluster of the guest.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 32 * KIB).unwrap();
    let options = DeviceOptions {
        access: ImageAccess::ReadOnly,
        ..qcow2_options()
    };
    let device = open_with(&path, &direct(options));
    let mut expected = read(&device, 0, SIZE);
    expected.truncate((SIZE - 32 * KIB) as usize);
    assert!(expected == bytes[..expected.len()]);
    expected.resize(SIZE as usize, 0);
    let mut guest = Guest::new(Sizes::Any, 0..SIZE, expected, 70);
    // Writes that were refused have changed nothing.
    guest.run(&device, 600);
    assert!(read(&device, 0, SIZE) == guest.bytes);
    assert!(guest.errors.len() > 100);
    guest.assert_errors(ErrorKind::ReadOnly);
}

#[test]
fn transfers_past_the_end_of_the_disk_are_refused() {
    require!(qemu_img());
    let ground = Ground::new();
    let path = ground.qcow2("image.qcow2", "", SIZE);
    let device = open_with(&path, &direct(qcow2_options()));
    let mut guest = Guest::new(Sizes::Any, SIZE..2 * SIZE, vec![0; 2 * SIZE as usize], 80);
    guest.run(&device, 20);
    assert_eq!(guest.errors.len(), 20);
    guest.assert_errors(ErrorKind::InvalidArgument);
}
