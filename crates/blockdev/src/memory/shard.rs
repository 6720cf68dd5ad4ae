//! The pages of a memory device, spread over shards.
//!
//! A region belongs to one shard, found by hashing its number, so that threads in different ranges
//! rarely contend. The map of a shard is shared with snapshots until either side writes to it.
//!
//! Lock order: one shard at a time, but for a snapshot and its reverse, which take all of them in
//! order of their index.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use extant_space::{ByteRange, Error, ErrorKind, Result};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::region::{Allocation, PAGE, REGION, Region};

const SHARDS: usize = 128;
/// The golden ratio, as a fraction of 64 bits: neighbours land far apart.
const HASH: u64 = 0x9E37_79B9_7F4A_7C15;

type Regions = BTreeMap<u64, Region>;

#[derive(Clone, Default)]
struct Shard {
    regions: Arc<Regions>,
    /// Pages that have space, in all regions.
    allocated: u64,
}

pub(super) struct Shards {
    shards: Box<[CachePadded<RwLock<Shard>>]>,
    capacity: Option<Capacity>,
}

/// A limit on the pages of all shards. Used only when memory is allocated or freed.
struct Capacity {
    pages_max: u64,
    pages: AtomicU64,
}

/// Operation that allocates a range.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    Write(&'a [u8]),
    Assign,
    ZeroAllocated,
    ZeroWritten,
}

impl Capacity {
    fn take(&self, pages: u32, range: ByteRange) -> Result<()> {
        let fits = |used: u64| {
            let used = used + u64::from(pages);
            (used <= self.pages_max).then_some(used)
        };
        match self
            .pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(ErrorKind::NoSpace).in_range(range)),
        }
    }
}

impl Shards {
    pub(super) fn new(capacity_bytes: Option<u64>) -> Self {
        Self::from_shards((0..SHARDS).map(|_| Shard::default()), capacity_bytes)
    }

    fn from_shards(shards: impl Iterator<Item = Shard>, capacity_bytes: Option<u64>) -> Self {
        let mut allocated = 0;
        let shards = shards
            .inspect(|shard| allocated += shard.allocated)
            .map(|shard| CachePadded::new(RwLock::new(shard)))
            .collect();
        let capacity = capacity_bytes.map(|bytes| Capacity {
            pages_max: bytes / PAGE as u64,
            pages: AtomicU64::new(allocated),
        });
        Self { shards, capacity }
    }

    pub(super) fn read(&self, offset: u64, into: &mut [u8]) {
        let mut rest = into;
        for piece in pieces(offset, rest.len()) {
            let (now, later) = rest.split_at_mut(piece.len() as usize);
            let number = piece.start() / REGION as u64;
            match self.read_shard(number).regions.get(&number) {
                Some(region) => region.read(inside(piece), now),
                None => now.fill(0),
            }
            rest = later;
        }
    }

