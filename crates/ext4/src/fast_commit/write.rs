//! Writing fast commits: the records of the changes since the last commit.
//!
//! Order, as in the kernel: names in the order of their changes, a new inode before its name; then
//! the other inodes, each with its ranges before its fields. A range is recorded in its current
//! state: mapped blocks, and holes. The whole slot of an inode is recorded, so that nothing of an
//! earlier inode remains.
//!
//! Directories are recorded by their names alone, because every replay rebuilds the blocks. An
//! inode without links is not recorded, because Linux 6.18 does not mount a file system with such a
//! record; the removal of its last name is not recorded either, but committed in full.
//!
//! Two restrictions are due to e2fsck 1.47.0:
//! - It replays with bitmaps that do not contain the blocks that records assign to files, and could
//!   allocate these for tree nodes. So no transaction has fast commits with both.
//! - It reads the journal's inode before the log, and writes other inodes of that block back with
//!   old neighbours. So that block is checkpointed before it is recorded. The same holds for the
//!   superblock after a change of its orphan list: e2fsck writes back the fields that the records
//!   change, and a checksum over the list as it was before the replay.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_jbd2::FastCommitSpace;
use extant_ondisk::ext4::extent::ExtentNode;
use extant_ondisk::ext4::fast_commit::{Change, CommitWriter, NameChange, Position};
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::superblock::JournalPlace;
use extant_ondisk::ext4::{InodeNumber, LogicalBlock, PhysicalBlock};

use crate::commit_notes::Noted;
use crate::inode_cell::InodeCell;
use crate::mapping;
use crate::state::FsState;
use crate::sync::{read, write};
use crate::tree::Mapping;

/// Bytes of a record besides an inode's own.
const RECORD_BYTES: usize = 16;

impl FsState {
    /// The changes since the last commit, as blocks for the journal. `None` if the transaction is
    /// ineligible, or the records do not fit. No transaction is open.
    pub(crate) fn fast_commit(&self, space: &FastCommitSpace) -> Option<Vec<u8>> {
        let notes = &self.running.notes;
        if notes.is_ineligible() {
            return None;
        }
        let noted = notes.take();
        let said = self.say(&noted, space);
        noted.clear_ranges();
        said
    }

    fn say(&self, noted: &Noted, space: &FastCommitSpace) -> Option<Vec<u8>> {
        let position = match space.used {
            0 => Position::First,
            _ => Position::Later,
        };
        let mut commit = Commit {
            fs: self,
            space,
            writer: CommitWriter::new(space.block_bytes, space.sequence, position),
            is_empty: true,
            beside_journal: None,
        };
        let current = noted
            .inodes
            .iter()
            .filter(|cell| self.inodes.is_current(cell));
        let mut inodes: BTreeMap<InodeNumber, &Arc<InodeCell>> =
            current.map(|cell| (cell.number, cell)).collect();
        for name in &noted.names {
            if name.change == NameChange::Create {
                let cell = inodes.remove(&name.inode)?;
                commit.fields(cell)?;
                commit.ranges(cell)?;
            }
            commit.push(&Change::Name {
                change: name.change,
                parent: name.parent,
                inode: name.inode,
                name: &name.name,
            })?;
        }
        for cell in inodes.values() {
            let (file_type, links) = {
                let state = read(&cell.state);
                (state.inode.mode().file_type(), state.inode.links())
            };
            if links > 0 && file_type != Some(FileType::Directory) {
                commit.ranges(cell)?;
                commit.fields(cell)?;
            }
        }
        if self.running.notes.has_nodes_and_new_blocks() {
            return None;
        }
        if let Some(block) = commit.beside_journal {
            self.cache.bring_home(block).ok()?;
        }
        if !commit.is_empty && self.orphans.take_head_changed() {
            self.cache.bring_home(self.superblock_place()).ok()?;
        }
        Some(if commit.is_empty {
            Vec::new()
        } else {
            commit.writer.finish()
        })
    }
}

struct Commit<'a> {
    fs: &'a FsState,
    space: &'a FastCommitSpace,
    writer: CommitWriter,
    is_empty: bool,
    /// The block of the journal's inode, if another inode in it is recorded.
    beside_journal: Option<PhysicalBlock>,
}

impl Commit<'_> {
    fn push(&mut self, change: &Change<'_>) -> Option<()> {
        self.is_empty = false;
        self.writer.push(change);
        (self.writer.blocks() <= self.space.left as usize).then_some(())
    }

    fn fields(&mut self, cell: &InodeCell) -> Option<()> {
        let fs = self.fs;
        let slot = {
            let state = read(&cell.state);
            if !state.inode.flags().contains(InodeFlags::EXTENTS) {
                return None;
            }
            let mut slot = state.slot.clone();
            state
                .inode
                .write(&mut slot, cell.number, &fs.layout, fs.seed);
            slot
        };
        if self.is_beside_journal(cell) {
            self.beside_journal = cell.place.block.freeze().map(|(block, _)| block);
        }
        if slot.len() + RECORD_BYTES > self.space.block_bytes as usize {
            return None;
        }
        self.push(&Change::Inode {
            inode: cell.number,
            bytes: &slot,
        })
    }

    fn is_beside_journal(&self, cell: &InodeCell) -> bool {
        let layout = &self.fs.layout;
        let place = |number| {
            let place = layout.locate_inode(number).ok()?;
            Some((place.group, place.table_block))
        };
        match self.fs.groups.superblock().journal() {
            Some(JournalPlace::Inode(journal)) => place(journal) == place(cell.number),
            _ => false,
        }
    }

    fn ranges(&mut self, cell: &InodeCell) -> Option<()> {
        let ranges = {
            let mut state = write(&cell.state);
            let ranges = state.touched.take();
            let root = ExtentNode::parse_root(state.inode.block_area(), &self.fs.layout);
            if !ranges.is_empty() && root.is_ok_and(|root| root.depth() > 0) {
                self.fs.running.notes.nodes();
            }
            ranges
        };
        for range in ranges {
            self.range(cell, range)?;
        }
        Some(())
    }

    fn range(&mut self, cell: &InodeCell, range: Range<u64>) -> Option<()> {
        let fs = self.fs;
        let state = read(&cell.state);
        if !state.inode.flags().contains(InodeFlags::EXTENTS) {
            return None;
        }
        let inode = cell.number;
        let walked = mapping::walk(
            &state.inode,
            &fs.cache,
            fs.tree_format(&state),
            range,
            |part| {
                let said = match part {
                    Mapping::Extent(extent) => self.push(&Change::AddRange { inode, extent }),
                    Mapping::Hole(hole) => self.push(&Change::DelRange {
                        inode,
                        start: LogicalBlock(hole.start as u32),
                        // The last block that a file can have is below 2^32.
                        blocks: (hole.end - hole.start) as u32,
                    }),
                };
                match said {
                    Some(()) => ControlFlow::Continue(()),
                    None => ControlFlow::Break(()),
                }
            },
        );
        // A read error is reported to the next reader.
        matches!(walked, Ok(ControlFlow::Continue(()))).then_some(())
    }
}
