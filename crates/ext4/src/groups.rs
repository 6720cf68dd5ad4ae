//! Block groups: descriptors and bitmaps as they are on the disk, or will be with the next commit.
//!
//! The allocator (`extant_mballoc`) has bitmaps of its own. In them, blocks reserved for files that
//! do not refer to them yet and blocks that a commit will free are in use. Here a bit follows the
//! references: it is set and cleared in the transaction that changes them.
//!
//! Model: a group is read when it is first needed. Its bitmaps are changed in memory and reach
//! their blocks, with descriptor and checksums, when the transaction is frozen.
//!
//! Invariants:
//! - free counts of a descriptor equal its bitmaps, once those were read;
//! - a group is noted in the running transaction before it is changed; its changes are marked until
//!   the freeze.
//!
//! Format: docs/formats/ext4.md, "Group descriptor" and "Bitmaps". Lock order: a group, then a
//! block of the cache. The allocator's locks come before a group's: nothing here calls it while a
//! group is locked.

mod bitmap;
mod blocks;
mod inodes;
mod source;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use extant_ondisk::ext4::bitmap::Bitmap;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::{GroupDescriptor, GroupNumber, Layout, Superblock};
use extant_space::Result;

use crate::cache::{Block, BlockCache, Changing};
use crate::sync::lock;
use crate::system_zone::SystemZone;
use crate::transaction::{First, Transaction, TransactionId};

pub(crate) use bitmap::BitmapBytes;
pub(crate) use inodes::NewInode;
pub(crate) use source::Source;

pub(crate) struct Groups {
    cache: Arc<BlockCache>,
    /// The superblock at opening; only for fields that never change.
    superblock: Superblock,
    groups: Box<[OnceLock<Box<Mutex<Group>>>]>,
    /// Sums over the descriptors at the last freeze: no operation updates them.
    frozen_free: Mutex<FreeSums>,
    zone: SystemZone,
    /// Number of inodes that wait for a commit before reuse.
    freed_inodes: AtomicU32,
}

/// One group. Its lock is held for a few bits at a time.
pub(crate) struct Group {
    number: GroupNumber,
    descriptor: GroupDescriptor,
    /// Free counts at the last freeze.
    frozen_free: FreeSums,
    block_bitmap: Option<BitmapBytes>,
    inode_bitmap: Option<BitmapBytes>,
    /// The block of its descriptor, held so that a freeze need not read it, and its offset in it.
    place: (Arc<Block>, usize),
    /// The running transaction, when it has changed the group, and which bitmaps.
    changed_in: Option<TransactionId>,
    blocks_changed: bool,
    inodes_changed: bool,
    /// The allocator has read the block bitmap.
    handed_over: bool,
    /// Without a journal: the inodes that the running transaction has freed. They are not used
    /// again before it has committed.
    freed_inodes: BTreeSet<u32>,
}

impl Groups {
    pub(crate) fn new(
        cache: Arc<BlockCache>,
        superblock: Superblock,
        free: FreeSums,
        zone: SystemZone,
    ) -> Self {
        let count = superblock.layout().groups() as usize;
        Self {
            cache,
            superblock,
            groups: (0..count).map(|_| OnceLock::new()).collect(),
            frozen_free: Mutex::new(free),
            zone,
            freed_inodes: AtomicU32::new(0),
        }
    }

    /// Whether a commit would let inodes be used again.
    pub(crate) fn has_freed_inodes(&self) -> bool {
        self.freed_inodes.load(Ordering::Relaxed) > 0
    }

    /// The blocks that no file can have.
    pub(crate) fn zone(&self) -> &SystemZone {
        &self.zone
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.superblock.layout()
    }

    /// The superblock as it was when the file system was opened.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Free blocks and inodes, as the descriptors had them when the last transaction was frozen.
    pub(crate) fn frozen_free(&self) -> FreeSums {
        *lock(&self.frozen_free)
    }

