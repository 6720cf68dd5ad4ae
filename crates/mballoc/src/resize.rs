//! Online resize.
//!
//! Growing prepares the new groups first and publishes their number last. Shrinking first closes
//! the end to new allocations; if all its blocks are free, the smaller number is published. The
//! headers of removed groups stay in place, entirely in use, for concurrent readers.

use extant_space::{Error, ErrorKind, Result};

use crate::group::Body;
use crate::index::ClassMask;
use crate::shared::{Shared, promised_free};
use crate::sync::{Ordering, lock};
use crate::{Allocator, Block, Geometry, GroupNumber};

impl Allocator {
    /// Makes the file system end at `end`. The blocks added to the last group are free; the source
    /// describes the new groups.
    ///
    /// # Errors
    /// `InvalidArgument` when `end` is not past the end, `Corrupt` as [`Allocator::open`]; nothing
    /// is changed.
    pub fn grow(&self, end: Block) -> Result<()> {
        self.shared.grow(end)
    }

    /// Makes the file system end at `end`, if all blocks from there on are free. Reclaims windows.
    ///
    /// # Errors
    /// - `InUse` with the first block found in use;
    /// - `Corrupt` when a group there is corrupt;
    /// - `InvalidArgument` when `end` is not before the end.
    ///
    /// Nothing is changed then.
    pub fn shrink(&self, end: Block) -> Result<()> {
        self.shared.shrink(end)
    }
}

impl Shared {
    fn grow(&self, end: Block) -> Result<()> {
        let _one = lock(&self.resizing);
        let old = self.geometry();
        let new = self.resized(end, end > old.end)?;
        let added = old.groups()..new.groups();
        for group in added.clone() {
            promised_free(&new, self.source(), GroupNumber(group))?;
        }
        self.table
            .grow(new.groups() as usize, |_| crate::group::Group::unloaded(0));
        self.index.grow(new.groups());
        for group in added {
            let free = self.source().free_blocks(GroupNumber(group));
            self.renew(group, free);
        }
        let last = old.groups() - 1;
        let (short, long) = [old, new]
            .map(|geometry| geometry.length_of(GroupNumber(last)))
            .into();
        if short < long {
            let mut group = self.wait_group(last);
            if let Some(loaded) = group.load() {
                loaded.length = long;
                group.mark(short, long - short, true);
            }
            // `closed_from` keeps its blocks from being allocated until the end is published.
        }
        self.publish(&new);
        self.closed_from.store(end.0, Ordering::Release);
        Ok(())
    }

    /// Initialises a group whose header may have been in use before a shrink.
    fn renew(&self, number: u32, free: u32) {
        let header = self.group(number);
        let mut body = lock(&header.body);
        if let Body::Loaded(old) = &*body {
            // With `FullGroups::StayInIndex`, a removed group has stayed in the index.
            self.index.change(number, old.published, ClassMask::NONE);
        }
        *body = Body::Unloaded;
        header.set_unloaded(free);
        self.enter(number);
        self.free.add(free.into());
    }

    fn shrink(&self, end: Block) -> Result<()> {
        let _one = lock(&self.resizing);
        let old = self.geometry();
        let new = self.resized(end, end < old.end)?;
        self.closed_from.store(end.0, Ordering::Release);
        let (first, _) = old.locate(end).expect("a block of the file system");
        let cut = first.0..old.groups();
        // An allocation that took blocks there before the close has released the group's lock by
        // now, and holds its owner's lock until its window is recorded: all windows are found.
        cut.clone().for_each(|group| drop(self.wait_group(group)));
        self.reclaim_windows();
        let mut closed = Vec::new();
        for group in cut {
            if let Err(error) = self.close(&old, &new, group) {
                for (group, start, count) in closed {
                    self.wait_group(group).mark(start, count, true);
                }
                self.closed_from.store(old.end.0, Ordering::Release);
                return Err(error);
            }
            let start = new.length_of(GroupNumber(group));
            closed.push((group, start, old.length_of(GroupNumber(group)) - start));
        }
        if let Some(&(group, start, _)) = closed.first()
            && start > 0
            && let Some(loaded) = self.wait_group(group).load()
        {
            loaded.length = start;
        }
        self.publish(&new);
        Ok(())
    }

    /// Marks the removed blocks of a group in use; all of them must be free.
    fn close(&self, old: &Geometry, new: &Geometry, number: u32) -> Result<()> {
        let number = GroupNumber(number);
        let (start, end) = (new.length_of(number), old.length_of(number));
        let mut group = self.wait_group(number.0);
        let Some(loaded) = group.load() else {
            return Err(Error::new(ErrorKind::Corrupt)
                .during("shrink")
                .detail(format!("group {number} is out of use"))
                .advice("check the file system"));
        };
        if let Some(used) = (start..end).find(|&at| !loaded.bits.is_free(at)) {
            let waits = if loaded.is_pending(used, 1) {
                " until a commit"
            } else {
                ""
            };
            let block = Block(old.start_of(number).0 + u64::from(used));
            return Err(Error::new(ErrorKind::InUse)
                .during("shrink")
                .detail(format!("block {block} is in use{waits}")));
        }
        group.mark(start, end - start, false);
        Ok(())
    }

    fn resized(&self, end: Block, is_valid: bool) -> Result<Geometry> {
        let geometry = self.geometry();
        let new = Geometry { end, ..geometry };
        if !is_valid {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .during("resize")
                .detail(format!("from {} to {end} blocks", geometry.end)));
        }
        new.validate()?;
        Ok(new)
    }
}
