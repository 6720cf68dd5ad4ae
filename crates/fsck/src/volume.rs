//! The file system on the device: superblock, descriptors, blocks by number.
//!
//! Invariant: the device is as long as the file system, so every block can be read; a read error is
//! an error of the device and ends the check. Every read checks for a cancel, so that nothing an
//! image makes long is uncancellable.

use std::ops::Range;

use extant_blockdev::Device;
use extant_ondisk::ext4::directory::DirectoryFormat;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::{
    GroupDescriptor, GroupNumber, Incompat, Inode, InodeNumber, Layout, PhysicalBlock, Seed,
    Superblock,
};
use extant_space::{ByteRange, CancelToken, Result};

/// Source of the blocks that the check reads.
pub(crate) struct Volume<'a> {
    device: &'a dyn Device,
    superblock: Superblock,
    groups: Vec<Group>,
    cancel: &'a CancelToken,
}

/// A group as described by its descriptor.
pub(crate) struct Group {
    /// The descriptor, which need not be right.
    pub(crate) descriptor: GroupDescriptor,
    /// Whether bitmaps and inode table can be found.
    pub(crate) places: Places,
}

/// Whether the target of a descriptor field is inside the file system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Places {
    Known,
    Unknown,
}

impl<'a> Volume<'a> {
    /// A volume before its descriptors are read.
    pub(crate) fn new(
        device: &'a dyn Device,
        superblock: Superblock,
        cancel: &'a CancelToken,
    ) -> Self {
        Self {
            device,
            superblock,
            groups: Vec::new(),
            cancel,
        }
    }

    /// Adds the next group.
    pub(crate) fn push_group(&mut self, group: Group) {
        self.groups.push(group);
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether the journal holds transactions to replay.
    pub(crate) fn needs_recovery(&self) -> bool {
        let features = self.superblock.features();
        features.incompat.contains(Incompat::RECOVER)
    }

    pub(crate) fn layout(&self) -> &Layout {
        self.superblock.layout()
    }

    pub(crate) fn seed(&self) -> Option<Seed> {
        self.superblock.seed()
    }

    pub(crate) fn directory_format(&self) -> DirectoryFormat {
        DirectoryFormat::of(&self.superblock)
    }

    pub(crate) fn group(&self, group: GroupNumber) -> &Group {
        &self.groups[group.0 as usize]
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupNumber> + use<> {
        (0..self.layout().groups()).map(GroupNumber)
    }

    /// Inodes at the start of the group's table that can have been used.
    pub(crate) fn inodes_in_use_max(&self, group: GroupNumber) -> u32 {
        let layout = self.layout();
        let Group { descriptor, places } = self.group(group);
        let flags = descriptor.flags(layout);
        if *places == Places::Unknown || flags.contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        let unused = if layout.features().has_group_checksums() {
            descriptor.unused_inodes()
        } else {
            0
        };
        layout.inodes_per_group().saturating_sub(unused)
    }

    /// The block of an inode's table that holds the inode, and its first byte there. `None`
    /// where the table ends before it.
    pub(crate) fn inode_place(&self, number: InodeNumber) -> Option<(PhysicalBlock, usize)> {
        let place = self.layout().locate_inode(number).ok()?;
        if place.index >= self.inodes_in_use_max(place.group) {
            return None;
        }
        let table = self.group(place.group).descriptor.inode_table();
        let block = PhysicalBlock(table.0 + u64::from(place.table_block));
        Some((block, place.byte as usize))
    }

    /// One inode, unvalidated; `None` if there is none.
    pub(crate) fn inode(&self, number: InodeNumber) -> Result<Option<Inode>> {
        let Some((block, byte)) = self.inode_place(number) else {
            return Ok(None);
        };
        let bytes = self.block(block)?;
        Ok(Some(Inode::read(&bytes[byte..], self.layout())))
    }

    /// The bytes of one block.
    pub(crate) fn block(&self, block: PhysicalBlock) -> Result<Vec<u8>> {
        self.blocks(block, 1)
    }

    /// Some bytes of one block.
    pub(crate) fn part(&self, block: PhysicalBlock, part: Range<usize>) -> Result<Vec<u8>> {
        self.cancel.check()?;
        let start = self.layout().bytes_of(block).start();
        read(
            self.device,
            ByteRange::new(start + part.start as u64, start + part.end as u64),
        )
    }

    /// The bytes of consecutive blocks.
    pub(crate) fn blocks(&self, first: PhysicalBlock, blocks: u32) -> Result<Vec<u8>> {
        self.cancel.check()?;
        let last = PhysicalBlock(first.0 + u64::from(blocks) - 1);
        let start = self.layout().bytes_of(first).start();
        let end = self.layout().bytes_of(last).end();
        read(self.device, ByteRange::new(start, end))
    }
}

/// The fields of the superblock that name a file of quotas, with their numbers.
pub(crate) fn quota_inodes(
    superblock: &Superblock,
) -> impl Iterator<Item = (&'static str, u32)> + use<> {
    let raw = superblock.raw();
    [
        ("s_usr_quota_inum", raw.s_usr_quota_inum.get()),
        ("s_grp_quota_inum", raw.s_grp_quota_inum.get()),
        ("s_prj_quota_inum", raw.s_prj_quota_inum.get()),
    ]
    .into_iter()
    .filter(|(_, number)| *number != 0)
}

/// Whether an inode may hold quotas. Two of the reserved numbers are for those of users and groups.
pub(crate) fn can_be_quota_file(number: u32, superblock: &Superblock) -> bool {
    let inodes = superblock.raw().s_inodes_count.get();
    matches!(number, 3 | 4) || (11..=inodes).contains(&number)
}

/// Any bytes of a device, also of one whose logical blocks are larger than the file system's.
pub(crate) fn read(device: &dyn Device, range: ByteRange) -> Result<Vec<u8>> {
    let unit = u64::from(device.geometry().logical_block);
    let start = range.start() / unit * unit;
    let end = range.end().next_multiple_of(unit);
    let mut bytes = vec![0; (end - start) as usize];
    device.read_at(&mut bytes, start)?;
    bytes.truncate((range.end() - start) as usize);
    bytes.drain(..(range.start() - start) as usize);
    Ok(bytes)
}
