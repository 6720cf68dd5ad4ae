//! What an allocator and its owners share: the groups, the index, the counters.
//!
//! Lock order: owner, then group, then the list of a transaction or of an order; the global lock of
//! old is taken last and alone. The locks of two owners, or of two groups, are never held together.

use std::ops::ControlFlow;

use crossbeam_utils::CachePadded;
use extant_space::{Error, ErrorKind, Result};

use crate::bits::Shape;
use crate::counters::{Count, Counters, SpreadSum};
use crate::goals::Goals;
use crate::group::{Body, Group, Loaded};
use crate::index::{ClassMask, RunIndex};
use crate::options::{BusyGroups, FullGroups, Options, Policy};
use crate::owner::Owners;
use crate::pending::PendingList;
use crate::segments::Segments;
use crate::sync::{
    AtomicU8, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock, lock_timed, try_lock,
};
use crate::{BitmapSource, Block, BlockRange, Geometry, GroupNumber, TransactionId};

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) shape: Shape,
    first: Block,
    blocks_per_group: u32,
    /// Number of groups and one past the last block, as published; `groups` is published last when
    /// they grow.
    groups_published: AtomicU32,
    end: AtomicU64,
    /// Nothing is taken from this block on. Below `end` while the file system shrinks.
    pub(crate) closed_from: AtomicU64,
    pub(crate) resizing: Mutex<()>,
    pub(crate) table: Segments<Group>,
    pub(crate) index: RunIndex,
    policy: AtomicU8,
    pub(crate) goals: Goals,
    /// Group where a rotating allocation begins.
    pub(crate) rotation: CachePadded<AtomicU32>,
    pub(crate) counters: Counters,
    /// Free blocks of all groups that can be used.
    pub(crate) free: SpreadSum,
    pub(crate) pending: PendingList,
    pub(crate) owners: Owners,
    out_of_use: Mutex<Vec<OutOfUse>>,
    source: Box<dyn BitmapSource>,
}

/// A group that was taken out of use, and why.
#[derive(Clone, Debug)]
pub struct OutOfUse {
    /// The group.
    pub group: GroupNumber,
    /// What was wrong with its bitmap: corrupt, or not readable.
    pub kind: ErrorKind,
    /// The error, in words.
    pub reason: String,
}

impl Shared {
    pub(crate) fn new(
        geometry: Geometry,
        options: Options,
        source: Box<dyn BitmapSource>,
    ) -> Result<Self> {
        geometry.validate()?;
        options.validate()?;
        let groups = geometry.groups();
        let shape = Shape::new(geometry.blocks_per_group);
        let mut free = 0;
        for group in (0..groups).map(GroupNumber) {
            free += u64::from(promised_free(&geometry, &*source, group)?);
        }
        let shared = Self {
            first: geometry.first,
            blocks_per_group: geometry.blocks_per_group,
            groups_published: AtomicU32::new(groups),
            end: AtomicU64::new(geometry.end.0),
            closed_from: AtomicU64::new(geometry.end.0),
            resizing: Mutex::new(()),
            table: Segments::new(groups as usize, |group| {
                Group::untouched(source.free_blocks(GroupNumber(group as u32)))
            }),
            index: RunIndex::new(options.index, shape.blocks(), groups),
            policy: AtomicU8::new(0),
            goals: Goals::new(&options, groups),
            rotation: CachePadded::new(AtomicU32::new(0)),
            counters: Counters::new(options.cpus),
            free: SpreadSum::new(options.cpus, free),
            pending: PendingList::new(options.freed_extents),
            owners: Owners::new(),
            out_of_use: Mutex::new(Vec::new()),
            source,
            shape,
            options,
        };
        shared.set_policy(shared.options.policy);
        for group in 0..groups {
            shared.enter(group);
        }
        Ok(shared)
    }

    /// Enters an untouched group that is not in the index.
    pub(crate) fn enter(&self, group: u32) {
        self.index.claim(group, self.group(group).free());
    }

    pub(crate) fn source(&self) -> &dyn BitmapSource {
        &*self.source
    }

