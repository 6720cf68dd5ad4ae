//! A sparse device in memory, like the kernel's null_blk with `memory_backed`.
//!
//! Model: pages of 4 KiB that are a hole, have space (and read as zeros), or hold data. Holes cost
//! no memory and assigned space some 30 bytes per 256 KiB, so that a device may be larger than the
//! machine; a capacity limit simulates a thin device that runs full.
//!
//! There is no cache: a completed request is durable. [`simulation`](crate::simulation) provides
//! power cuts and their losses, based on
//! [`MemoryDevice::snapshot`]: copies share pages until one side writes, and taking one has a
//! constant cost.

mod file;
mod region;
mod shard;

use std::fmt;
use std::ops::ControlFlow;

use extant_space::{ByteRange, ByteSize, LayerRange, LayerVisitor, Result};

use crate::runs::Runs;
use crate::split::submit_within;
use crate::{
    Device, Features, Geometry, Limits, Operation, RangeLimit, RangeStatus, Request, ZeroedSpace,
};
use region::{PAGE, REGION};
use shard::{Change, Shards};

/// A scan of a device advances in steps of this size, so that an early break is cheap.
const WINDOW: u64 = 16 << 30;

/// Options of a memory device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Bytes that can be addressed; a multiple of `logical_block`.
    pub size: u64,
    /// A power of two.
    pub logical_block: u32,
    /// Bytes that can have space at a time, in whole pages of 4 KiB; requests that would need more
    /// fail with `NoSpace`. `None`: as many as there are.
    pub capacity: Option<u64>,
}

impl MemoryOptions {
    /// `size` bytes in logical blocks of 512 bytes, without a limit on capacity.
    pub fn new(size: u64) -> Self {
        Self {
            size,
            logical_block: 512,
            capacity: None,
        }
    }
}

/// A block device in memory.
///
/// A request that fails with `NoSpace` may have been done in part.
pub struct MemoryDevice {
    options: MemoryOptions,
    geometry: Geometry,
    shards: Shards,
}

impl MemoryDevice {
    /// A hole of `size` bytes, a multiple of 512.
    ///
    /// # Panics
    /// When the size is no multiple of 512.
    pub fn new(size: u64) -> Self {
        Self::with_options(MemoryOptions::new(size))
    }

    /// A hole.
    ///
    /// # Panics
    /// When the logical block is no power of two, or the size no multiple of it.
    pub fn with_options(options: MemoryOptions) -> Self {
        let shards = Shards::new(options.capacity);
        Self::from_shards(options, shards)
    }

