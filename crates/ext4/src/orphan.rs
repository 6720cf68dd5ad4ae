//! Orphans: inodes whose work a crash would leave unfinished. Files that have lost their last name
//! and are still open, and files that are truncated in several transactions.
//!
//! Model: they are recorded in the orphan file if there is one, else (and when that is full) in a
//! list that begins in the superblock and continues through `i_dtime`. The next opening frees those
//! without a name and truncates the others to their size.
//!
//! Recording an inode cannot fail, because it is part of changes that are half done by then:
//! entries that a damaged orphan file does not accept are added to the list. Records on the disk
//! are untrusted: an impossible entry, and an orphan whose blocks cannot be found, are removed on
//! opening, and the damage is recorded in the superblock. The blocks stay in use until e2fsck frees
//! them.
//!
//! Invariant: the list in memory is the one that the next commit writes to the disk.
//!
//! Format: docs/formats/ext4.md, "Orphan file". Lock order: this lock is between transaction and
//! state.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_ondisk::ext4::orphan as disk;
use extant_ondisk::ext4::{InodeNumber, InodeSeed, PhysicalBlock, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::engine::Engine;
use crate::inode_cell::InodeCell;
use crate::orphan_list::{OrphanPlace, OrphanRecords};
use crate::state::FsState;
use crate::sync::{lock, read};
use crate::time;
use crate::transaction::{INODE_CREDITS, Transaction};

/// Blocks of metadata that noting or striking out an orphan touches at most: the block of the
/// orphan file, or the inode itself and its neighbour in the list.
pub(crate) const CREDITS: u32 = 2;

/// The orphans on the disk.
pub(crate) struct FoundOrphans {
    cells: Vec<Arc<InodeCell>>,
    wrong: Vec<WrongOrphan>,
}

/// An entry that no orphan can have.
struct WrongOrphan {
    place: OrphanPlace,
    error: Error,
}

impl FsState {
    /// Notes an inode, in the transaction that makes it an orphan. Does nothing when it is one.
    pub(crate) fn add_orphan(&self, transaction: &Transaction<'_>, cell: &Arc<InodeCell>) {
        let mut inner = lock(&self.orphans.inner);
        if inner.places.contains_key(&cell.number) {
            return;
        }
        transaction.mark_ineligible();
        if let Some(place) = self.add_to_orphan_file(&mut inner, transaction, cell.number) {
            inner.places.insert(cell.number, place);
            return;
        }
        let mut superblock = lock(&self.superblock);
        let next = superblock.last_orphan().map_or(0, |number| number.0);
        cell.change(transaction, |state| state.inode.set_deletion_word(next));
        self.set_first_orphan(&mut superblock, Some(cell.number));
        inner.list.push(Arc::clone(cell));
        inner.places.insert(cell.number, OrphanPlace::List);
    }

    /// Records an inode in the first block of the orphan file with room.
    fn add_to_orphan_file(
        &self,
        inner: &mut OrphanRecords,
        transaction: &Transaction<'_>,
        number: InodeNumber,
    ) -> Option<OrphanPlace> {
        let seed = inner.seed;
        while let Some(index) = inner.file.iter().position(|block| block.free > 0) {
            let block = &mut inner.file[index];
            let place = block.place;
            let slot = self.change_orphan_block(transaction, place, seed, |bytes| {
                let (words, _) = bytes.as_chunks::<4>();
                let slots = disk::slots(bytes.len() as u32);
                let slot = words[..slots].iter().position(|word| *word == [0; 4]);
                slot.inspect(|&slot| disk::set(bytes, slot, Some(number)))
            });
            let error = match slot {
                Ok(Some(slot)) => {
                    block.free -= 1;
                    return Some(OrphanPlace::File { block: index, slot });
                }
                Ok(None) => {
                    Error::new(ErrorKind::Corrupt).detail(format!("orphan block {place} is full"))
                }
                Err(error) => error,
            };
            // It is not asked again.
            block.free = 0;
            self.note_error(&error);
        }
        None
    }

    /// Removes an inode's entry, in the transaction that finishes its work. `deletion` is the new
    /// `i_dtime`.
    pub(crate) fn remove_orphan(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        deletion: u32,
    ) -> Result<()> {
        self.strike_out(&mut lock(&self.orphans.inner), transaction, cell, deletion)
    }

    /// Removes the entry of an inode without blocks left to truncate, unless it has no name either.
    pub(crate) fn remove_cut_orphan(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
    ) -> Result<()> {
        // Under the lock: a later removal of the last name finds the entry cleared, and adds it
        // again.
        let mut inner = lock(&self.orphans.inner);
        let has_name = read(&cell.state).inode.links() > 0;
        if has_name {
            self.strike_out(&mut inner, transaction, cell, 0)
        } else {
            Ok(())
        }
    }

    fn strike_out(
        &self,
        inner: &mut OrphanRecords,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        deletion: u32,
    ) -> Result<()> {
        let Some(&place) = inner.places.get(&cell.number) else {
            return Ok(());
        };
        transaction.mark_ineligible();
        match place {
            OrphanPlace::File { block, slot } => {
                self.clear_slot(inner, transaction, block, slot)?
            }
            OrphanPlace::List => {
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
        inner.places.remove(&cell.number);
        cell.change(transaction, |state| state.inode.set_deletion_word(deletion));
        Ok(())
    }

    fn clear_slot(
        &self,
        inner: &mut OrphanRecords,
        transaction: &Transaction<'_>,
        block: usize,
        slot: usize,
    ) -> Result<()> {
        let seed = inner.seed;
        let file = &mut inner.file[block];
        self.change_orphan_block(transaction, file.place, seed, |bytes| {
            disk::set(bytes, slot, None);
        })?;
        file.free += 1;
        Ok(())
    }

    /// Removes an entry that no orphan can have; the list ends there.
    fn strike_out_wrong(&self, transaction: &Transaction<'_>, place: OrphanPlace) -> Result<()> {
        transaction.mark_ineligible();
        let mut inner = lock(&self.orphans.inner);
        match place {
            OrphanPlace::File { block, slot } => {
                self.clear_slot(&mut inner, transaction, block, slot)
            }
            OrphanPlace::List => {
                match inner.list.first() {
                    Some(last) => {
                        last.change(transaction, |state| state.inode.set_deletion_word(0));
                    }
                    None => self.set_first_orphan(&mut lock(&self.superblock), None),
                }
                Ok(())
            }
        }
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
        let validate = |bytes: &[u8]| disk::verify(bytes, place, seed);
        self.cache.change(transaction, place, &validate, |bytes| {
            let result = change(bytes);
            disk::seal(bytes, place, seed);
            result
        })
    }
}

impl Engine {
    /// Completes the work that was unfinished when the file system was last in use, as the damage
    /// permits.
    pub(crate) fn clear_orphans(&self) -> Result<()> {
        let found = self.fs.find_orphans()?;
        let mut damage = Vec::new();
        for WrongOrphan { place, error } in found.wrong {
            let transaction = self.begin(CREDITS)?;
            self.fs.strike_out_wrong(&transaction, place)?;
            damage.push(error);
        }
        for cell in found.cells {
            let links = read(&cell.state).inode.links();
            let done = match links {
                0 => self.delete(&cell),
                _ => self.finish_cut(&cell),
            };
            match done {
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    // It would be found again each time.
                    let deletion = match links {
                        0 => time::last_tick().seconds as u32,
                        _ => 0,
                    };
                    let transaction = self.begin(INODE_CREDITS + CREDITS)?;
                    self.fs.remove_orphan(&transaction, &cell, deletion)?;
                    damage.push(error);
                }
                // It remains for the next opening.
                Err(error) => self.fs.orphans.note_failure(&cell, &error),
                Ok(()) => {}
            }
        }
        // At last, as changes may be refused from then on.
        for error in damage {
            let _ = self.record_corruption::<()>(Err(error));
        }
        Ok(())
    }
}

impl FsState {
    /// The orphans on the disk, which are noted in memory by that.
    ///
    /// # Errors
    /// `Corrupt` for a damaged block of the orphan file; those of the device.
    pub(crate) fn find_orphans(&self) -> Result<FoundOrphans> {
        let mut inner = lock(&self.orphans.inner);
        let inner = &mut *inner;
        let mut cells = Vec::new();
        let mut wrong = Vec::new();
        let seed = inner.seed;
        for (index, block) in inner.file.iter_mut().enumerate() {
            let place = block.place;
            let bytes = self
                .cache
                .read(place, &|bytes| disk::verify(bytes, place, seed))?;
            block.free = disk::slots(bytes.len() as u32) as u32;
            let (words, _) = bytes.as_chunks::<4>();
            let slots = words.iter().take(disk::slots(bytes.len() as u32));
            for (slot, word) in slots.enumerate() {
                let Some(number) = InodeNumber::new(u32::from_le_bytes(*word)) else {
                    continue;
                };
                block.free -= 1;
                let place = OrphanPlace::File { block: index, slot };
                match self.found_orphan(&mut inner.places, number, place)? {
                    Ok(cell) => cells.push(cell),
                    Err(error) => wrong.push(WrongOrphan { place, error }),
                }
            }
        }
        let mut next = lock(&self.superblock).last_orphan();
        let mut list = Vec::new();
        while let Some(number) = next {
            let place = OrphanPlace::List;
            match self.found_orphan(&mut inner.places, number, place)? {
                Ok(cell) => {
                    next = InodeNumber::new(read(&cell.state).inode.deletion_word());
                    list.push(cell);
                }
                Err(error) => {
                    wrong.push(WrongOrphan { place, error });
                    break;
                }
            }
        }
        cells.extend(list.iter().cloned());
        list.reverse();
        inner.list = list;
        Ok(FoundOrphans { cells, wrong })
    }

    /// Records in memory the inode of an entry, or its error.
    fn found_orphan(
        &self,
        places: &mut HashMap<InodeNumber, OrphanPlace>,
        number: InodeNumber,
        place: OrphanPlace,
    ) -> Result<Result<Arc<InodeCell>>> {
        let wrong = |what: &str| {
            let detail = format!("inode {number} is among the orphans, {what}");
            Error::new(ErrorKind::Corrupt)
                .detail(detail)
                .advice("check the file system")
        };
        if number < self.layout.first_inode() || number.0 > self.layout.inodes() {
            return Ok(Err(wrong("which is no inode of a file")));
        }
        if places.contains_key(&number) {
            return Ok(Err(wrong("twice")));
        }
        let used = self.groups.is_inode_used(number);
        let found = used.and_then(|used| {
            if used {
                self.inodes.get(number)
            } else {
                Err(Error::new(ErrorKind::NotFound))
            }
        });
        match found {
            Ok(cell) => {
                places.insert(number, place);
                Ok(Ok(cell))
            }
            Err(error) => match error.kind() {
                ErrorKind::NotFound => Ok(Err(wrong("which is not in use"))),
                ErrorKind::Corrupt => Ok(Err(error)),
                _ => Err(error),
            },
        }
    }
}
