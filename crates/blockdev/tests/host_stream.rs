//! Streams of reads and writes on files and disks, through the kernel.

use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::thread;

use extant_blockdev::{
    Device, HostAccess, HostCache, HostDevice, HostEnd, HostEngine, HostOptions, OperationKind,
    Statistics, Transfer, TransferKind, TransferStream,
};
use extant_space::{Error, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;
use extant_testkit::scratch::{DirectIo, LoopDevice};
use extant_testkit::workdir::Workdir;
use extant_testkit::{require, requires};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
const DIRECT: HostOptions = HostOptions {
    access: HostAccess::ReadWrite,
    cache: HostCache::Direct,
    engine: HostEngine::Auto,
    depth: 32,
    assign_max: 1 << 30,
    end: HostEnd::WholeBlock,
};

/// Block numbers arrive through a pipe while others are in flight, 64 at most; each is written, or
/// read and compared.
struct Blocks {
    kind: TransferKind,
    from: PipeReader,
    free: Vec<(usize, AlignedBuffer)>,
    ended: usize,
    errors: Vec<Error>,
}

impl Blocks {
    /// Runs all blocks on `device` in arrival order and returns the failures.
    fn run(kind: TransferKind, device: &dyn Device) -> Vec<Error> {
        let (from, to) = std::io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&from, true).unwrap();
        let mut blocks = Self {
            kind,
            from,
            free: (0..64)
                .map(|tag| (tag, AlignedBuffer::new(BLOCK).unwrap()))
                .collect(),
            ended: 0,
            errors: Vec::new(),
        };
        thread::scope(|scope| {
            scope.spawn(move || feed(to));
            while blocks.ended < BLOCKS as usize {
                // It returns when the device is idle, which it may be before the end.
                assert!(device.run_stream(&mut blocks));
            }
        });
        blocks.errors
    }
}

fn feed(mut to: PipeWriter) {
    for number in 0..BLOCKS {
        to.write_all(&[(number * 101 % BLOCKS) as u8]).unwrap();
        if number % 32 == 0 {
            thread::yield_now();
        }
    }
}

impl TransferStream for Blocks {
    fn next(&mut self) -> Option<Transfer> {
        let (tag, mut buffer) = self.free.pop()?;
        let mut number = [0];
        if !matches!(self.from.read(&mut number), Ok(1)) {
            self.free.push((tag, buffer));
            return None;
        }
        let [number] = number;
        if self.kind == TransferKind::Write {
            buffer.as_mut_slice().fill(number ^ 0x5a);
        }
        Some(Transfer {
            tag,
            kind: self.kind,
            offset: u64::from(number) * BLOCK as u64,
            length: BLOCK,
            memory: buffer.into(),
        })
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        self.ended += 1;
        let buffer = transfer.memory.into_own().unwrap();
        match result {
            Err(error) => self.errors.push(error),
            Ok(()) => {
                let byte = (transfer.offset / BLOCK as u64) as u8 ^ 0x5a;
                assert!(buffer.as_slice().iter().all(|found| *found == byte));
            }
        }
        self.free.push((transfer.tag, buffer));
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        Some(self.from.as_fd())
    }
}

fn file_of_blocks(path: &Path) {
    let file = File::create(path).unwrap();
    file.set_len(BLOCKS * BLOCK as u64).unwrap();
}

#[test]
fn everything_is_written_and_read_back_and_counted() {
    require!(requires::root());
    let dir = Workdir::new();
    let path = dir.path().join("a.raw");
    file_of_blocks(&path);
    let below = dir.path().join("below.raw");
    file_of_blocks(&below);
    let disk = LoopDevice::attach_with(&below, DirectIo::Off, 512);
    let ways = [
        (HostCache::Direct, HostEngine::Auto),
        (HostCache::Direct, HostEngine::Native),
        (HostCache::Direct, HostEngine::Uring),
        (HostCache::Direct, HostEngine::Threads),
        (HostCache::Buffered, HostEngine::Uring),
        (HostCache::Buffered, HostEngine::Threads),
    ];
    let paths = [&*path, disk.path()];
    for (path, (cache, engine)) in paths
        .into_iter()
        .flat_map(|path| ways.map(|way| (path, way)))
    {
        let options = HostOptions {
            cache,
            engine,
            ..DIRECT
        };
        fs::write(path, vec![0; BLOCKS as usize * BLOCK]).unwrap();
        let device = Statistics::new(HostDevice::open(path, &options).unwrap());
        assert!(Blocks::run(TransferKind::Write, &device).is_empty());
        assert!(Blocks::run(TransferKind::Read, &device).is_empty());
        let seen = device.snapshot();
        for kind in [OperationKind::Write, OperationKind::Read] {
            let seen = seen.of(kind);
            let expected = (BLOCKS, 0, BLOCKS * BLOCK as u64);
            assert_eq!((seen.count(), seen.errors, seen.bytes), expected);
        }
        device.flush().unwrap();
        let bytes = fs::read(path).unwrap();
        for (number, block) in bytes.chunks(BLOCK).enumerate() {
            assert!(block.iter().all(|byte| *byte == number as u8 ^ 0x5a));
        }
    }
}

#[test]
fn file_that_was_cut_fails_the_reads_behind_its_end_alone() {
    let dir = Workdir::new();
    let path = dir.path().join("a.raw");
    file_of_blocks(&path);
    let device = Statistics::new(HostDevice::open(&path, &DIRECT).unwrap());
    assert!(Blocks::run(TransferKind::Write, &device).is_empty());
    let left = BLOCKS / 2;
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(left * BLOCK as u64).unwrap();
    let errors = Blocks::run(TransferKind::Read, &device);
    assert_eq!(errors.len() as u64, BLOCKS - left);
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.range().unwrap().start() >= left * BLOCK as u64);
        assert!(
            error.to_string().contains(path.to_str().unwrap()),
            "{error}"
        );
    }
    assert_eq!(
        device.snapshot().of(OperationKind::Read).errors,
        BLOCKS - left
    );
}

#[test]
fn engine_that_chooses_itself_takes_no_stream_through_the_page_cache() {
    let dir = Workdir::new();
    let path = dir.path().join("a.raw");
    file_of_blocks(&path);
    let buffered = HostOptions {
        cache: HostCache::Buffered,
        ..DIRECT
    };
    let device = HostDevice::open(&path, &buffered).unwrap();
    if device.engine() == HostEngine::Threads {
        return;
    }
    let (from, mut to) = std::io::pipe().unwrap();
    to.write_all(&[0]).unwrap();
    let mut blocks = Blocks {
        kind: TransferKind::Write,
        from,
        free: vec![(0, AlignedBuffer::new(BLOCK).unwrap())],
        ended: 0,
        errors: Vec::new(),
    };
    assert!(!device.run_stream(&mut blocks));
    assert_eq!(blocks.free.len(), 1, "nothing was taken");
}