    /// A device that holds `bytes` and is as long.
    ///
    /// # Panics
    /// When their number is no multiple of 512.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let device = Self::new(bytes.len() as u64);
        for (at, data) in bytes.chunks(PAGE).enumerate() {
            // Faster than comparing each byte.
            if *data != [0; PAGE][..data.len()] {
                let written = device.shards.write((at * PAGE) as u64, data);
                written.expect("a device without a limit has space");
            }
        }
        device
    }

    fn from_shards(options: MemoryOptions, shards: Shards) -> Self {
        let block = options.logical_block;
        assert!(block.is_power_of_two(), "logical block of {block} bytes");
        assert!(
            options.size.is_multiple_of(u64::from(block)),
            "size of {} bytes in blocks of {block}",
            options.size
        );
        let pages = RangeLimit {
            bytes: u64::MAX,
            granularity: PAGE as u64,
        };
        let geometry = Geometry {
            size: options.size,
            logical_block: block,
            physical_block: block.max(PAGE as u32),
            limits: Limits {
                discard: pages,
                assign: pages,
                ..Limits::NONE
            },
            features: Features::FUA
                | Features::DISCARD
                | Features::WRITE_ZEROES
                | Features::WRITE_ZEROES_UNMAP
                | Features::WRITE_ZEROES_ALLOCATE
                | Features::ASSIGN
                | Features::STATUS
                | Features::EXTENTS,
        };
        Self {
            options,
            geometry,
            shards,
        }
    }

    /// An independent device with the contents of this one at one point in time.
    pub fn snapshot(&self) -> Self {
        let shards = self.shards.snapshot(self.options.capacity);
        Self::from_shards(self.options.clone(), shards)
    }

    /// As [`snapshot`](Self::snapshot), without the limit on capacity.
    pub fn snapshot_unlimited(&self) -> Self {
        let options = MemoryOptions {
            capacity: None,
            ..self.options.clone()
        };
        Self::from_shards(options, self.shards.snapshot(None))
    }

    /// Takes the contents of `from`, atomically for all readers. A limit on capacity is kept, even
    /// if the contents need more.
    ///
    /// # Panics
    /// When the sizes differ.
    pub fn restore(&self, from: &Self) {
        assert_eq!(self.geometry.size, from.geometry.size, "sizes differ");
        self.shards.restore(&from.shards);
    }

    /// Bytes that have space, in whole pages; while others change them, those of no single point in
    /// time.
    pub fn allocated(&self) -> u64 {
        self.shards.allocated() * PAGE as u64
    }

    /// Options with which the device was made.
    pub fn options(&self) -> &MemoryOptions {
        &self.options
    }

    /// The first byte that reads differently on `other`; shared pages are skipped. For tests.
    pub fn first_difference(&self, other: &Self) -> Option<u64> {
        self.shards.first_difference(&other.shards)
    }

    /// All bytes, zeros included.
    pub fn to_vec(&self) -> Vec<u8> {
        let length = usize::try_from(self.geometry.size).expect("a device that fits the memory");
        let mut bytes = vec![0; length];
        self.shards.read(0, &mut bytes);
        bytes
    }

    /// Runs one operation that was admitted.
    pub(crate) fn execute(&self, operation: &mut Operation<'_>) -> Result<()> {
        match operation {
            Operation::Read { offset, into } => {
                let mut at = *offset;
                for part in into {
                    self.shards.read(at, part);
                    at += part.len() as u64;
                }
                Ok(())
            }
            Operation::Write { offset, from, .. } => {
                let mut at = *offset;
                for part in from {
                    self.shards.write(at, part)?;
                    at += part.len() as u64;
                }
                Ok(())
            }
            Operation::Flush => Ok(()),
            Operation::Discard(range) => {
                self.shards.punch(*range);
                Ok(())
            }
            Operation::WriteZeroes(range, zeroing) => match zeroing.space {
                ZeroedSpace::MayUnmap => {
                    self.shards.punch(*range);
                    Ok(())
                }
                ZeroedSpace::Allocated => self.shards.change(*range, Change::ZeroAllocated),
                ZeroedSpace::Written => self.shards.change(*range, Change::ZeroWritten),
            },
            Operation::Assign(range) => self.shards.change(*range, Change::Assign),
        }
    }
}

impl Device for MemoryDevice {
    fn geometry(&self) -> Geometry {
        self.geometry.clone()
    }

    fn submit(&self, requests: &mut [Request<'_>]) {
        submit_within(&self.geometry, requests, |requests| {
            for request in requests {
                let result = self.execute(&mut request.operation);
                request.complete(result);
            }
        });
    }

    fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.geometry.admit_status(range)?;
        let mut runs = Runs::new(visit);
        match self.status_runs(range, &mut runs) {
            ControlFlow::Continue(()) => runs.finish(),
            ControlFlow::Break(()) => {}
        }
        Ok(())
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        self.extents(at.range, &mut |extent| {
            flow = visit(&at.extent("memory", extent));
            flow
        })?;
        Ok(flow)
    }
}

impl MemoryDevice {
    fn status_runs(&self, range: ByteRange, runs: &mut Runs<'_>) -> ControlFlow<()> {
        for window in range.chunks(WINDOW) {
            let mut at = window.start();
            for number in self.shards.regions_in(window) {
                let allocation = self.shards.allocation(number);
                for page in 0..REGION / PAGE {
                    let start = number * REGION as u64 + (page * PAGE) as u64;
                    let page_range = ByteRange::new(start, start + PAGE as u64);
                    let Some(part) = page_range.intersection(window) else {
                        continue;
                    };
                    let bit = 1 << page;
                    let status = match () {
                        () if allocation.written & bit != 0 => RangeStatus::Data,
                        () if allocation.allocated & bit != 0 => RangeStatus::Zero,
                        () => continue,
                    };
                    runs.push(ByteRange::new(at, part.start()), RangeStatus::Hole)?;
                    runs.push(part, status)?;
                    at = part.end();
                }
            }
            runs.push(ByteRange::new(at, window.end()), RangeStatus::Hole)?;
        }
        ControlFlow::Continue(())
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, allocated) = (ByteSize(self.geometry.size), ByteSize(self.allocated()));
        write!(f, "MemoryDevice({size}, {allocated} allocated)")
    }
}