    /// The blocks as last published.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            first: self.first,
            end: Block(self.end.load(Ordering::Acquire)),
            blocks_per_group: self.blocks_per_group,
        }
    }

    /// Number of groups as last published; all of them are in the table and the index.
    pub(crate) fn groups(&self) -> u32 {
        self.groups_published.load(Ordering::Acquire)
    }

    /// Publishes a new end, after the table and the index have room for it.
    pub(crate) fn publish(&self, geometry: &Geometry) {
        self.end.store(geometry.end.0, Ordering::Release);
        self.groups_published
            .store(geometry.groups(), Ordering::Release);
    }

    pub(crate) fn policy(&self) -> Policy {
        match self.policy.load(Ordering::Relaxed) {
            0 => Policy::Linear,
            1 => Policy::Optimised,
            _ => Policy::Rotating,
        }
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let value = match policy {
            Policy::Linear => 0,
            Policy::Optimised => 1,
            Policy::Rotating => 2,
        };
        self.policy.store(value, Ordering::Relaxed);
    }

    pub(crate) fn group(&self, group: u32) -> &Group {
        self.table.get(group as usize).expect("a published group")
    }

    /// Blocks of `group` from which on nothing is taken.
    pub(crate) fn open_length(&self, group: u32) -> u32 {
        let open = Geometry {
            end: Block(self.closed_from.load(Ordering::Acquire)),
            ..self.geometry()
        };
        open.length_of(GroupNumber(group))
    }

    /// Takes the lock of a group, waiting for it.
    pub(crate) fn wait_group(&self, group: u32) -> LockedGroup<'_> {
        let header = self.group(group);
        let (body, waited) = lock_timed(&header.body);
        self.counters.lock_waited(waited);
        LockedGroup {
            shared: self,
            number: group,
            header,
            body,
        }
    }

    /// Takes the lock of a group unless another thread holds it.
    pub(crate) fn try_group(&self, group: u32) -> Option<LockedGroup<'_>> {
        if self.options.busy_groups == BusyGroups::Wait {
            return Some(self.wait_group(group));
        }
        let header = self.group(group);
        let Some(body) = try_lock(&header.body) else {
            self.counters.add(Count::GroupsBusy, 1);
            return None;
        };
        Some(LockedGroup {
            shared: self,
            number: group,
            header,
            body,
        })
    }

    /// Frees blocks at once.
    pub(crate) fn give(&self, range: BlockRange) -> Result<()> {
        self.in_groups(range, |mut group, start, count| {
            group.loaded_for_free(start, count)?;
            group.mark(start, count, true);
            Ok(())
        })
    }

    /// Frees blocks that a window has no more.
    pub(crate) fn give_window(&self, window: BlockRange) -> Result<()> {
        let blocks = window.count().into();
        self.counters.add(Count::WindowBlocksReleased, blocks);
        self.give(window)
    }

    /// Whether blocks can be freed; errors as those of [`Self::give`].
    pub(crate) fn can_give(&self, range: BlockRange) -> Result<()> {
        self.in_groups(range, |mut group, start, count| {
            group.loaded_for_free(start, count).map(|_| ())
        })
    }

    /// Frees blocks when `transaction` has committed.
    pub(crate) fn give_after(&self, range: BlockRange, transaction: TransactionId) -> Result<()> {
        self.in_groups(range, |mut group, start, count| {
            let number = group.number;
            let loaded = group.loaded_for_free(start, count)?;
            let first = loaded.add_pending(start, count, transaction);
            self.pending
                .note(self, number, start, count, transaction, first);
            Ok(())
        })
    }

    /// Runs `work` on the part of `range` in each group.
    pub(crate) fn in_groups(
        &self,
        range: BlockRange,
        mut work: impl FnMut(LockedGroup<'_>, u32, u32) -> Result<()>,
    ) -> Result<()> {
        let geometry = self.geometry();
        let mut rest = Some(range);
        while let Some(part) = rest {
            let Some((group, start)) = geometry.locate(part.start()) else {
                return Err(outside(part, &geometry));
            };
            let count = part.count().min(geometry.length_of(group) - start);
            work(self.wait_group(group.0), start, count)?;
            rest = BlockRange::between(Block(part.start().0 + u64::from(count)), part.end());
        }
        Ok(())
    }

    /// Groups that were taken out of use so far.
    pub(crate) fn out_of_use(&self) -> Vec<OutOfUse> {
        lock(&self.out_of_use).clone()
    }

    /// Visits the free runs of all groups that can be read, in order. Where they touch, runs of two
    /// groups are one.
    pub(crate) fn for_each_free(&self, visit: &mut dyn FnMut(BlockRange) -> ControlFlow<()>) {
        let mut open: Option<BlockRange> = None;
        for number in 0..self.groups() {
            let mut group = self.wait_group(number);
            let runs: Vec<_> = match group.load() {
                Some(loaded) => loaded.bits.runs(&self.shape).collect(),
                None => Vec::new(),
            };
            drop(group);
            let geometry = self.geometry();
            for run in runs {
                let range = geometry.range_in(GroupNumber(number), run.start, run.count);
                match open {
                    Some(before) if before.can_join(range) => open = Some(before.joined(range)),
                    Some(before) => {
                        if visit(before).is_break() {
                            return;
                        }
                        open = Some(range);
                    }
                    None => open = Some(range),
                }
            }
        }
        if let Some(last) = open {
            let _ = visit(last);
        }
    }
}

