//! A reference model: the same random changes to a device and to bytes in memory.

use std::ops::ControlFlow;

use extant_blockdev::{
    Device, Operation, Persistence, RangeStatus, Request, Speed, ZeroedSpace, Zeroing,
};
use extant_space::{ByteRange, ErrorKind};
use fastrand::Rng;

/// Most bytes of one change.
const CHANGE_BYTES_MAX: u64 = 3 << 20;

pub struct Model {
    rng: Rng,
    block: u64,
    bytes: Vec<u8>,
}

impl Model {
    /// For a device that reads as zeros.
    pub fn new(device: &dyn Device, seed: u64) -> Self {
        let geometry = device.geometry();
        Self {
            rng: Rng::with_seed(seed),
            block: geometry.logical_block.into(),
            bytes: vec![0; geometry.size as usize],
        }
    }

    fn range(&mut self, length_max: u64) -> ByteRange {
        let blocks = self.bytes.len() as u64 / self.block;
        let length = self.rng.u64(1..=(length_max / self.block).max(1));
        let start = self.rng.u64(0..blocks);
        let end = (start + length).min(blocks);
        ByteRange::new(start * self.block, end * self.block)
    }

    fn bytes_mut(&mut self, range: ByteRange) -> &mut [u8] {
        &mut self.bytes[range.start() as usize..range.end() as usize]
    }

    /// Makes `count` changes, and compares what is read between them.
    pub fn run(&mut self, device: &dyn Device, count: usize) {
        for _ in 0..count {
            match self.rng.u32(0..10) {
                0..4 => self.write_batch(device),
                4..6 => self.write_zeroes(device),
                6 => self.discard(device),
                7 => device.flush().unwrap(),
                _ => {
                    let range = self.range(CHANGE_BYTES_MAX);
                    self.compare(device, range);
                }
            }
        }
    }

    /// Several writes of all sizes that do not overlap, in one batch.
    fn write_batch(&mut self, device: &dyn Device) {
        let length_max = if self.rng.bool() {
            CHANGE_BYTES_MAX
        } else {
            16 << 10
        };
        let mut ranges: Vec<ByteRange> = Vec::new();
        for _ in 0..self.rng.usize(1..40) {
            let range = self.range(length_max);
            let overlaps = |other: &ByteRange| other.intersection(range).is_some();
            if !ranges.iter().any(overlaps) {
                ranges.push(range);
            }
        }
        let data: Vec<Vec<u8>> = ranges
            .iter()
            .map(|range| {
                let mut data = vec![0; range.len() as usize];
                self.rng.fill(&mut data);
                data
            })
            .collect();
        let persistence = if self.rng.bool() {
            Persistence::Fua
        } else {
            Persistence::Cached
        };
        let mut requests: Vec<_> = ranges
            .iter()
            .zip(&data)
            .map(|(range, data)| Request::write(range.start(), data, persistence))
            .collect();
        requests.push(Request::new(Operation::Flush));
        device.submit(&mut requests);
        for request in requests {
            request.into_result().unwrap();
        }
        for (range, data) in ranges.into_iter().zip(data) {
            self.bytes_mut(range).copy_from_slice(&data);
        }
    }

    fn write_zeroes(&mut self, device: &dyn Device) {
        let range = self.range(CHANGE_BYTES_MAX);
        let spaces = [
            ZeroedSpace::MayUnmap,
            ZeroedSpace::Allocated,
            ZeroedSpace::Written,
        ];
        let zeroing = Zeroing {
            space: spaces[self.rng.usize(0..3)],
            speed: if self.rng.bool() {
                Speed::Any
            } else {
                Speed::OnlyIfFast
            },
            persistence: if self.rng.bool() {
                Persistence::Cached
            } else {
                Persistence::Fua
            },
        };
        match device.write_zeroes(range, zeroing) {
            Ok(()) => self.bytes_mut(range).fill(0),
            Err(error) => {
                assert_eq!(zeroing.speed, Speed::OnlyIfFast, "{error}");
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            }
        }
    }

    /// A discard leaves undefined contents, so that data follows.
    fn discard(&mut self, device: &dyn Device) {
        let range = self.range(CHANGE_BYTES_MAX);
        device.discard(range).unwrap();
        let mut data = vec![0; range.len() as usize];
        self.rng.fill(&mut data);
        device
            .write_at(&data, range.start(), Persistence::Cached)
            .unwrap();
        self.bytes_mut(range).copy_from_slice(&data);
    }

    /// Reads in parts that are in flight together.
    pub fn compare(&mut self, device: &dyn Device, range: ByteRange) {
        let mut read = vec![0xa5; range.len() as usize];
        let part = (16_u64 << 10).next_multiple_of(self.block);
        let mut requests: Vec<_> = read
            .chunks_mut(part as usize)
            .zip((range.start()..).step_by(part as usize))
            .map(|(part, offset)| Request::read(offset, part))
            .collect();
        device.submit(&mut requests);
        for request in requests {
            request.into_result().unwrap();
        }
        assert!(read == self.bytes_mut(range), "other data in {range}");
    }

    /// Compares everything, and the status with the data: what is said to be zero is.
    pub fn check(&mut self, device: &dyn Device) {
        let all = device.geometry().range();
        self.compare(device, all);
        let mut at = 0;
        device
            .status(all, &mut |range, status| {
                assert_eq!(range.start(), at, "the status has a gap");
                at = range.end();
                let is_zero = self.bytes_mut(range).iter().all(|byte| *byte == 0);
                assert!(status == RangeStatus::Data || is_zero, "{status:?} {range}");
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(at, all.end(), "the status ends early");
    }
}