    pub(super) fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut rest = from;
        for piece in pieces(offset, from.len()) {
            let (now, later) = rest.split_at(piece.len() as usize);
            self.change_piece(piece, Change::Write(now))?;
            rest = later;
        }
        Ok(())
    }

    /// Applies `change`, which carries no data, to every region of `range`.
    pub(super) fn change(&self, range: ByteRange, change: Change<'_>) -> Result<()> {
        range
            .chunks(REGION as u64)
            .try_for_each(|piece| self.change_piece(piece, change))
    }

    /// `piece` is in one region.
    fn change_piece(&self, piece: ByteRange, change: Change<'_>) -> Result<()> {
        let number = piece.start() / REGION as u64;
        let (at, length) = (inside(piece), piece.len() as usize);
        let mut shard = self.write_shard(number);
        let shard = &mut *shard;
        let missing = match shard.regions.get(&number) {
            Some(region) => region.missing(at, length),
            None => Region::default().missing(at, length),
        };
        if missing == 0 && matches!(change, Change::Assign) {
            return Ok(());
        }
        if let Some(capacity) = &self.capacity
            && missing > 0
        {
            capacity.take(missing, piece)?;
        }
        shard.allocated += u64::from(missing);
        let regions = Arc::make_mut(&mut shard.regions);
        let region = regions.entry(number).or_default();
        match change {
            Change::Write(data) => region.write(at, data),
            Change::Assign => region.assign(at, length),
            Change::ZeroAllocated => region.zero_allocated(at, length),
            Change::ZeroWritten => region.zero_written(at, length),
        }
        Ok(())
    }

    /// Makes whole pages of `range` holes, and zeros of the parts of pages at its ends.
    pub(super) fn punch(&self, range: ByteRange) {
        for number in self.regions_in(range) {
            let start = number * REGION as u64;
            let region = ByteRange::new(start, start + REGION as u64);
            let piece = region.intersection(range).expect("a region of the range");
            let mut shard = self.write_shard(number);
            let shard = &mut *shard;
            let regions = Arc::make_mut(&mut shard.regions);
            // Another thread may have punched it meanwhile.
            let Some(region) = regions.get_mut(&number) else {
                continue;
            };
            let freed = u64::from(region.punch(inside(piece), piece.len() as usize));
            if region.is_hole() {
                regions.remove(&number);
            }
            shard.allocated -= freed;
            if let Some(capacity) = &self.capacity {
                capacity.pages.fetch_sub(freed, Ordering::Relaxed);
            }
        }
    }

    /// The regions of `range` that exist, by number, in order.
    pub(super) fn regions_in(&self, range: ByteRange) -> Vec<u64> {
        if range.is_empty() {
            return Vec::new();
        }
        let numbers = range.start() / REGION as u64..=(range.end() - 1) / REGION as u64;
        if numbers.end() - numbers.start() < SHARDS as u64 {
            return numbers
                .filter(|number| self.read_shard(*number).regions.contains_key(number))
                .collect();
        }
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = read(shard);
            found.extend(
                shard
                    .regions
                    .range(numbers.clone())
                    .map(|(number, _)| number),
            );
        }
        found.sort_unstable();
        found
    }

    /// Allocated part of region `number`.
    pub(super) fn allocation(&self, number: u64) -> Allocation {
        let shard = self.read_shard(number);
        let region = shard.regions.get(&number);
        region.map(Region::allocation).unwrap_or_default()
    }

    /// A copy of region `number`, which shares its pages.
    pub(super) fn region(&self, number: u64) -> Region {
        let shard = self.read_shard(number);
        shard.regions.get(&number).cloned().unwrap_or_default()
    }

    /// Pages that have space.
    pub(super) fn allocated(&self) -> u64 {
        self.shards.iter().map(|shard| read(shard).allocated).sum()
    }

    /// The same at one point in time, sharing all pages.
    pub(super) fn snapshot(&self, capacity_bytes: Option<u64>) -> Self {
        // All locks are held together: no later write is in the copy without the earlier ones.
        let guards: Vec<_> = self.shards.iter().map(|shard| read(shard)).collect();
        Self::from_shards(guards.iter().map(|shard| (**shard).clone()), capacity_bytes)
    }

    /// Takes the contents of `from`, atomically for all readers. The limit is kept.
    pub(super) fn restore(&self, from: &Self) {
        let new: Vec<Shard> = from
            .shards
            .iter()
            .map(|shard| read(shard).clone())
            .collect();
        let mut guards: Vec<_> = self.shards.iter().map(|shard| write(shard)).collect();
        if let Some(capacity) = &self.capacity {
            let allocated = new.iter().map(|shard| shard.allocated).sum();
            capacity.pages.store(allocated, Ordering::Relaxed);
        }
        for (shard, new) in guards.iter_mut().zip(new) {
            **shard = new;
        }
    }

    /// The first byte in which the contents differ.
    pub(super) fn first_difference(&self, other: &Self) -> Option<u64> {
        let differences = self.shards.iter().zip(&other.shards).flat_map(|(a, b)| {
            let (a, b) = (read(a).regions.clone(), read(b).regions.clone());
            let hole = Region::default();
            let numbers = a.keys().chain(b.keys());
            let different = |number: &u64| {
                let (a, b) = (a.get(number), b.get(number));
                let at = a.unwrap_or(&hole).first_difference(b.unwrap_or(&hole))?;
                Some(number * REGION as u64 + at as u64)
            };
            if Arc::ptr_eq(&a, &b) {
                None
            } else {
                numbers.filter_map(different).min()
            }
        });
        differences.min()
    }

    fn read_shard(&self, number: u64) -> RwLockReadGuard<'_, Shard> {
        read(&self.shards[index(number)])
    }

    fn write_shard(&self, number: u64) -> RwLockWriteGuard<'_, Shard> {
        write(&self.shards[index(number)])
    }
}

fn read(shard: &RwLock<Shard>) -> RwLockReadGuard<'_, Shard> {
    shard.read()
}

fn write(shard: &RwLock<Shard>) -> RwLockWriteGuard<'_, Shard> {
    shard.write()
}

fn index(number: u64) -> usize {
    (number.wrapping_mul(HASH) >> (u64::BITS - SHARDS.ilog2())) as usize
}

fn inside(piece: ByteRange) -> usize {
    (piece.start() % REGION as u64) as usize
}

fn pieces(offset: u64, length: usize) -> impl Iterator<Item = ByteRange> {
    let range = ByteRange::at(offset, length as u64).expect("an admitted range");
    range.chunks(REGION as u64)
}
