//! All inodes in use, in the order of their tables.

use std::ops::ControlFlow;

use extant_ondisk::ext4::extent::{ExtentKind, LOGICAL_END};
use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::{Access, GroupNumber, Inode, InodeNumber, PhysicalBlock};
use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState, Result};

use crate::filesystem::Filesystem;
use crate::mapping;
use crate::state::FsState;
use crate::tree::{Mapping, TreeFormat};

/// Bytes of a table that are read at a time.
const TABLE_WINDOW: u32 = 1 << 20;

/// An inode of a pass over all of them.
pub struct FoundInode<'a> {
    /// Its number.
    pub number: InodeNumber,
    /// The stored inode.
    pub inode: Inode,
    fs: &'a FsState,
}

impl Filesystem {
    /// Visits every inode in use, including those of the file system itself, until `visit` breaks.
    /// An invalid inode is passed as an error, and the pass continues.
    ///
    /// # Errors
    /// `Corrupt` for descriptors and bitmaps; errors of the device.
    pub fn for_each_inode(
        &self,
        visit: &mut dyn FnMut(Result<FoundInode<'_>>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.sync()?;
        let fs = &*self.engine.fs;
        for group in (0..fs.layout.groups()).map(GroupNumber) {
            if self
                .engine
                .record_corruption(fs.visit_group(group, visit))?
                .is_break()
            {
                break;
            }
        }
        Ok(())
    }
}

impl FoundInode<'_> {
    /// Visits the extents of its blocks in order, without holes; none where `i_block` holds
    /// something else.
    ///
    /// # Errors
    /// `Corrupt` naming the node of the tree; those of the device.
    pub fn for_each_extent(&self, visit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let Self { inode, fs, .. } = self;
        if !has_blocks(inode) {
            return Ok(());
        }
        let seed = fs.seed.map(|seed| inode.seed(seed, self.number));
        let bits = fs.layout.block_bits();
        let all = 0..LOGICAL_END;
        let format = TreeFormat {
            layout: &fs.layout,
            seed,
            off_limits: fs.groups.zone().for_inode(self.number),
        };
        let _ = mapping::walk(inode, &fs.cache, format, all, |part| match part {
            Mapping::Hole(_) => ControlFlow::Continue(()),
            Mapping::Extent(found) => visit(Extent {
                logical: ByteRange::new(
                    u64::from(found.logical.0) << bits,
                    found.logical_end() << bits,
                ),
                physical: Some(found.physical.0 << bits),
                state: match found.kind {
                    ExtentKind::Written => ExtentState::Written,
                    ExtentKind::Unwritten => ExtentState::Unwritten,
                },
                flags: ExtentFlags::empty(),
            }),
        })?;
        Ok(())
    }
}

/// Whether `i_block` maps blocks.
fn has_blocks(inode: &Inode) -> bool {
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    match inode.mode().file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::SymbolicLink) => inode.short_link_target().is_none(),
        _ => false,
    }
}

impl FsState {
    fn visit_group(
        &self,
        group: GroupNumber,
        visit: &mut dyn FnMut(Result<FoundInode<'_>>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        let layout = &self.layout;
        let descriptor = self.groups.descriptor(group)?;
        if descriptor.free_inodes() == layout.inodes_per_group() {
            return Ok(ControlFlow::Continue(()));
        }
        let used = self.groups.inode_bitmap_now(group)?;
        let per_block = layout.inodes_per_block();
        let window = TABLE_WINDOW / layout.block_bytes();
        let blocks = layout.inode_table_blocks();
        for first in (0..blocks).step_by(window as usize) {
            let inodes =
                first * per_block..((first + window) * per_block).min(layout.inodes_per_group());
            if used.is_all(inodes.clone(), false) {
                continue;
            }
            let count = window.min(blocks - first);
            let table = PhysicalBlock(descriptor.inode_table().0 + u64::from(first));
            let bytes = self.table_blocks(table, count)?;
            let size = usize::from(layout.inode_bytes());
            for index in inodes.filter(|&index| used.is_set(index)) {
                let number = layout.inode_at(group, index);
                let slot = (index - first * per_block) as usize;
                // Inodes do not cross blocks, and blocks are multiples of the inode size.
                let parsed = Inode::parse(&bytes[slot * size..][..size], number, layout, self.seed);
                let found = parsed.map(|inode| FoundInode {
                    number,
                    inode,
                    fs: self,
                });
                // Reserved and never made, or an orphan of the list.
                if found.as_ref().is_ok_and(|found| found.inode.is_unused()) {
                    continue;
                }
                if visit(found).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Blocks of a table. Past the cache, unless something may have changed that is not on the
    /// device.
    fn table_blocks(&self, first: PhysicalBlock, count: u32) -> Result<Vec<u8>> {
        let size = self.layout.block_bytes() as usize;
        let mut bytes = vec![0; count as usize * size];
        if self.options.access == Access::ReadWrite {
            for (number, into) in (first.0..).zip(bytes.chunks_exact_mut(size)) {
                let block = self.cache.read(PhysicalBlock(number), &|_| Ok(()))?;
                into.copy_from_slice(&block);
            }
        } else {
            let start = self.layout.bytes_of(first).start();
            crate::io::read(&*self.device, start, &mut bytes)?;
        }
        Ok(bytes)
    }
}
