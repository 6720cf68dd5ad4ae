//! The blocks of the file system's own metadata: superblocks and descriptors, bitmaps, inode
//! tables, the journal.
//!
//! A damaged inode may refer to some of them. Reading them is harmless, but writing to such a file,
//! or freeing its blocks, would destroy the file system. So references from the disk are compared
//! with this list once: those of an inode and of a tree node when they are read. Allocations are
//! right if the bitmaps are, and are compared as well.
//!
//! Model: sorted ranges with gaps between them. It never changes while a file system is open.

use std::ops::Range;

use extant_jbd2::JournalLocation;
use extant_ondisk::ext4::extent::ExtentNode;
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::superblock::JournalPlace;
use extant_ondisk::ext4::{
    GroupDescriptor, GroupNumber, Inode, InodeNumber, Layout, PhysicalBlock, Superblock,
};
use extant_space::{Error, ErrorKind, Result};

/// Inodes of `ext2` to `ext4` whose blocks are the file system's by design: bad blocks, and
/// reserved descriptor blocks.
const RESERVED: [InodeNumber; 2] = [InodeNumber(1), InodeNumber(7)];

#[derive(Debug, Default)]
pub(crate) struct SystemZone {
    ranges: Box<[Range<u64>]>,
    journal: Option<InodeNumber>,
}

/// The zone, for one inode.
#[derive(Clone, Copy)]
pub(crate) struct OffLimits<'a> {
    pub(crate) zone: &'a SystemZone,
    pub(crate) inode: InodeNumber,
}

/// A zone that is being made from descriptors in their order.
#[derive(Default)]
pub(crate) struct ZoneBuilder {
    /// By kind: with `flex_bg`, those of many groups are adjacent.
    sorts: [Vec<Range<u64>>; 4],
}

impl ZoneBuilder {
    pub(crate) fn add_group(
        &mut self,
        group: GroupNumber,
        descriptor: &GroupDescriptor,
        layout: &Layout,
    ) {
        let blocks = [
            (
                layout.first_block(group),
                u64::from(layout.fixed_blocks(group)),
            ),
            (descriptor.block_bitmap(), 1),
            (descriptor.inode_bitmap(), 1),
            (descriptor.inode_table(), layout.inode_table_blocks().into()),
        ];
        for (sort, (start, count)) in self.sorts.iter_mut().zip(blocks) {
            push(sort, start.0..start.0 + count);
        }
    }

    /// Adds the zones of the groups right behind these.
    pub(crate) fn append(&mut self, next: Self) {
        for (sort, more) in self.sorts.iter_mut().zip(next.sorts) {
            more.into_iter().for_each(|range| push(sort, range));
        }
    }

    /// The zone, including the journal.
    ///
    /// # Errors
    /// `Corrupt` if the journal overlaps other metadata.
    pub(crate) fn finish(
        self,
        superblock: &Superblock,
        journal: Option<&JournalLocation>,
    ) -> Result<SystemZone> {
        let mut zone = SystemZone {
            ranges: joined(self.sorts.concat()),
            journal: match superblock.journal() {
                Some(JournalPlace::Inode(number)) => Some(number),
                _ => None,
            },
        };
        let Some(journal) = journal else {
            return Ok(zone);
        };
        let mut ranges = zone.ranges.to_vec();
        for run in journal.runs(0, journal.blocks()) {
            if let Some(block) = zone.overlap(run.first, run.blocks.into()) {
                return Err(claimed("the journal", block));
            }
            ranges.push(run.first.0..run.first.0 + u64::from(run.blocks));
        }
        zone.ranges = joined(ranges);
        Ok(zone)
    }
}

impl SystemZone {
    /// The first block of those from `start` on that is in the zone.
    pub(crate) fn overlap(&self, start: PhysicalBlock, blocks: u64) -> Option<PhysicalBlock> {
        let end = start.0.saturating_add(blocks);
        let index = self.ranges.partition_point(|range| range.end <= start.0);
        let first = self.ranges.get(index)?.start.max(start.0);
        (first < end).then_some(PhysicalBlock(first))
    }

