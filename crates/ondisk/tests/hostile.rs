//! Arbitrary bytes: every parser returns a result, whatever they are.
//!
//! Plausible structures with a few bytes changed, or none, and without checksums reach furthest.

use extant_ondisk::ext4::directory::{
    self, DirectoryFormat, HashKind, IndexNode, IndexNodeMut, NewEntry, Tail, TypeField,
};
use extant_ondisk::ext4::extent::{
    ExtentKind, ExtentNode, ExtentNodeMut, IndexEntry, LeafEntry, NodePlace,
};
use extant_ondisk::ext4::fast_commit::{Change, CommitSum, CommitWriter, Position, records};
use extant_ondisk::ext4::inode::{FileType, TimeField};
use extant_ondisk::ext4::layout::Mapping;
use extant_ondisk::ext4::mmp::Mmp;
use extant_ondisk::ext4::xattr::{Attributes, XattrBlock, XattrName};
use extant_ondisk::ext4::{
    GroupDescriptor, GroupNumber, Inode, InodeNumber, LogicalBlock, PhysicalBlock, Superblock,
    orphan,
};
use extant_ondisk::jbd2::commit::Commit;
use extant_ondisk::jbd2::descriptor::{self, DescriptorWriter};
use extant_ondisk::jbd2::format::{BlockNumbers, Checksums};
use extant_ondisk::jbd2::revoke::{self, RevokeWriter};
use extant_ondisk::jbd2::{Escaped, Format, JournalSuperblock, Sequence};
use proptest::prelude::*;

const BLOCK_BYTES: usize = 1024;

/// A few bytes and what they become, the start of a block more often than its end.
type Damage = Vec<(usize, u8)>;

fn damage() -> impl Strategy<Value = Damage> {
    let place = prop_oneof![0..64_usize, 0..BLOCK_BYTES];
    let byte = prop_oneof![any::<u8>(), Just(0), Just(0xFF)];
    prop::collection::vec((place, byte), 0..6)
}

fn damaged(mut bytes: Vec<u8>, damage: &Damage) -> Vec<u8> {
    for &(at, byte) in damage {
        let at = at % bytes.len();
        bytes[at] = byte;
    }
    bytes
}

fn superblock() -> Superblock {
    Superblock::parse(include_bytes!("data/superblock.bin")).unwrap()
}

fn directory_format() -> DirectoryFormat {
    DirectoryFormat {
        block_bytes: BLOCK_BYTES as u32,
        tail: Tail::None,
        types: TypeField::Present,
        inodes: 1000,
    }
}

