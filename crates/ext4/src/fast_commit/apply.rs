//! The effect of each record on inodes and their blocks.
//!
//! The inode in a record is used except for the fields that follow from other records: blocks and
//! their count from ranges, links from names, and the structure of a directory from its names.
//!
//! An inode number may have been freed and reused in between, without a record of the end of the
//! first inode but the removal of its last name. The generation distinguishes them.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_ondisk::ext4::extent::{LOGICAL_END, LeafEntry};
use extant_ondisk::ext4::fast_commit::Change;
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::superblock::JournalPlace;
use extant_ondisk::ext4::{Inode, InodeNumber, RoCompat};
use extant_space::{Corruption, Error, ErrorKind, Result};

use super::names::EarlyName;
use super::space::{Space, Store};
use crate::inode_cell::{InodeCell, InodeState};
use crate::orphan;
use crate::state::FsState;
use crate::sync::{lock, read, write};
use crate::transaction::Transaction;
use crate::tree::{self, Mapping, Tree, TreeMut};

/// Blocks that one step of a tree changes at most, with room.
const STEP_CREDITS: u32 = 32;
/// An inode, its bitmap, and its reference to an attribute block.
const INODE_CREDITS: u32 = 16;

/// Records that are being carried out.
pub(super) struct Apply<'a> {
    pub(super) space: Space<'a>,
    pub(super) touched: BTreeMap<InodeNumber, Touched>,
    /// Names of inodes that are not there yet.
    pub(super) early: Vec<EarlyName>,
}

/// An inode that records are about.
pub(super) struct Touched {
    cell: Arc<InodeCell>,
    /// A record created it with this link count, and no name has been added.
    nameless: Option<u16>,
}

impl<'a> Apply<'a> {
    pub(super) fn new(space: Space<'a>) -> Self {
        Self {
            space,
            touched: BTreeMap::new(),
            early: Vec::new(),
        }
    }

