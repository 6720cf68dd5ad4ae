//! Orphans: inodes of which a crash would leave work undone. Files that have lost their last name and are still
//! open, and files that are being cut in several transactions.
//!
//! Model: they are noted in the orphan file where there is one, else (and when that is full) in a list that begins in
//! the superblock and goes on through `i_dtime`. Who opens the file system next frees those without a name and
//! cuts the others to their size.
//!
//! Invariant: what is noted in memory is what the next commit will have on the disk.
//!
//! Format: docs/formats/ext4.md, "Orphan file". Lock order: this lock comes after transaction and before state.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use extant_ondisk::ext4::orphan as disk;
use extant_ondisk::ext4::{InodeNumber, InodeSeed, PhysicalBlock, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::filesystem::{Core, Parts};
use crate::inode::InodeCell;
use crate::sync::{lock, read};
use crate::transaction::Transaction;

/// Blocks of metadata that noting or striking out an orphan touches at most: the block of the orphan file, or the
/// inode itself and its neighbour in the list.
pub(crate) const CREDITS: u32 = 2;

#[derive(Default)]
pub(crate) struct Orphans {
    inner: Mutex<Inner>,
    /// The first of the list has changed since the superblock was last brought home.
    head_changed: AtomicBool,
}

#[derive(Default)]
struct Inner {
    file: Vec<FileBlock>,
    /// Where checksums of the orphan file begin.
    seed: Option<InodeSeed>,
    /// Where each orphan is noted.
    places: HashMap<InodeNumber, Place>,
    /// Those of the list, the first of it at the end.
    list: Vec<Arc<InodeCell>>,
}

struct FileBlock {
    place: PhysicalBlock,
    free: u32,
}

#[derive(Clone, Copy)]
enum Place {
    File { block: usize, slot: usize },
    List,
}

impl Orphans {
    /// With an orphan file, whose blocks are `blocks`, where there is one.
    pub(crate) fn new(blocks: &[PhysicalBlock], seed: Option<InodeSeed>) -> Self {
        let file = blocks.iter().map(|&place| FileBlock { place, free: 0 });
        Self {
            inner: Mutex::new(Inner {
                file: file.collect(),
                seed,
                ..Inner::default()
            }),
            head_changed: AtomicBool::new(false),
        }
    }

    /// Whether the first of the list may be another one in the log than in the superblock's own place; it is not from
    /// now on.
    pub(crate) fn take_head_changed(&self) -> bool {
        self.head_changed.swap(false, Ordering::Relaxed)
    }

    /// Whether nothing is noted.
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.inner).places.is_empty()
    }
}