proptest! {
    #[test]
    fn superblock_that_is_taken_has_a_layout_that_adds_up(damage in damage()) {
        let mut superblock = superblock();
        let edited = superblock.edit(|raw| {
            use zerocopy::{FromBytes, IntoBytes};
            let bytes = damaged(raw.as_bytes().to_vec(), &damage);
            *raw = FromBytes::read_from_bytes(&bytes).unwrap();
        });
        if edited.is_err() {
            return Ok(());
        }
        let layout = superblock.layout();
        let last = layout.groups() - 1;
        for group in [0, 1, 3, last / 2, last].map(|group| GroupNumber(group.min(last))) {
            prop_assert!(layout.fixed_blocks(group) <= layout.blocks_per_group());
            let place = layout.descriptor_place(group);
            prop_assert!(layout.bytes_of(place.block).end() <= i64::MAX as u64);
            let inode = layout.inode_at(group, layout.inodes_per_group() - 1);
            let place = layout.locate_inode(inode).unwrap();
            prop_assert!(place.table_block < layout.inode_table_blocks());
            layout.superblock_block(group);
        }
        layout.descriptor_block_backups(layout.descriptor_blocks() - 1).take(100).count();
        for mapping in [Mapping::Extents, Mapping::Blocks] {
            prop_assert!(layout.file_bytes_max(mapping) > 0);
        }
        superblock.recorded_errors();
        superblock.journal_backup();
        let _ = superblock.hash_version();
        prop_assert!(superblock.extra_isize_for_new_inodes().is_multiple_of(4));
    }

    #[test]
    fn descriptor_and_inode_of_any_bytes_have_an_answer(bytes in any::<[[u8; 32]; 8]>()) {
        let mut superblock = superblock();
        superblock
            .edit(|raw| {
                let features = raw.s_feature_ro_compat.get();
                raw.s_feature_ro_compat.set(features & !0x400);
            })
            .unwrap();
        let bytes = bytes.concat();
        let _ = GroupDescriptor::parse(&bytes, GroupNumber(1), &superblock);
        let layout = superblock.layout();
        if let Ok(inode) = Inode::parse(&bytes, InodeNumber(12), layout, None) {
            inode.sectors(layout);
            inode.size_bytes(layout);
            inode.short_link_target();
            inode.device();
            for field in [TimeField::Access, TimeField::Creation] {
                inode.time(field);
            }
            let _ = ExtentNode::parse_root(inode.block_area(), layout);
            let mut copy = bytes.clone();
            inode.write(&mut copy, InodeNumber(12), layout, None);
            prop_assert_eq!(copy, bytes);
        }
    }

    #[test]
    fn attributes_in_a_damaged_inode_have_an_answer(damage in damage(), extra in 0..40_u16) {
        let layout = *superblock().layout();
        let inode = Inode::zeroed(extra * 4 % 132);
        let mut bytes = vec![0; 256];
        let mut list = Attributes::default();
        list.set(XattrName::new(b"user.a").unwrap(), &b"12345"[..]);
        let _ = list.write_inode(&mut bytes, &inode, &layout);
        let bytes = damaged(bytes, &damage);
        if let Ok(list) = Attributes::parse_inode(&bytes, &inode, &layout) {
            let _ = list.check_hashes();
            let _ = list.write_inode(&mut bytes.clone(), &inode, &layout);
        }
    }

    #[test]
    fn damaged_attribute_block_has_an_answer(damage in damage()) {
        let place = PhysicalBlock(7);
        let mut block = vec![0; BLOCK_BYTES];
        let mut list = Attributes::default();
        for (name, value) in [("user.a", "1"), ("user.bb", "22222"), ("trusted.c", "")] {
            list.set(XattrName::new(name.as_bytes()).unwrap(), value.as_bytes());
        }
        list.write_block(&mut block, 1, place, None).unwrap();
        let block = damaged(block, &damage);
        if let Ok(parsed) = XattrBlock::parse(&block, place, None) {
            let _ = parsed.attributes.check_hashes();
            parsed.computed_hash();
            let list = parsed.attributes;
            if !list.is_empty() {
                // Attributes taken from a block fit one again.
                list.write_block(&mut vec![0; BLOCK_BYTES], 1, place, None).unwrap();
            }
        }
    }

    #[test]
    fn damaged_extent_node_has_an_answer(damage in damage(), depth in 0..3_u16) {
        let layout = *superblock().layout();
        let mut block = vec![0; BLOCK_BYTES];
        let mut node = ExtentNodeMut::init(&mut block, depth);
        for index in 0..5_u8 {
            let logical = LogicalBlock(u32::from(index) * 100);
            let block = PhysicalBlock(1000 + u64::from(index));
            match depth {
                0 => node.insert_leaf(index.into(), &LeafEntry {
                    logical,
                    physical: block,
                    blocks: 9,
                    kind: ExtentKind::Unwritten,
                }),
                _ => node.insert_index(index.into(), &IndexEntry { logical, child: block }),
            }
        }
        let block = damaged(block, &damage);
        let place = NodePlace { block: PhysicalBlock(5), depth, logical: 0..1000 };
        if let Ok(node) = ExtentNode::parse_block(&block, &place, &layout, None) {
            let mut end = 0;
            for index in 0..node.len() {
                let start = match depth {
                    0 => u64::from(node.leaf(index).logical.0),
                    _ => node.child(index).logical.start,
                };
                prop_assert!(start >= end);
                end = start + 1;
            }
            prop_assert!(end <= 1000);
        }
    }

    #[test]
    fn damaged_directory_block_has_an_answer(damage in damage(), at in 0..6_usize) {
        let format = directory_format();
        let mut block = vec![0; BLOCK_BYTES];
        directory::init_first(&mut block, &format, InodeNumber(12), InodeNumber(2));
        let names = ["one", "second", "the-third-name", "4"];
        let entry = |name: &'static str| NewEntry {
            name: name.as_bytes(),
            inode: InodeNumber(50),
            file_type: FileType::Regular,
        };
        for name in names {
            directory::insert(&mut block, &format, &entry(name)).unwrap();
        }
        let mut block = damaged(block, &damage);
        let entries: Vec<_> = directory::entries(&block, &format).collect();
        prop_assert!(entries.len() <= BLOCK_BYTES / 12);
        directory::block_kind(&block, LogicalBlock(1), &format);
        let found = entries.iter().flatten().nth(at).map(|entry| entry.offset);
        if entries.iter().all(|entry| entry.is_ok()) {
            directory::insert(&mut block, &format, &entry("new")).unwrap();
            if let Some(offset) = found {
                directory::remove(&mut block, &format, offset).unwrap();
            }
            let names = directory::entries(&block, &format);
            prop_assert!(names.into_iter().all(|entry| entry.is_ok()));
        }
    }

    #[test]
    fn damaged_hash_tree_node_has_an_answer(damage in damage(), hash in any::<u32>()) {
        let format = directory_format();
        let mut block = vec![0; BLOCK_BYTES];
        let (own, below) = (InodeNumber(12), LogicalBlock(1));
        let kind = HashKind::Tea;
        let mut node = IndexNodeMut::init_root(&mut block, &format, own, own, kind, below);
        for index in 1..5 {
            let hash = index as u32 * 1000;
            node.insert(index, directory::DxEntry { hash, block: below });
        }
        let root = damaged(block, &damage);
        if let Ok(node) = IndexNode::parse_root(&root, &format, 2, None) {
            prop_assert!(node.find(hash) < node.len());
            node.dots(&format);
            prop_assert!(node.levels() <= 2);
        }
        let mut block = vec![0; BLOCK_BYTES];
        IndexNodeMut::init_node(&mut block, &format, below);
        if let Ok(node) = IndexNode::parse_node(&damaged(block, &damage), &format, None) {
            prop_assert!(node.find(hash) < node.len());
        }
    }

    #[test]
    fn damaged_orphan_and_mmp_blocks_have_an_answer(damage in damage()) {
        let layout = *superblock().layout();
        let mut block = vec![0; BLOCK_BYTES];
        orphan::seal(&mut block, PhysicalBlock(1), None);
        let block = damaged(block, &damage);
        let _ = orphan::verify(&block, PhysicalBlock(1), None);
        prop_assert!(orphan::orphans(&block, &layout).count() <= orphan::slots(1024));
        if let Ok(mmp) = Mmp::parse(&block, None) {
            mmp.state();
        }
    }

    #[test]
    fn damaged_fast_commit_has_an_answer(damage in damage()) {
        let layout = *superblock().layout();
        let mut writer = CommitWriter::new(BLOCK_BYTES as u32, Sequence(3), Position::First);
        writer.push(&Change::DelRange {
            inode: InodeNumber(12),
            start: LogicalBlock(0),
            blocks: 7,
        });
        writer.push(&Change::Inode { inode: InodeNumber(12), bytes: &[7; 200] });
        let block = damaged(writer.finish(), &damage);
        let mut sum = CommitSum::new();
        for record in records(&block, &layout).flatten() {
            sum.take(&record, Sequence(3));
            let _ = record.head();
            let _ = record.change(&layout);
        }
    }

    #[test]
    fn damaged_journal_has_an_answer(damage in damage(), wide in any::<bool>()) {
        let superblock = include_bytes!("data/journal_superblock.bin");
        if let Ok(journal) = JournalSuperblock::parse(&damaged(superblock.to_vec(), &damage)) {
            prop_assert!(!journal.log().is_empty());
            prop_assert!(journal.fast_commits().end <= journal.blocks());
            let start = journal.start().map(|block| block.0);
            prop_assert!(start.is_none_or(|start| journal.log().contains(&start)));
        }
        let format = Format {
            block_bytes: BLOCK_BYTES as u32,
            checksums: Checksums::None,
            block_numbers: if wide { BlockNumbers::Bits64 } else { BlockNumbers::Bits32 },
            uuid: [0; 16],
        };
        let mut block = vec![0; BLOCK_BYTES];
        let mut writer = DescriptorWriter::new(&mut block, Sequence(3), &format);
        for number in 0..40 {
            writer.push(PhysicalBlock(number), &[], Escaped::No);
        }
        writer.finish();
        if let Ok(tags) = descriptor::tags(&damaged(block, &damage), &format) {
            prop_assert!(tags.count() <= DescriptorWriter::capacity(&format) + 2);
        }
        let mut block = vec![0; BLOCK_BYTES];
        let mut writer = RevokeWriter::new(&mut block, Sequence(3), &format);
        writer.push(PhysicalBlock(9));
        writer.finish();
        if let Ok(revoked) = revoke::revoked(&damaged(block, &damage), &format) {
            prop_assert!(revoked.count() <= RevokeWriter::capacity(&format));
        }
        let _ = Commit::parse(&damaged(vec![0; BLOCK_BYTES], &damage), &format);
    }
}
