//! The state that an allocator and its owners share: groups, index, goals and counters.
//!
//! Lock order:
//! 1. the discard gate, taken with no other lock held;
//! 2. one owner;
//! 3. one group;
//! 4. the list of pending groups, or with the feature `ablation` the list of an order;
//! 5. with `ablation`, the global lock, taken last and alone.
//!
//! The locks of two owners, or of two groups, are never held together.

use std::ops::ControlFlow;

#[cfg(feature = "ablation")]
use crossbeam_utils::CachePadded;
use extant_space::{Error, ErrorKind, Result};

use crate::bits::Shape;
use crate::counters::{Count, Counters, SpreadSum};
use crate::goals::Goals;
use crate::group::{Body, Group, Loaded};
use crate::index::{ClassMask, RunIndex};
#[cfg(feature = "ablation")]
use crate::options::{BusyGroups, FullGroups};
use crate::options::{Options, Policy, Windows};
use crate::pending::PendingList;
use crate::registry::OwnerRegistry;
use crate::segments::Segments;
use crate::sync::{
    AtomicU8, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, lock, lock_timed, try_lock,
};
use crate::{BitmapSource, Block, BlockRange, Geometry, GroupNumber};

pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) shape: Shape,
    first: Block,
    blocks_per_group: u32,
    /// The published number of groups; when the file system grows, it is published after `end`.
    groups_published: AtomicU32,
    end: AtomicU64,
    /// No block from here on is allocated. Below `end` while the file system shrinks.
    pub(crate) closed_from: AtomicU64,
    pub(crate) resizing: Mutex<()>,
    pub(crate) table: Segments<Group>,
    pub(crate) index: RunIndex,
    policy: AtomicU8,
    /// 1 while growing files get new windows.
    windows: AtomicU8,
    pub(crate) goals: Goals,
    /// Group where a rotating allocation begins.
    #[cfg(feature = "ablation")]
    pub(crate) rotation: CachePadded<AtomicU32>,
    pub(crate) counters: Counters,
    /// Free blocks of all groups, without corrupt ones.
    pub(crate) free: SpreadSum,
    pub(crate) pending: PendingList,
    pub(crate) owners: OwnerRegistry,
    corrupt_groups: Mutex<Vec<CorruptGroup>>,
    source: Box<dyn BitmapSource>,
}

/// A group whose bitmap is corrupt or cannot be read (`EXT4_GROUP_INFO_BBITMAP_CORRUPT`): it is out
/// of use.
#[derive(Clone, Debug)]
pub struct CorruptGroup {
    /// The group.
    pub group: GroupNumber,
    /// The kind of the error: corrupt, or an I/O error.
    pub kind: ErrorKind,
    /// The text of the error.
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
                Group::unloaded(source.free_blocks(GroupNumber(group as u32)))
            }),
            index: RunIndex::new(
                #[cfg(feature = "ablation")]
                options.index,
                shape.blocks(),
                groups,
            ),
            policy: AtomicU8::new(0),
            windows: AtomicU8::new(1),
            goals: Goals::new(&options, groups),
            #[cfg(feature = "ablation")]
            rotation: CachePadded::new(AtomicU32::new(0)),
            counters: Counters::new(options.cpus),
            free: SpreadSum::new(options.cpus, free),
            pending: PendingList::new(
                #[cfg(feature = "ablation")]
                &options,
            ),
            owners: OwnerRegistry::new(),
            corrupt_groups: Mutex::new(Vec::new()),
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

    /// Enters an unloaded group that is not in the index yet.
    pub(crate) fn enter(&self, group: u32) {
        self.index.insert_unloaded(group, self.group(group).free());
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
            #[cfg(feature = "ablation")]
            2 => Policy::Rotating,
            _ => Policy::Optimised,
        }
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        let value = match policy {
            Policy::Linear => 0,
            Policy::Optimised => 1,
            #[cfg(feature = "ablation")]
            Policy::Rotating => 2,
        };
        self.policy.store(value, Ordering::Relaxed);
    }

    /// Whether searches scan every group in order (`Policy::Linear`).
    pub(crate) fn scans_linearly(&self) -> bool {
        self.policy() == Policy::Linear
    }

    pub(crate) fn windows(&self) -> Windows {
        match self.windows.load(Ordering::Relaxed) {
            0 => Windows::Closed,
            _ => Windows::Open,
        }
    }

    pub(crate) fn set_windows(&self, windows: Windows) {
        let value = u8::from(windows == Windows::Open);
        self.windows.store(value, Ordering::Relaxed);
    }

    /// The group where a search without goal begins with `Policy::Rotating`.
    pub(crate) fn rotation_start(&self) -> Option<u32> {
        #[cfg(feature = "ablation")]
        if self.policy() == Policy::Rotating {
            return Some(self.rotation.load(Ordering::Relaxed));
        }
        None
    }

    /// Records the group of the last allocation for `Policy::Rotating`.
    pub(crate) fn record_rotation(&self, _group: u32) {
        #[cfg(feature = "ablation")]
        if self.policy() == Policy::Rotating {
            self.rotation.store(_group, Ordering::Relaxed);
        }
    }

    pub(crate) fn group(&self, group: u32) -> &Group {
        self.table.get(group as usize).expect("a published group")
    }

    /// The number of blocks of `group` that may be allocated, counted from its start.
    pub(crate) fn open_length(&self, group: u32) -> u32 {
        let open = Geometry {
            end: Block(self.closed_from.load(Ordering::Acquire)),
            ..self.geometry()
        };
        open.length_of(GroupNumber(group))
    }

    /// Locks a group, and waits for the lock.
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

    /// Locks a group unless another thread holds the lock.
    pub(crate) fn try_group(&self, group: u32) -> Option<LockedGroup<'_>> {
        #[cfg(feature = "ablation")]
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

    /// The groups found corrupt so far.
    pub(crate) fn corrupt_groups(&self) -> Vec<CorruptGroup> {
        lock(&self.corrupt_groups).clone()
    }

    /// Visits the free runs of all readable groups, in order. Adjacent runs of two groups are
    /// merged.
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

