//! Nodes of extent trees, blocks of directories and of attributes, as bytes.
//!
//! An accepted structure can be read in whole, and takes changes: a name that was inserted is
//! found, and the block is still accepted.

use std::sync::LazyLock;

use extant_blockdev::Device;
use extant_ondisk::ext4::directory::{self, DirectoryFormat, IndexNode};
use extant_ondisk::ext4::extent::{ExtentNode, NodePlace};
use extant_ondisk::ext4::xattr::{XattrBlock, XattrName};
use extant_ondisk::ext4::{InodeNumber, PhysicalBlock, Superblock};

use crate::ext4_image::NO_CHECKSUMS;

const BLOCK: usize = 1024;

static SUPERBLOCK: LazyLock<Superblock> = LazyLock::new(|| {
    let mut bytes = vec![0; Superblock::BYTES];
    let read = NO_CHECKSUMS.image.read_at(&mut bytes, Superblock::OFFSET);
    read.expect("inside the image");
    Superblock::parse(&bytes).expect("it is valid")
});

pub(crate) fn target(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    let mut block = vec![0; BLOCK];
    let length = data.len().min(BLOCK);
    block[..length].copy_from_slice(&data[..length]);
    match kind % 4 {
        0 => extents(&block, kind >> 2),
        1 => records(&mut block),
        2 => index(&block),
        _ => attributes(&block),
    }
}

fn extents(block: &[u8], kind: u8) {
    let layout = SUPERBLOCK.layout();
    let root = block.first_chunk().expect("60 bytes");
    if let Ok(node) = ExtentNode::parse_root(root, layout) {
        read_node(&node);
    }
    let place = NodePlace {
        block: PhysicalBlock(77),
        depth: u16::from(kind % 5),
        logical: 0..1 << 32,
    };
    if let Ok(node) = ExtentNode::parse_block(block, &place, layout, None) {
        read_node(&node);
    }
    if let Ok(node) = ExtentNode::trusted(block, &place) {
        let _ = (node.len(), node.depth());
    }
}

fn read_node(node: &ExtentNode<'_>) {
    assert!(node.len() <= node.capacity());
    let mut end = 0;
    if node.depth() == 0 {
        for leaf in node.leaves() {
            assert!(u64::from(leaf.logical.0) >= end && leaf.blocks > 0);
            end = leaf.logical_end();
            let found = node.find(leaf.logical).expect("it is in the node");
            assert_eq!(node.leaf(found).logical, leaf.logical);
        }
        return;
    }
    for (number, entry) in node.indexes().enumerate() {
        let child = node.child(number);
        assert_eq!(child.depth, node.depth() - 1);
        assert!(child.logical.start >= end && !child.logical.is_empty());
        assert_eq!(child.logical.start, u64::from(entry.logical.0));
        end = child.logical.start;
    }
}

fn records(block: &mut [u8]) {
    let format = DirectoryFormat::of(&SUPERBLOCK);
    let all: Result<Vec<_>, _> = directory::entries(block, &format)
        .map(|entry| entry.map(|entry| entry.name.to_vec()))
        .collect();
    let Ok(names) = all else {
        let _ = directory::find(block, &format, b"name");
        let _ = directory::has_room(block, &format, 9);
        return;
    };
    for name in &names {
        let found = directory::find(block, &format, name);
        assert!(found.is_ok_and(|found| found.is_some()));
    }
    let name = b"a new name";
    if names.iter().any(|other| other == name) {
        return;
    }
    let has_room = directory::has_room(block, &format, name.len());
    let entry = directory::NewEntry {
        inode: InodeNumber(12),
        name,
        file_type: extant_ondisk::ext4::inode::FileType::Regular,
    };
    let inserted = directory::insert(block, &format, &entry);
    assert_eq!(
        has_room.ok(),
        inserted.as_ref().ok().map(|place| place.is_some())
    );
    if let Ok(Some(_)) = inserted {
        let after = directory::entries(block, &format).collect::<Result<Vec<_>, _>>();
        assert_eq!(after.map(|all| all.len()).ok(), Some(names.len() + 1));
    }
}

fn index(block: &[u8]) {
    let format = DirectoryFormat::of(&SUPERBLOCK);
    let nodes = [
        IndexNode::parse_root(block, &format, 2, None),
        IndexNode::parse_node(block, &format, None),
    ];
    for node in nodes.into_iter().flatten() {
        assert!((1..=node.capacity()).contains(&node.len()));
        for (number, entry) in node.entries().enumerate() {
            // Of entries with one hash, the last.
            let found = node.find(entry.hash);
            assert!(found >= number && found < node.len());
        }
    }
}

fn attributes(block: &[u8]) {
    let Ok(block) = XattrBlock::parse(block, PhysicalBlock(77), None) else {
        return;
    };
    let attributes = &block.attributes;
    for attribute in attributes.iter() {
        assert!(attributes.get(&attribute.name).is_some());
    }
    let _ = attributes.check_hashes();
    let mut copy = vec![0; BLOCK];
    let mut changed = attributes.clone().into_owned();
    let name = XattrName::new(b"user.new").expect("it is one");
    changed.set(name, b"value".to_vec());
    if changed
        .write_block(&mut copy, 1, PhysicalBlock(77), None)
        .is_ok()
    {
        let again = XattrBlock::parse(&copy, PhysicalBlock(77), None);
        let count = again.map(|block| block.attributes.iter().len());
        assert_eq!(count.ok(), Some(changed.iter().len()));
    }
}
