//! The device beside a model in memory, and beside QEMU's driver and `rbd export`.

use std::fs;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use extant_blockdev::{
    Device, Operation, Persistence, RangeStatus, Request, Transfer, TransferKind, TransferStream,
    Zeroing,
};
use extant_rbd::{ImageFeatures, ImageLayout, RbdAccess, RbdDevice};
use extant_space::{ByteRange, ErrorKind, Result};
use extant_sys::buffer::AlignedBuffer;
use extant_testkit::ceph::Ceph;
use extant_testkit::command;
use extant_testkit::require;

const MIB: u64 = 1 << 20;
const BYTES: u64 = 24 * MIB;

/// Random requests on a device leave the bytes that they leave in memory.
fn exercise(device: &RbdDevice, model: &mut [u8], random: &mut fastrand::Rng, rounds: usize) {
    for _ in 0..rounds {
        // Disjoint parts, since a batch has no order.
        let part = BYTES / 4;
        let mut buffers: Vec<Vec<u8>> = Vec::new();
        let mut ranges = Vec::new();
        for slot in 0..4 {
            let blocks = part / 512;
            let first = random.u64(..blocks - 1);
            let count = random.u64(1..=(blocks - first).min(6 * MIB / 512));
            let start = slot * part + first * 512;
            ranges.push(ByteRange::new(start, start + count * 512));
            buffers.push(vec![random.u8(..); (count * 512) as usize]);
        }
        let kinds: Vec<u8> = (0..4).map(|_| random.u8(..5)).collect();
        let mut requests = Vec::new();
        for ((range, buffer), kind) in ranges.iter().zip(&mut buffers).zip(&kinds) {
            let whole = &mut model[range.start() as usize..range.end() as usize];
            requests.push(match kind {
                0 => Request::read(range.start(), buffer),
                1 => {
                    whole.fill(0);
                    Request::new(Operation::WriteZeroes(*range, Zeroing::ANY))
                }
                2 => {
                    whole.fill(0);
                    Request::new(Operation::WriteZeroes(*range, Zeroing::WRITTEN))
                }
                3 => {
                    whole.copy_from_slice(buffer);
                    Request::write(range.start(), buffer, Persistence::Fua)
                }
                _ => {
                    whole.copy_from_slice(buffer);
                    Request::write(range.start(), buffer, Persistence::Cached)
                }
            });
        }
        device.submit(&mut requests);
        for request in requests {
            request.into_result().unwrap();
        }
        for ((range, buffer), kind) in ranges.iter().zip(&buffers).zip(&kinds) {
            if *kind == 0 {
                let expected = &model[range.start() as usize..range.end() as usize];
                assert!(buffer == expected, "read of {range}");
            }
        }
    }
}

#[test]
fn random_batches_leave_what_they_leave_in_memory() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let striped = ImageLayout {
        object_bytes: MIB,
        striping: Some((128 << 10, 3)),
        features: ImageFeatures::USUAL | ImageFeatures::STRIPING,
        data_pool: None,
    };
    let plain = ImageLayout {
        features: ImageFeatures::LAYERING,
        ..ImageLayout::default()
    };
    for (image, layout) in [
        ("usual", ImageLayout::default()),
        ("striped", striped),
        ("plain", plain),
    ] {
        let name = crate::image(ceph, image, BYTES, &layout);
        let mut model = vec![0; BYTES as usize];
        {
            let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
            exercise(&device, &mut model, &mut random, 30);
            device.flush().unwrap();
            let mut seen = vec![1; BYTES as usize];
            device.read_at(&mut seen, 0).unwrap();
            assert!(seen == model, "{image}, seed {seed}");
        }
        let exported = ceph.work().path().join(image);
        ceph.ask_rbd(&["export", image, exported.to_str().unwrap()]);
        assert!(
            fs::read(&exported).unwrap() == model,
            "{image}, seed {seed}"
        );
        let mut compare = command::tool("qemu-img");
        compare.args(["compare", "-f", "raw", "-F", "raw"]);
        command::must(compare.arg(&exported).arg(name.to_string()));
    }
}