/// The free blocks of a group by its descriptor; an error when the group has fewer blocks.
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
    /// The loaded group; reads its bitmap first if needed. `None` when the group is corrupt.
    pub(crate) fn load(&mut self) -> Option<&mut Loaded> {
        if let Body::Unloaded = *self.body {
            let geometry = self.shared.geometry();
            // A search that began before a shrink can reach a group that a new growth is adding:
            // its length is not published yet.
            if geometry.length_of(GroupNumber(self.number)) == 0 {
                return None;
            }
            match self.read() {
                Ok(loaded) => {
                    self.shared.index.remove_unloaded(self.number, loaded.free);
                    *self.body = Body::Loaded(Box::new(loaded));
                    self.publish();
                }
                Err(error) => self.mark_corrupt(&error),
            }
        }
        match &mut *self.body {
            Body::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// Whether the bitmap of the group has not been read yet.
    pub(crate) fn is_unloaded(&self) -> bool {
        matches!(*self.body, Body::Unloaded)
    }

    /// Marks blocks free or in use; all of them must be in the other state.
    pub(crate) fn mark(&mut self, start: u32, count: u32, free: bool) {
        let Body::Loaded(loaded) = &mut *self.body else {
            unreachable!("blocks of a group that is not loaded");
        };
        loaded.mark(&self.shared.shape, start, count, free);
        let change = i64::from(count);
        self.shared.free.add(if free { change } else { -change });
        self.publish();
    }

    /// The loaded group, when the `count` blocks from `start` on can be freed: they are in use and
    /// not pending.
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

    /// Updates header and index from the bitmap.
    pub(crate) fn publish(&mut self) {
        let Body::Loaded(loaded) = &mut *self.body else {
            return;
        };
        self.header.set_free(loaded.free);
        #[cfg(feature = "ablation")]
        if loaded.free == 0 && self.shared.options.full_groups == FullGroups::StayInIndex {
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

    fn mark_corrupt(&mut self, error: &Error) {
        self.shared
            .index
            .remove_unloaded(self.number, self.header.free());
        *self.body = Body::Corrupt;
        self.shared.free.add(-i64::from(self.header.free()));
        self.header.set_free(0);
        self.header.set_largest(ClassMask::NONE);
        lock(&self.shared.corrupt_groups).push(CorruptGroup {
            group: GroupNumber(self.number),
            kind: error.kind(),
            reason: error.to_string(),
        });
    }
}