    pub(super) fn fs(&self) -> &'a FsState {
        self.space.fs
    }

    pub(super) fn transaction(&self) -> &'a Transaction<'a> {
        self.space.transaction
    }

    /// Carries out one record.
    pub(super) fn change(&mut self, change: &Change<'_>) -> Result<()> {
        match *change {
            Change::AddRange { inode, extent } => self.add_range(inode, extent),
            Change::DelRange {
                inode,
                start,
                blocks,
            } => {
                let start = u64::from(start.0);
                self.remove_range(inode, start..start + u64::from(blocks))
            }
            Change::Name {
                change,
                parent,
                inode,
                name,
            } => self.name(change, parent, inode, name),
            Change::Inode { inode, bytes } => self.inode(inode, bytes),
        }
    }

    /// Finishes the state that only the last record determines.
    pub(super) fn finish(self) -> Result<()> {
        if let Some(name) = self.early.first() {
            return Err(corrupt(format!(
                "inode {} gets a name and does not exist",
                name.inode
            )));
        }
        for (number, touched) in &self.touched {
            if let Some(links) = touched.nameless.filter(|&links| links > 0) {
                return Err(corrupt(format!(
                    "inode {number} is made with {links} names and gets none"
                )));
            }
        }
        let (fs, transaction) = (self.fs(), self.transaction());
        let dead: Vec<_> = self
            .touched
            .values()
            .map(|touched| &touched.cell)
            .filter(|cell| read(&cell.state).inode.links() == 0)
            .collect();
        // Blocks of a file without a name may belong to another one already, where the kernel does
        // not order data.
        if self.space.has_conflict()? {
            for cell in &dead {
                self.truncate_to(cell, 0..LOGICAL_END)?;
            }
        }
        self.space.settle()?;
        if !dead.is_empty() && lock(&fs.superblock).orphan_file().is_some() {
            lock(&fs.superblock).edit(|raw| {
                let flags = raw.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits();
                raw.s_feature_ro_compat.set(flags);
            })?;
        }
        // The remaining blocks are freed when the file system is opened.
        for cell in dead {
            self.space.reserve(orphan::CREDITS)?;
            fs.add_orphan(transaction, cell);
        }
        Ok(())
    }

    /// An inode that is in use.
    pub(super) fn find(&mut self, number: InodeNumber) -> Result<Option<Arc<InodeCell>>> {
        self.check_number(number)?;
        if let Some(touched) = self.touched.get(&number) {
            return Ok(Some(Arc::clone(&touched.cell)));
        }
        if !self.fs().groups.is_inode_used(number)? {
            return Ok(None);
        }
        let cell = self.fs().inodes.get(number)?;
        self.touch(&cell, None);
        Ok(Some(cell))
    }

    fn touch(&mut self, cell: &Arc<InodeCell>, nameless: Option<u16>) {
        let touched = Touched {
            cell: Arc::clone(cell),
            nameless,
        };
        self.touched.insert(cell.number, touched);
    }

    /// The inode has a name, or had one.
    pub(super) fn has_name(&mut self, number: InodeNumber) {
        if let Some(touched) = self.touched.get_mut(&number) {
            touched.nameless = None;
        }
    }

    /// Refuses the file system's own inodes.
    fn check_number(&self, number: InodeNumber) -> Result<()> {
        let superblock = self.fs().groups.superblock();
        let project_quota = InodeNumber::new(superblock.raw().s_prj_quota_inum.get());
        let is_journal =
            matches!(superblock.journal(), Some(JournalPlace::Inode(journal)) if journal == number);
        let is_reserved = number < self.fs().layout.first_inode() && number != InodeNumber::ROOT;
        let is_own = is_reserved
            || is_journal
            || superblock.orphan_file() == Some(number)
            || project_quota == Some(number);
        if is_own {
            Err(corrupt(format!("inode {number} is the file system's own")))
        } else {
            Ok(())
        }
    }

    fn inode(&mut self, number: InodeNumber, bytes: &[u8]) -> Result<()> {
        self.space.reserve(INODE_CREDITS)?;
        let Some(cell) = self.find(number)? else {
            return self.new_inode(number, bytes);
        };
        let layout = &self.fs().layout;
        let (recorded, is_same, links) = {
            let state = read(&cell.state);
            let recorded = overlaid(&state, number, bytes, self.fs())?.0;
            let is_same = recorded.generation() == state.inode.generation()
                && recorded.mode().file_type() == state.inode.mode().file_type();
            (recorded, is_same, state.inode.links())
        };
        if is_same {
            let mut state = write(&cell.state);
            state.join(&cell, self.transaction());
            let kept = state.inode;
            let (mut inode, slot) = overlaid(&state, number, bytes, self.fs())?;
            if inode.extra_isize() != kept.extra_isize()
                || inode.xattr_block(layout) != kept.xattr_block(layout)
                || inode.flags().contains(InodeFlags::EXTENTS)
                    != kept.flags().contains(InodeFlags::EXTENTS)
            {
                return Err(unsupported(format!(
                    "inode {number} gets another layout, another attribute block, or another kind of map"
                )));
            }
            if inode.is_mapped() {
                *inode.block_area_mut() = *kept.block_area();
            }
            if inode.mode().file_type() == Some(FileType::Directory) {
                inode.set_size_bytes(kept.size_bytes(layout), layout);
                let flags = inode.flags().difference(InodeFlags::INDEX);
                inode.set_flags(flags | (kept.flags() & InodeFlags::INDEX));
            }
            inode.set_links(kept.links());
            inode.set_deletion_word(kept.deletion_word());
            inode.set_sectors(kept.sectors(layout), layout)?;
            (state.inode, state.slot) = (inode, slot);
            return Ok(());
        }
        if links > 0 || recorded.mode().file_type().is_none() {
            return Err(corrupt(format!(
                "inode {number} becomes another one while it has a name"
            )));
        }
        self.end(&cell)?;
        self.new_inode(number, bytes)
    }

    /// The end of an inode without names, whose number is used again.
    fn end(&mut self, cell: &Arc<InodeCell>) -> Result<()> {
        let (fs, transaction) = (self.fs(), self.transaction());
        let file_type = {
            let state = read(&cell.state);
            state.inode.mode().file_type()
        };
        if read(&cell.state)
            .inode
            .flags()
            .contains(InodeFlags::EXTENTS)
        {
            self.truncate_to(cell, 0..LOGICAL_END)?;
        } else if read(&cell.state).inode.is_mapped() {
            return Err(block_mapped(cell.number));
        }
        self.space.reserve(INODE_CREDITS + orphan::CREDITS)?;
        {
            let mut state = write(&cell.state);
            state.join(cell, transaction);
            fs.release_xattr_block(transaction, cell, &mut state)?;
        }
        fs.remove_orphan(transaction, cell, 0)?;
        fs.groups.free_inode(transaction, cell.number, file_type)?;
        self.touched.remove(&cell.number);
        Ok(())
    }

    fn new_inode(&mut self, number: InodeNumber, bytes: &[u8]) -> Result<()> {
        let fs = self.fs();
        let layout = &fs.layout;
        let mut slot: Box<[u8]> = vec![0; layout.inode_bytes().into()].into();
        slot[..bytes.len()].copy_from_slice(bytes);
        let mut inode = Inode::parse(&slot, number, layout, None)?;
        let Some(file_type) = inode.mode().file_type() else {
            return Err(corrupt(format!("inode {number} is made without a type")));
        };
        if inode.xattr_block(layout).is_some() {
            return Err(unsupported(format!(
                "inode {number} is made with an attribute block"
            )));
        }
        let links = inode.links();
        inode.set_links(0);
        inode.set_deletion_word(0);
        inode.set_sectors(0, layout)?;
        if inode.flags().contains(InodeFlags::EXTENTS) {
            tree::init(inode.block_area_mut());
        } else if inode.is_mapped() {
            return Err(block_mapped(number));
        }
        if file_type == FileType::Directory {
            inode.set_size_bytes(0, layout);
            inode.set_flags(inode.flags().difference(InodeFlags::INDEX));
        }
        fs.groups.use_inode(self.transaction(), number, file_type)?;
        let cell = fs.inodes.create(number, inode)?;
        cell.change(self.transaction(), |state| state.slot = slot);
        self.touch(&cell, Some(links));
        self.early_names(number)
    }

    fn add_range(&mut self, number: InodeNumber, extent: LeafEntry) -> Result<()> {
        // The kernel leaves records of deleted files.
        let Some(cell) = self.find(number)? else {
            return Ok(());
        };
        check_extents(&cell)?;
        let range = extent.logical.0.into()..extent.logical_end();
        if self.has_extent(&cell, &extent)? {
            return Ok(());
        }
        self.truncate_to(&cell, range)?;
        self.space.reserve(STEP_CREDITS)?;
        self.with_tree(
            &cell,
            |tree| tree.insert(extent),
            |(), store| {
                store.gain(extent.physical, extent.blocks.into());
            },
        )
    }

    fn has_extent(&self, cell: &Arc<InodeCell>, extent: &LeafEntry) -> Result<bool> {
        let fs = self.fs();
        let state = read(&cell.state);
        let format = fs.tree_format(&state);
        let tree = Tree::new(state.inode.block_area(), &*fs.cache, format);
        let range = extent.logical.0.into()..extent.logical_end();
        let walked = tree.walk(range, |part| match part {
            Mapping::Extent(found)
                if found.kind == extent.kind
                    && found.physical.0.wrapping_sub(found.logical.0.into())
                        == extent.physical.0.wrapping_sub(extent.logical.0.into()) =>
            {
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        })?;
        Ok(walked.is_continue())
    }

    fn remove_range(&mut self, number: InodeNumber, range: Range<u64>) -> Result<()> {
        let Some(cell) = self.find(number)? else {
            return Ok(());
        };
        check_extents(&cell)?;
        self.truncate_to(&cell, range)
    }

    /// Takes blocks from a file.
    fn truncate_to(&self, cell: &Arc<InodeCell>, range: Range<u64>) -> Result<()> {
        if !read(&cell.state)
            .inode
            .flags()
            .contains(InodeFlags::EXTENTS)
        {
            return Ok(());
        }
        let mut rest = Some(range);
        while let Some(range) = rest {
            self.space.reserve(STEP_CREDITS)?;
            let mut lost = Vec::new();
            rest = self.with_tree(
                cell,
                |tree| tree.remove_last(range, &mut |extent| lost.push(extent)),
                |rest, _| rest,
            )?;
            for extent in lost {
                self.count_lost(cell, extent)?;
            }
        }
        Ok(())
    }

    fn count_lost(&self, cell: &Arc<InodeCell>, extent: LeafEntry) -> Result<()> {
        let mut state = write(&cell.state);
        let mut store = Store::new(&self.space);
        store.lose(extent.physical, extent.blocks.into());
        store.settle(&mut state)
    }

    /// Runs one step on the tree of a file, and updates its counts.
    pub(super) fn with_tree<T, U>(
        &self,
        cell: &Arc<InodeCell>,
        step: impl FnOnce(&mut TreeMut<'_, Store<'_, 'a>>) -> Result<T>,
        after: impl FnOnce(T, &mut Store<'_, 'a>) -> U,
    ) -> Result<U> {
        with_tree(&self.space, cell, step, after)
    }
}

/// The same, for callers that have only the space.
pub(super) fn with_tree<'a, T, U>(
    space: &Space<'a>,
    cell: &Arc<InodeCell>,
    step: impl FnOnce(&mut TreeMut<'_, Store<'_, 'a>>) -> Result<T>,
    after: impl FnOnce(T, &mut Store<'_, 'a>) -> U,
) -> Result<U> {
    let fs = space.fs;
    let mut state = write(&cell.state);
    state.join(cell, space.transaction);
    let format = fs.tree_format(&state);
    let mut store = Store::new(space);
    let mut tree = TreeMut::new(state.tree_area(), &mut store, format);
    let done = step(&mut tree)?;
    let done = after(done, &mut store);
    store.settle(&mut state)?;
    Ok(done)
}

/// The inode with the fields of a record, and its slot.
fn overlaid(
    state: &InodeState,
    number: InodeNumber,
    bytes: &[u8],
    fs: &FsState,
) -> Result<(Inode, Box<[u8]>)> {
    let mut slot = state.slot.clone();
    state.inode.write(&mut slot, number, &fs.layout, None);
    slot[..bytes.len()].copy_from_slice(bytes);
    let inode = Inode::parse(&slot, number, &fs.layout, None)?;
    Ok((inode, slot))
}

fn check_extents(cell: &InodeCell) -> Result<()> {
    let number = cell.number;
    let state = read(&cell.state);
    match state.inode.mode().file_type() {
        Some(FileType::Regular | FileType::SymbolicLink) => {}
        _ => return Err(corrupt(format!("inode {number} is no file with blocks"))),
    }
    if state.inode.flags().contains(InodeFlags::EXTENTS) {
        Ok(())
    } else {
        Err(block_mapped(number))
    }
}

pub(super) fn block_mapped(number: InodeNumber) -> Error {
    unsupported(format!(
        "inode {number} keeps its blocks as ext2 does, without extents"
    ))
}

pub(super) fn unsupported(detail: String) -> Error {
    Error::new(ErrorKind::Unsupported).detail(detail)
}

pub(super) fn corrupt(detail: String) -> Error {
    Error::corrupt(Corruption::other("fast commit", detail.clone()), detail)
}
