//! The groups.

use extant_ext4::Filesystem;
use extant_ondisk::ext4::GroupNumber;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_space::Result;
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Fields {
    group: u32,
    first_block: u64,
    last_block: u64,
    flags: Vec<&'static str>,
    checksum: u16,
    has_superblock: bool,
    block_bitmap: u64,
    block_bitmap_checksum: u32,
    inode_bitmap: u64,
    inode_bitmap_checksum: u32,
    inode_table: u64,
    inode_table_end: u64,
    free_blocks: u64,
    free_inodes: u32,
    directories: u32,
    unused_inodes: u32,
}

pub(super) fn all(filesystem: &Filesystem) -> Result<Vec<Fields>> {
    let superblock = filesystem.superblock();
    let layout = superblock.layout();
    (0..layout.groups())
        .map(GroupNumber)
        .map(|group| {
            let found = filesystem.group_descriptor(group)?;
            let first = layout.first_block(group).0;
            let flags = found.flags(layout);
            let names = [
                (GroupFlags::INODE_UNINIT, "INODE_UNINIT"),
                (GroupFlags::BLOCK_UNINIT, "BLOCK_UNINIT"),
                (GroupFlags::INODE_ZEROED, "ITABLE_ZEROED"),
            ];
            let names = names.into_iter().filter(|(flag, _)| flags.contains(*flag));
            let table = found.inode_table().0;
            Ok(Fields {
                group: group.0,
                first_block: first,
                last_block: first + u64::from(layout.blocks_in(group)) - 1,
                flags: names.map(|(_, name)| name).collect(),
                checksum: found.raw().bg_checksum.get(),
                has_superblock: layout.has_superblock(group),
                block_bitmap: found.block_bitmap().0,
                block_bitmap_checksum: found.block_bitmap_checksum(),
                inode_bitmap: found.inode_bitmap().0,
                inode_bitmap_checksum: found.inode_bitmap_checksum(),
                inode_table: table,
                inode_table_end: table + u64::from(layout.inode_table_blocks()) - 1,
                // It is stored in clusters, of which the last may be a part of one.
                free_blocks: u64::from(found.free_blocks())
                    * u64::from(layout.blocks_per_cluster()),
                free_inodes: found.free_inodes(),
                directories: found.used_directories(),
                unused_inodes: found.unused_inodes(),
            })
        })
        .collect()
}

pub(super) fn describe(groups: &[Fields]) -> String {
    let lines: Vec<String> = groups.iter().map(Fields::describe).collect();
    lines.join("\n")
}

impl Fields {
    fn describe(&self) -> String {
        let copy = match (self.group, self.has_superblock) {
            (0, _) => ", superblock",
            (_, true) => ", copy of the superblock",
            (_, false) => "",
        };
        format!(
            "Group {}: blocks {}-{}{copy}, checksum {:#06x} [{}]\n  \
             Block bitmap at {}, checksum {:#010x}; inode bitmap at {}, checksum {:#010x}\n  \
             Inode table at {}-{}\n  \
             {} free blocks, {} free inodes, {} directories, {} unused inodes",
            self.group,
            self.first_block,
            self.last_block,
            self.checksum,
            self.flags.join(", "),
            self.block_bitmap,
            self.block_bitmap_checksum,
            self.inode_bitmap,
            self.inode_bitmap_checksum,
            self.inode_table,
            self.inode_table_end,
            self.free_blocks,
            self.free_inodes,
            self.directories,
            self.unused_inodes,
        )
    }
}
