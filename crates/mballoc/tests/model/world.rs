//! The naive allocator: the owner of each block, one by one; and its comparison with the real one.

mod expect;
mod journal;
mod space;

use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use extant_mballoc::{
    Allocator, Block, BlockRange, Geometry, InFlightDiscard, Options, Owner, TransactionId,
};
use extant_space::{ErrorKind, Result};

use crate::disk::Disk;
use crate::event::Event;
use crate::setup::{Pattern, Setup};

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// Free, possibly in a window.
    Free,
    /// A file, open or not; 0 for those that were on the disk before.
    Owned(u64),
    /// Free once the transaction has committed.
    Pending(TransactionId),
    /// Free once its discard is done.
    Discarding,
}

/// An open file.
struct Tenant {
    id: u64,
    owner: Rc<Owner>,
    /// The last transaction that it was given blocks in, and which blocks.
    fresh_in: Option<TransactionId>,
    fresh: BTreeSet<u64>,
    /// Changes to these; the allocator remembers at least 32 runs.
    fresh_changes: u32,
}

struct World<'a> {
    allocator: &'a Allocator,
    disk: Disk,
    pattern: Pattern,
    options: &'a Options,
    geometry: Geometry,
    cells: Vec<Cell>,
    tenants: Vec<Tenant>,
    files: u64,
    running: TransactionId,
    committing: Option<TransactionId>,
    discarding: Vec<InFlightDiscard<'a>>,
    counts: Counts,
    /// A request was allowed to take the reserve.
    reserve_used: bool,
}

/// Expected statistics.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    requests: u64,
    failures: u64,
    blocks: u64,
    freed: u64,
    reused: u64,
}

/// Runs the events on both.
pub fn run(setup: &Setup, options: &Options, events: &[Event]) {
    let disk = Disk::new(&setup.geometry, |block| setup.pattern.is_used(block));
    let allocator = Allocator::open(setup.geometry, options.clone(), disk.clone()).unwrap();
    // Not dropped by a failed assertion: a destructor that fails after it would end the program
    // without a word.
    let mut world = ManuallyDrop::new(World::new(&allocator, disk, setup, options));
    world.compare();
    for event in events {
        world.step(event);
        world.compare();
    }
    world.leave_nothing();
    drop(ManuallyDrop::into_inner(world));
}

impl<'a> World<'a> {
    fn new(allocator: &'a Allocator, disk: Disk, setup: &Setup, options: &'a Options) -> Self {
        let Setup { geometry, pattern } = *setup;
        let mut world = Self {
            allocator,
            disk,
            pattern,
            options,
            geometry,
            cells: Vec::new(),
            tenants: Vec::new(),
            files: 0,
            running: TransactionId(1),
            committing: None,
            discarding: Vec::new(),
            counts: Counts::default(),
            reserve_used: false,
        };
        world.cells = world.cells_on_disk(geometry.first..geometry.end);
        world
    }

    fn step(&mut self, event: &Event) {
        match event {
            Event::Open { number, blocks } => self.open(*number, *blocks),
            Event::Close(tenant) => {
                if let Some(at) = self.pick(tenant) {
                    self.tenants.remove(at);
                }
            }
            Event::Allocate { owner, ask, then } => {
                if let Some(at) = self.pick(owner) {
                    self.allocate(at, ask, *then);
                }
            }
            Event::Free {
                run,
                from,
                count,
                when,
            } => self.free(run, from, count, *when),
            Event::FreeWrongly {
                owner,
                block,
                count,
                when,
            } => {
                if let Some(at) = self.pick(owner) {
                    self.free_wrongly(at, block, *count, *when);
                }
            }
            Event::FreeOutside {
                owner,
                distance,
                when,
            } => {
                if let Some(at) = self.pick(owner) {
                    self.free_outside(at, *distance, *when);
                }
            }
            Event::Begin => self.begin(),
            Event::Commit => self.commit(),
            Event::Discarded(freed) => self.discarded(freed),
            Event::ReleaseWindows(None) => self.release_windows(),
            Event::ReleaseWindows(Some(tenant)) => {
                if let Some(at) = self.pick(tenant) {
                    self.tenants[at].owner.release_windows();
                    assert_eq!(self.tenants[at].owner.windows(), []);
                }
            }
            Event::SetPolicy(policy) => {
                self.allocator.set_policy(*policy);
                assert_eq!(self.allocator.policy(), *policy);
            }
            Event::Walk => self.walk(),
            Event::Withhold {
                group,
                from,
                to,
                minimum,
                runs_max,
            } => self.withhold(group, [from, to], *minimum, *runs_max),
            Event::Grow(blocks) => self.grow(*blocks),
            Event::Shrink(place) => self.shrink(*place),
        }
    }