    /// The parts of the zone in `blocks`, clipped.
    pub(crate) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .ranges
            .partition_point(|range| range.end <= blocks.start);
        self.ranges[first..]
            .iter()
            .take_while({
                let end = blocks.end;
                move |range| range.start < end
            })
            .map(move |range| range.start.max(blocks.start)..range.end.min(blocks.end))
    }

    /// Refuses an inode from the disk that refers to blocks of the zone itself. References in its
    /// tree nodes are checked when those are read.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn check_inode(
        &self,
        number: InodeNumber,
        inode: &Inode,
        layout: &Layout,
    ) -> Result<()> {
        let Some(off_limits) = self.for_inode(number) else {
            return Ok(());
        };
        if let Some(block) = inode.xattr_block(layout) {
            off_limits.check(block, 1)?;
        }
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            return Ok(());
        }
        // An invalid one is reported when it is used.
        match ExtentNode::parse_root(inode.block_area(), layout) {
            Ok(root) => off_limits.check_node(&root),
            Err(_) => Ok(()),
        }
    }

    /// The zone, for an inode that must keep off.
    pub(crate) fn for_inode(&self, number: InodeNumber) -> Option<OffLimits<'_>> {
        let is_exempt = RESERVED.contains(&number) || self.journal == Some(number);
        (!is_exempt && !self.ranges.is_empty()).then_some(OffLimits {
            zone: self,
            inode: number,
        })
    }
}

impl OffLimits<'_> {
    /// Refuses blocks of the zone.
    ///
    /// # Errors
    /// `Corrupt`, naming the inode and the block.
    #[inline]
    pub(crate) fn check(&self, start: PhysicalBlock, blocks: u64) -> Result<()> {
        match self.zone.overlap(start, blocks) {
            None => Ok(()),
            Some(block) => Err(claimed(&format!("inode {}", self.inode), block)),
        }
    }

    /// Refuses a node of a tree that refers to blocks of the zone.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn check_node(&self, node: &ExtentNode<'_>) -> Result<()> {
        (0..node.len()).try_for_each(|index| match node.depth() {
            0 => {
                let extent = node.leaf(index);
                self.check(extent.physical, extent.blocks.into())
            }
            _ => self.check(node.index(index).child, 1),
        })
    }
}

#[cold]
fn claimed(who: &str, block: PhysicalBlock) -> Error {
    Error::new(ErrorKind::Corrupt)
        .detail(format!(
            "{who} has block {block}, which holds metadata of the file system itself"
        ))
        .advice("check the file system")
}

/// Adds a range, to the last one where it continues that.
fn push(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if (last.start..=last.end).contains(&next.start) => {
            last.end = last.end.max(next.end);
        }
        _ if next.is_empty() => {}
        _ => ranges.push(next),
    }
}

/// Sorted, and those that touch are one.
fn joined(mut ranges: Vec<Range<u64>>) -> Box<[Range<u64>]> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined = Vec::with_capacity(ranges.len());
    ranges
        .into_iter()
        .for_each(|range| push(&mut joined, range));
    joined.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn zone_is_a_set_of_blocks(
            parts in prop::collection::vec((0u64..200, 0u64..20), 0..12),
            asked in prop::collection::vec((0u64..230, 0u64..30), 1..20),
        ) {
            let ranges: Vec<_> = parts.iter().map(|&(start, count)| start..start + count).collect();
            let holds = |block| ranges.iter().any(|range| range.contains(&block));
            let zone = SystemZone {
                ranges: joined(ranges.clone()),
                journal: None,
            };
            for pair in zone.ranges.windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            for (start, count) in asked {
                let first = (start..start + count).find(|&block| holds(block));
                prop_assert_eq!(zone.overlap(PhysicalBlock(start), count), first.map(PhysicalBlock));
                let within: Vec<u64> = zone.within(start..start + count).flatten().collect();
                let wanted: Vec<u64> = (start..start + count).filter(|&block| holds(block)).collect();
                prop_assert_eq!(within, wanted);
            }
        }
    }
}