impl Parts {
    /// Notes an inode, in the transaction that makes it an orphan. Does nothing when it is one.
    pub(crate) fn add_orphan(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
    ) -> Result<()> {
        let mut inner = lock(&self.orphans.inner);
        if inner.places.contains_key(&cell.number) {
            return Ok(());
        }
        transaction.forbid_fast_commit();
        let seed = inner.seed;
        let free = inner.file.iter().position(|block| block.free > 0);
        if let Some(index) = free {
            let block = &mut inner.file[index];
            let place = block.place;
            let slot = self.change_orphan_block(transaction, place, seed, |bytes| {
                let (words, _) = bytes.as_chunks::<4>();
                let slots = disk::slots(bytes.len() as u32);
                let slot = words[..slots].iter().position(|word| *word == [0; 4]);
                slot.inspect(|&slot| disk::set(bytes, slot, Some(cell.number)))
            })?;
            let slot = slot.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt).detail(format!("orphan block {place} is full"))
            })?;
            block.free -= 1;
            let noted = Place::File { block: index, slot };
            inner.places.insert(cell.number, noted);
            return Ok(());
        }
        let mut superblock = lock(&self.superblock);
        let next = superblock.last_orphan().map_or(0, |number| number.0);
        cell.change(transaction, |state| state.inode.set_deletion_word(next));
        self.set_first_orphan(&mut superblock, Some(cell.number));
        inner.list.push(Arc::clone(cell));
        inner.places.insert(cell.number, Place::List);
        Ok(())
    }

    /// Strikes an inode out, in the transaction that does the last of its work. `deletion` is what its `i_dtime` becomes.
    pub(crate) fn remove_orphan(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        deletion: u32,
    ) -> Result<()> {
        self.strike_out(&mut lock(&self.orphans.inner), transaction, cell, deletion)
    }

    /// Strikes an inode out of which nothing is left to be cut, unless it has no name either.
    pub(crate) fn remove_cut_orphan(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
    ) -> Result<()> {
        // Under the lock: who takes the last name away from now on finds it struck out, and notes it again.
        let mut inner = lock(&self.orphans.inner);
        let has_name = read(&cell.state).inode.links() > 0;
        match has_name {
            true => self.strike_out(&mut inner, transaction, cell, 0),
            false => Ok(()),
        }
    }

    fn strike_out(
        &self,
        inner: &mut Inner,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        deletion: u32,
    ) -> Result<()> {
        if inner.places.contains_key(&cell.number) {
            transaction.forbid_fast_commit();
        }
        match inner.places.remove(&cell.number) {
            None => return Ok(()),
            Some(Place::File { block, slot }) => {
                let seed = inner.seed;
                let file = &mut inner.file[block];
                self.change_orphan_block(transaction, file.place, seed, |bytes| {
                    disk::set(bytes, slot, None);
                })?;
                file.free += 1;
            }
            Some(Place::List) => {
                let at = inner
                    .list
                    .iter()
                    .position(|other| other.number == cell.number)
                    .expect("a noted orphan is in the list");
                inner.list.remove(at);
                let next = at.checked_sub(1).map(|next| inner.list[next].number);
                match inner.list.get(at) {
                    Some(before) => before.change(transaction, |state| {
                        let next = next.map_or(0, |number| number.0);
                        state.inode.set_deletion_word(next);
                    }),
                    None => self.set_first_orphan(&mut lock(&self.superblock), next),
                }
            }
        }
        cell.change(transaction, |state| state.inode.set_deletion_word(deletion));
        Ok(())
    }

    fn set_first_orphan(&self, superblock: &mut Superblock, number: Option<InodeNumber>) {
        self.orphans.head_changed.store(true, Ordering::Relaxed);
        superblock.set_last_orphan(number);
    }

    fn change_orphan_block<T>(
        &self,
        transaction: &Transaction<'_>,
        place: PhysicalBlock,
        seed: Option<InodeSeed>,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        let judge = |bytes: &[u8]| disk::verify(bytes, place, seed);
        self.cache.change(transaction, place, &judge, |bytes| {
            let result = change(bytes);
            disk::seal(bytes, place, seed);
            result
        })
    }
}

impl Core {
    /// Finishes what was left undone when the file system was last in use.
    pub(crate) fn clear_orphans(&self) -> Result<()> {
        for cell in self.parts.find_orphans()? {
            let links = read(&cell.state).inode.links();
            match links {
                0 => self.delete(&cell)?,
                _ => self.finish_cut(&cell)?,
            }
        }
        Ok(())
    }
}

impl Parts {
    /// The orphans on the disk, which are noted in memory by that.
    pub(crate) fn find_orphans(&self) -> Result<Vec<Arc<InodeCell>>> {
        let mut inner = lock(&self.orphans.inner);
        let inner = &mut *inner;
        let mut found = Vec::new();
        let seed = inner.seed;
        for (index, block) in inner.file.iter_mut().enumerate() {
            let place = block.place;
            let bytes = self
                .cache
                .read(place, &|bytes| disk::verify(bytes, place, seed))?;
            block.free = disk::slots(bytes.len() as u32) as u32;
            for orphan in disk::orphans(&bytes, &self.layout) {
                let (slot, number) = orphan?;
                block.free -= 1;
                found.push(self.inodes.get(number)?);
                let noted = Place::File { block: index, slot };
                if inner.places.insert(number, noted).is_some() {
                    return Err(twice(number));
                }
            }
        }
        let mut next = lock(&self.superblock).last_orphan();
        let mut list = Vec::new();
        while let Some(number) = next {
            let cell = self.inodes.get(number)?;
            next = InodeNumber::new(read(&cell.state).inode.deletion_word());
            if inner.places.insert(number, Place::List).is_some() {
                return Err(twice(number));
            }
            list.push(cell);
        }
        found.extend(list.iter().cloned());
        list.reverse();
        inner.list = list;
        Ok(found)
    }
}

fn twice(number: InodeNumber) -> Error {
    Error::new(ErrorKind::Corrupt)
        .detail(format!("inode {number} is twice among the orphans"))
        .advice("check the file system")
}