    /// The group, read now if it was not.
    fn group(&self, number: GroupNumber) -> Result<MutexGuard<'_, Group>> {
        let cell = &self.groups[number.0 as usize];
        if cell.get().is_none() {
            let read = self.read(number)?;
            // Another thread may have been faster, with the same result.
            let _ = cell.set(Box::new(Mutex::new(read)));
        }
        Ok(lock(cell.get().expect("just set")))
    }

    fn read(&self, number: GroupNumber) -> Result<Group> {
        let place = self.layout().descriptor_place(number);
        let held = self.cache.hold(place.block);
        let block = self.cache.read(place.block, &|_| Ok(()))?;
        let byte = place.byte as usize;
        let bytes = &block[byte..];
        let descriptor = GroupDescriptor::parse(bytes, number, &self.superblock)?;
        Ok(Group {
            number,
            frozen_free: FreeSums::of(&descriptor),
            descriptor,
            block_bitmap: None,
            inode_bitmap: None,
            place: (held, byte),
            changed_in: None,
            blocks_changed: false,
            inodes_changed: false,
            handed_over: false,
            freed_inodes: BTreeSet::new(),
        })
    }

    /// The descriptor as of now.
    pub(crate) fn descriptor(&self, number: GroupNumber) -> Result<GroupDescriptor> {
        Ok(self.group(number)?.descriptor)
    }

    /// Writes the changes of a group into its blocks when the transaction is frozen.
    pub(crate) fn freeze(&self, by: &impl Changing, number: GroupNumber) {
        let cell = self.groups[number.0 as usize].get();
        let mut group = lock(cell.expect("a changed group was read"));
        let group = &mut *group;
        let freed = std::mem::take(&mut group.freed_inodes);
        self.freed_inodes
            .fetch_sub(freed.len() as u32, Ordering::Relaxed);
        for (kind, bitmap, changed, place) in [
            (
                Bitmap::Blocks,
                &group.block_bitmap,
                &mut group.blocks_changed,
                group.descriptor.block_bitmap(),
            ),
            (
                Bitmap::Inodes,
                &group.inode_bitmap,
                &mut group.inodes_changed,
                group.descriptor.inode_bitmap(),
            ),
        ] {
            if std::mem::take(changed) {
                let bitmap = bitmap.as_ref().expect("a changed bitmap was read");
                kind.seal(bitmap.bytes(), &mut group.descriptor, &self.superblock);
                self.cache
                    .create(by, place, |block| block.copy_from_slice(bitmap.bytes()));
            }
        }
        let (block, byte) = &group.place;
        self.cache.change_held(by, block, |bytes| {
            let bytes = &mut bytes[*byte..];
            group.descriptor.write(bytes, number, &self.superblock);
        });
        let now = FreeSums::of(&group.descriptor);
        let before = std::mem::replace(&mut group.frozen_free, now);
        let mut sums = lock(&self.frozen_free);
        sums.blocks = sums.blocks + now.blocks - before.blocks;
        sums.inodes = sums.inodes + now.inodes - before.inodes;
    }
}

/// Free blocks and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeSums {
    pub(crate) blocks: u64,
    pub(crate) inodes: u64,
}

impl FreeSums {
    fn of(descriptor: &GroupDescriptor) -> Self {
        Self {
            blocks: descriptor.free_blocks().into(),
            inodes: descriptor.free_inodes().into(),
        }
    }
}

impl Group {
    /// Notes in the running transaction that a bitmap and the descriptor change; before they are.
    fn join(&mut self, transaction: &Transaction<'_>, bitmap: Bitmap) {
        let first = if self.changed_in == Some(transaction.id()) {
            First::No
        } else {
            First::Yes
        };
        if first == First::Yes {
            self.changed_in = Some(transaction.id());
            debug_assert!(!self.blocks_changed && !self.inodes_changed);
        }
        let changed = match bitmap {
            Bitmap::Blocks => &mut self.blocks_changed,
            Bitmap::Inodes => &mut self.inodes_changed,
        };
        let bitmaps = u32::from(!std::mem::replace(changed, true));
        let descriptors = u32::from(first == First::Yes);
        if bitmaps + descriptors > 0 {
            transaction.joined_group(self.number, bitmaps + descriptors, first);
        }
    }

    fn flags(&self, layout: &Layout) -> GroupFlags {
        self.descriptor.flags(layout)
    }

    fn clear_flag(&mut self, flag: GroupFlags, layout: &Layout) {
        let flags = self.flags(layout).difference(flag);
        self.descriptor.set_flags(flags);
    }
}

/// Upper bound of the metadata blocks that a change of block bitmaps in `groups` groups modifies.
pub(crate) const fn group_credits(groups: u32) -> u32 {
    2 * groups
}

/// Blocks of metadata that taking or giving back an inode number touches at most: both bitmaps and
/// the descriptor.
pub(crate) const INODE_CREDITS: u32 = 3;