/// The source's number of free blocks of a group, refused if it exceeds the size of the group.
pub(crate) fn promised_free(
    geometry: &Geometry,
    source: &dyn BitmapSource,
    group: GroupNumber,
) -> Result<u32> {
    let (free, length) = (source.free_blocks(group), geometry.length_of(group));
    if free > length {
        return Err(Error::new(ErrorKind::Corrupt)
            .detail(format!(
                "the descriptor of group {group} says {free} free blocks of {length}"
            ))
            .advice("check the file system"));
    }
    Ok(free)
}

fn outside(range: BlockRange, geometry: &Geometry) -> Error {
    Error::new(ErrorKind::InvalidArgument)
        .during("free")
        .detail(format!(
            "{range} outside the file system, {} to {}",
            geometry.first, geometry.end
        ))
}

/// A group whose lock is held.
pub(crate) struct LockedGroup<'a> {
    shared: &'a Shared,
    pub(crate) number: u32,
    header: &'a Group,
    pub(crate) body: MutexGuard<'a, Body>,
}

impl LockedGroup<'_> {
    /// The group's blocks, read now if they were not; `None` when it is out of use.
    pub(crate) fn load(&mut self) -> Option<&mut Loaded> {
        if let Body::Untouched = *self.body {
            let geometry = self.shared.geometry();
            // A search from before a shrink meets a group that is being rebuilt, whose length is
            // not published yet.
            if geometry.length_of(GroupNumber(self.number)) == 0 {
                return None;
            }
            match self.read() {
                Ok(loaded) => {
                    self.shared.index.drop_claim(self.number, loaded.free);
                    *self.body = Body::Loaded(Box::new(loaded));
                    self.publish();
                }
                Err(error) => self.take_out_of_use(&error),
            }
        }
        match &mut *self.body {
            Body::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Whether accessing the group reads its bitmap first.
    pub(crate) fn is_untouched(&self) -> bool {
        matches!(*self.body, Body::Untouched)
    }

    /// Changes the state of blocks that are all in the other one.
    pub(crate) fn mark(&mut self, start: u32, count: u32, free: bool) {
        let Body::Loaded(loaded) = &mut *self.body else {
            unreachable!("blocks of a group that is not loaded");
        };
        loaded.mark(&self.shared.shape, start, count, free);
        let change = i64::from(count);
        self.shared.free.add(if free { change } else { -change });
        self.publish();
    }

    /// The group's blocks, when `count` of them from `start` on can be freed: they are in use and
    /// not freed already.
    pub(crate) fn loaded_for_free(&mut self, start: u32, count: u32) -> Result<&mut Loaded> {
        let geometry = self.shared.geometry();
        let number = GroupNumber(self.number);
        let range = geometry.range_in(number, start, count);
        let error = |detail: String| {
            Err(Error::new(ErrorKind::Corrupt)
                .during("free")
                .detail(detail)
                .advice("check the file system"))
        };
        match self.load() {
            None => error(format!("{range}: group {number} is out of use")),
            Some(loaded) if !loaded.bits.is_all(start, count, false) => {
                error(format!("{range}: free already"))
            }
            Some(loaded) if loaded.is_pending(start, count) => {
                error(format!("{range}: freed already, until a commit"))
            }
            Some(loaded) => Ok(loaded),
        }
    }

    fn read(&self) -> Result<Loaded> {
        let geometry = self.shared.geometry();
        let number = GroupNumber(self.number);
        let mut words = vec![0; self.shared.shape.words()];
        self.shared.source.load(number, &mut words)?;
        self.shared.counters.add(Count::GroupsLoaded, 1);
        let length = geometry.length_of(number);
        Loaded::new(
            &self.shared.shape,
            number,
            words,
            length,
            self.header.free(),
        )
    }

    /// Brings header and index up to date with the bits.
    pub(crate) fn publish(&mut self) {
        let Body::Loaded(loaded) = &mut *self.body else {
            return;
        };
        self.header.set_free(loaded.free);
        let full = loaded.free == 0;
        if full && self.shared.options.full_groups == FullGroups::StayInIndex {
            return;
        }
        let before = std::mem::replace(&mut loaded.published, loaded.classes);
        if before != loaded.classes {
            self.header.set_largest(loaded.classes);
            self.shared
                .index
                .change(self.number, before, loaded.classes);
        }
    }

    fn take_out_of_use(&mut self, error: &Error) {
        self.shared
            .index
            .drop_claim(self.number, self.header.free());
        *self.body = Body::OutOfUse;
        self.shared.free.add(-i64::from(self.header.free()));
        self.header.set_free(0);
        self.header.set_largest(ClassMask::NONE);
        lock(&self.shared.out_of_use).push(OutOfUse {
            group: GroupNumber(self.number),
            kind: error.kind(),
            reason: error.to_string(),
        });
    }
}
