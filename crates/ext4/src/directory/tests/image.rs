//! A directory taken out of an image that the kernel wrote, and put back.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_ondisk::ext4::extent::ExtentNode;
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{
    GroupDescriptor, Inode, InodeNumber, Layout, LogicalBlock, PhysicalBlock, Superblock,
};

use super::super::{Directory, DirectoryContext, Shape};
use super::Memory;

/// A directory of a file system that is not mounted.
pub(super) struct Image {
    file: File,
    superblock: Superblock,
    number: InodeNumber,
    inode: Inode,
    /// Offset of its entry in the inode table.
    inode_offset: u64,
    /// One for each block of the directory.
    places: Vec<PhysicalBlock>,
}

impl Image {
    pub(super) fn open(device: &Path, number: InodeNumber) -> Self {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).open(device).unwrap();
        let read = |offset, bytes| {
            let mut buffer = vec![0; bytes];
            file.read_exact_at(&mut buffer, offset).unwrap();
            buffer
        };
        let superblock = Superblock::parse(&read(Superblock::OFFSET, Superblock::BYTES)).unwrap();
        let layout = *superblock.layout();
        let start = |block| layout.bytes_of(block).start();

        let place = layout.locate_inode(number).unwrap();
        let descriptor = layout.descriptor_place(place.group);
        let bytes = read(
            start(descriptor.block) + u64::from(descriptor.byte),
            layout.descriptor_bytes().into(),
        );
        let group = GroupDescriptor::parse(&bytes, place.group, &superblock).unwrap();
        let table = group.inode_table().0 + u64::from(place.table_block);
        let inode_offset = start(PhysicalBlock(table)) + u64::from(place.byte);
        let bytes = read(inode_offset, layout.inode_bytes().into());
        let inode = Inode::parse(&bytes, number, &layout, superblock.seed()).unwrap();
        let root = ExtentNode::parse_root(inode.block_area(), &layout).unwrap();
        let mut places = Vec::new();
        add_places(
            &root,
            &layout,
            &|block| read(start(block), layout.block_bytes() as usize),
            &mut places,
        );
        let blocks = inode.size_bytes(&layout) / u64::from(layout.block_bytes());
        assert_eq!(places.len() as u64, blocks);
        Self {
            superblock,
            number,
            inode,
            inode_offset,
            places,
            file,
        }
    }

    pub(super) fn context(&self) -> DirectoryContext {
        DirectoryContext::of(&self.superblock, self.number, &self.inode).unwrap()
    }

    /// How many blocks it has.
    pub(super) fn blocks(&self) -> u32 {
        self.places.len() as u32
    }

    /// The directory in its first `blocks` blocks.
    pub(super) fn directory(&self, blocks: u32) -> Directory<Memory> {
        let read = |place: &PhysicalBlock| -> Arc<[u8]> {
            let mut block = vec![0; self.superblock.layout().block_bytes() as usize];
            self.file
                .read_exact_at(&mut block, self.start(*place))
                .unwrap();
            block.into()
        };
        let blocks = self.places[..blocks as usize].iter().map(read).collect();
        let context = self.context();
        Directory::new(context, Memory::of(blocks, &context)).unwrap()
    }

    /// Puts a directory of as many blocks in its place.
    pub(super) fn replace(&mut self, memory: &Memory) {
        assert_eq!(memory.blocks.len(), self.places.len());
        for (block, place) in memory.blocks.iter().zip(&self.places) {
            self.file.write_all_at(block, self.start(*place)).unwrap();
        }
        let mut flags = self.inode.flags();
        flags.set(InodeFlags::INDEX, memory.shape == Shape::Tree);
        self.inode.set_flags(flags);
        let layout = self.superblock.layout();
        let mut bytes = vec![0; layout.inode_bytes().into()];
        self.file
            .read_exact_at(&mut bytes, self.inode_offset)
            .unwrap();
        self.inode
            .write(&mut bytes, self.number, layout, self.superblock.seed());
        self.file.write_all_at(&bytes, self.inode_offset).unwrap();
        self.file.sync_all().unwrap();
    }

    fn start(&self, block: PhysicalBlock) -> u64 {
        self.superblock.layout().bytes_of(block).start()
    }
}

fn add_places(
    node: &ExtentNode<'_>,
    layout: &Layout,
    read: &dyn Fn(PhysicalBlock) -> Vec<u8>,
    places: &mut Vec<PhysicalBlock>,
) {
    if node.depth() == 0 {
        for leaf in node.leaves() {
            assert_eq!(leaf.logical, LogicalBlock(places.len() as u32), "a hole");
            let blocks = 0..u64::from(leaf.blocks);
            places.extend(blocks.map(|block| PhysicalBlock(leaf.physical.0 + block)));
        }
        return;
    }
    for index in 0..node.len() {
        let place = node.child(index);
        let bytes = read(place.block);
        let child = ExtentNode::parse_block(&bytes, &place, layout, None).unwrap();
        add_places(&child, layout, read, places);
    }
}