    fn open(&mut self, number: u64, blocks: u64) {
        self.files += 1;
        let owner = self.allocator.owner(number, blocks);
        assert_eq!(owner.number(), number);
        self.tenants.push(Tenant {
            id: self.files,
            owner: Rc::new(owner),
            fresh_in: None,
            fresh: BTreeSet::new(),
            fresh_changes: 0,
        });
    }

    fn pick(&self, tenant: &proptest::sample::Index) -> Option<usize> {
        (!self.tenants.is_empty()).then(|| tenant.index(self.tenants.len()))
    }

    /// Compares every query of the allocator with the blocks.
    fn compare(&self) {
        assert_eq!(self.allocator.check(), Ok(()));
        assert_eq!(self.allocator.geometry(), self.geometry);
        let count =
            |is: fn(&Cell) -> bool| self.cells.iter().filter(|cell| is(cell)).count() as u64;
        let free = count(|cell| *cell == Cell::Free);
        let pending = count(|cell| matches!(cell, Cell::Pending(_) | Cell::Discarding));
        assert_eq!(self.allocator.free_blocks(), free, "free blocks");
        assert_eq!(self.allocator.pending_blocks(), pending, "pending blocks");
        assert!(self.allocator.corrupt_groups().is_empty());
        let mut seen = BTreeSet::new();
        for window in self.windows() {
            for block in blocks(window) {
                assert_eq!(
                    self.cell(block),
                    Some(Cell::Free),
                    "{block} in window {window}"
                );
                assert!(seen.insert(block), "{block} in two windows");
            }
        }
        let statistics = self.allocator.statistics();
        let counts = Counts {
            requests: statistics.requests,
            failures: statistics.failures,
            blocks: statistics.blocks,
            freed: statistics.freed_blocks,
            reused: statistics.reused_blocks,
        };
        assert_eq!(counts, self.counts);
    }

    /// Closes and frees everything: then all blocks are free, in runs that only groups' ends may
    /// end.
    fn leave_nothing(&mut self) {
        self.tenants.clear();
        self.compare();
        for range in self.runs(|cell| matches!(cell, Cell::Owned(_))) {
            self.allocator
                .free(range, extant_mballoc::Free::Now)
                .unwrap();
            self.counts.freed += u64::from(range.count());
            self.set(range, Cell::Free);
        }
        self.commit();
        self.begin();
        self.commit();
        self.discarding.clear();
        self.cells.fill(Cell::Free);
        self.compare();
        self.walk();
    }

    fn windows(&self) -> Vec<BlockRange> {
        let tenants = self.tenants.iter();
        tenants.flat_map(|tenant| tenant.owner.windows()).collect()
    }

    fn cell(&self, block: Block) -> Option<Cell> {
        let at = block.0.checked_sub(self.geometry.first.0)?;
        self.cells.get(usize::try_from(at).ok()?).copied()
    }

    fn set(&mut self, range: BlockRange, cell: Cell) {
        let first = self.geometry.first.0;
        self.cells[(range.start().0 - first) as usize..(range.end().0 - first) as usize].fill(cell);
    }

    /// The longest runs of one and the same cell for which `is` holds.
    fn runs(&self, is: impl Fn(Cell) -> bool) -> Vec<BlockRange> {
        let first = self.geometry.first.0;
        let mut runs = Vec::new();
        let mut at = first;
        for run in self.cells.chunk_by(|a, b| a == b) {
            if is(run[0]) {
                runs.push(BlockRange::new(Block(at), run.len() as u32));
            }
            at += run.len() as u64;
        }
        runs
    }
}

fn blocks(range: BlockRange) -> impl Iterator<Item = Block> {
    (range.start().0..range.end().0).map(Block)
}

fn kind<T>(result: Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}