#[test]
fn status_is_that_of_whole_objects_and_zeros_may_become_holes() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "status", BYTES, &ImageLayout::default());
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    let status = || {
        let mut found = Vec::new();
        device
            .status(ByteRange::new(MIB, BYTES), &mut |range, status| {
                found.push((range.start() / MIB, range.end() / MIB, status));
                ControlFlow::Continue(())
            })
            .unwrap();
        found
    };
    assert_eq!(status(), [(1, 24, RangeStatus::Hole)]);
    device
        .write_at(&[1; 512], 9 * MIB, Persistence::Fua)
        .unwrap();
    let one = [
        (1, 8, RangeStatus::Hole),
        (8, 12, RangeStatus::Data),
        (12, 24, RangeStatus::Hole),
    ];
    assert_eq!(status(), one);
    device
        .write_zeroes(ByteRange::new(0, 4 * MIB), Zeroing::WRITTEN)
        .unwrap();
    device.flush().unwrap();
    assert_eq!(status()[0], (1, 4, RangeStatus::Data));
    device
        .write_zeroes(ByteRange::new(0, BYTES), Zeroing::ANY)
        .unwrap();
    device.flush().unwrap();
    assert_eq!(status(), [(1, 24, RangeStatus::Hole)]);
    let refused = device
        .run(Operation::Assign(ByteRange::new(0, MIB)))
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

#[test]
fn image_grows_and_its_new_part_reads_as_zeros() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "growing", MIB, &ImageLayout::default());
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    device.grow(3 * MIB).unwrap();
    assert_eq!(device.geometry().size, 3 * MIB);
    let mut seen = [1; 512];
    device.read_at(&mut seen, 2 * MIB).unwrap();
    assert_eq!(seen, [0; 512]);
    device.grow(MIB).unwrap();
    assert_eq!(device.refresh().unwrap(), 3 * MIB);
}

/// Writes every block of an image, then reads it.
struct Blocks {
    kind: TransferKind,
    buffers: Vec<(usize, AlignedBuffer)>,
    next: u64,
    blocks: u64,
    most_in_flight: usize,
    in_flight: usize,
}

const BLOCK: u64 = 64 << 10;
const TAGS: usize = 64;

impl Blocks {
    fn new(kind: TransferKind, blocks: u64) -> Self {
        let buffers = (0..TAGS).map(|tag| (tag, AlignedBuffer::new(BLOCK as usize).unwrap()));
        Self {
            kind,
            buffers: buffers.collect(),
            next: 0,
            blocks,
            most_in_flight: 0,
            in_flight: 0,
        }
    }

    fn byte(offset: u64) -> u8 {
        (offset / BLOCK % 251) as u8 + 1
    }
}

impl TransferStream for Blocks {
    fn next(&mut self) -> Option<Transfer> {
        if self.next == self.blocks {
            return None;
        }
        let (tag, mut buffer) = self.buffers.pop()?;
        let offset = self.next * BLOCK;
        self.next += 1;
        if self.kind == TransferKind::Write {
            buffer.as_mut_slice().fill(Self::byte(offset));
        }
        self.in_flight += 1;
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
        let kind = self.kind;
        Some(Transfer {
            tag,
            kind,
            offset,
            length: BLOCK as usize,
            memory: buffer.into(),
        })
    }

    fn ended(&mut self, transfer: Transfer, result: Result<()>) {
        result.unwrap();
        self.in_flight -= 1;
        let expected = Self::byte(transfer.offset);
        let buffer = transfer.memory.into_own().unwrap();
        let bytes = &buffer.as_slice()[..transfer.length];
        assert!(
            bytes.iter().all(|&byte| byte == expected),
            "{}",
            transfer.offset
        );
        self.buffers.push((transfer.tag, buffer));
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn stream_keeps_all_its_transfers_in_flight() {
    require!(Ceph::requirement());
    let ceph = Ceph::shared();
    let name = crate::image(ceph, "streamed", BYTES, &ImageLayout::default());
    let device = RbdDevice::open(&name, RbdAccess::ReadWrite).unwrap();
    for kind in [TransferKind::Write, TransferKind::Read] {
        let mut blocks = Blocks::new(kind, BYTES / BLOCK);
        assert!(device.run_stream(&mut blocks));
        assert_eq!(blocks.next, BYTES / BLOCK);
        assert_eq!(blocks.in_flight, 0);
        assert!(blocks.most_in_flight > 8, "{}", blocks.most_in_flight);
    }
}
