//! Blocks and nodes made, changed, read back, and spoilt in every way that is refused.

use std::collections::BTreeMap;

use extant_space::{Corruption, ErrorKind};
use proptest::prelude::*;

use super::*;
use crate::ext4::inode::FileType;
use crate::ext4::superblock::fixture;
use crate::ext4::{InodeNumber, InodeSeed, LogicalBlock, Seed};

fn format() -> DirectoryFormat {
    DirectoryFormat {
        block_bytes: 1024,
        ..DirectoryFormat::of(&fixture())
    }
}

fn seed() -> Option<InodeSeed> {
    Some(Seed::from_stored(1).inode(InodeNumber(2), 0))
}

fn file(name: &[u8], inode: u32) -> NewEntry<'_> {
    NewEntry {
        name,
        inode: InodeNumber(inode),
        file_type: FileType::Regular,
    }
}

/// `.`, `..` and `hello`, sealed.
fn block() -> Vec<u8> {
    let format = format();
    let mut block = vec![0xAA; 1024];
    init_first(&mut block, &format, InodeNumber(12), InodeNumber(2));
    insert(&mut block, &format, &file(b"hello", 13)).unwrap();
    seal(&mut block, &format, seed());
    block
}

fn names(block: &[u8]) -> Vec<(Vec<u8>, u32)> {
    entries(block, &format())
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.name.to_vec(), entry.inode.0))
        .collect()
}

#[test]
fn first_block_holds_itself_and_its_parent() {
    let block = block();
    let expected = [(&b"."[..], 12), (b"..", 2), (b"hello", 13)];
    assert_eq!(
        names(&block),
        expected.map(|(name, inode)| (name.to_vec(), inode))
    );
    let entry = find(&block, &format(), b"hello").unwrap().unwrap();
    assert_eq!(
        (entry.offset, entry.file_type),
        (24, Some(FileType::Regular))
    );
    assert_eq!(find(&block, &format(), b"hell").unwrap(), None);
    verify(&block, &format(), seed()).unwrap();
}

#[test]
fn encrypted_names_are_any_bytes_of_a_block_of_the_cipher_at_least() {
    let format = format();
    let name = b"any/bytes\0and 16";
    let mut block = vec![0; 1024];
    init_first(&mut block, &format, InodeNumber(12), InodeNumber(2));
    insert(&mut block, &format, &file(name, 13)).unwrap();
    assert!(entries(&block, &format).last().unwrap().is_err());
    let read: Vec<_> = encrypted_entries(&block, &format)
        .map(|entry| entry.unwrap().name.to_vec())
        .collect();
    assert_eq!(read, [&b"."[..], b"..", name]);
    // Shorter, and for an inode that does not exist.
    for (at, byte) in [(24 + 6, 15), (24 + 3, 0xFF)] {
        let mut block = block.clone();
        block[at] = byte;
        let last = encrypted_entries(&block, &format).last().unwrap();
        assert_eq!(last.unwrap_err().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn changed_byte_is_found_by_the_checksum() {
    let mut block = block();
    block[500] ^= 1;
    let error = verify(&block, &format(), seed()).unwrap_err();
    assert_eq!(
        error.corruption(),
        Some(&Corruption::checksum("directory block"))
    );
    block[1024 - 5] = 0;
    assert_eq!(
        verify(&block, &format(), seed()).unwrap_err().to_string(),
        "directory block: no record for the checksum at the end"
    );
}

#[test]
fn each_impossible_record_is_named() {
    let inodes = fixture().layout().inodes();
    let cases: [(usize, &[u8], &str); 8] = [
        (28, &[0xDA, 3], "rec_len is 986, not a multiple of 4"),
        (28, &[0xE0, 3], "rec_len is 992, 988 bytes are left"),
        (28, &[12, 0], "rec_len is 12, less than 16"),
        (28, &[0, 0], "rec_len is 0, less than 16"),
        (
            24,
            &[0xFF, 0xFF, 0, 0],
            &format!("inode is 65535, of {inodes}"),
        ),
        (30, &[0], "\"\" is no name"),
        (33, b"/", "\"h/llo\" is no name"),
        (36, &[0], "\"hell\\x00\" is no name"),
    ];
    for (at, bytes, problem) in cases {
        let mut block = block();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        let mut entries = entries(&block, &format()).skip(2);
        let error = entries.next().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let line = format!("directory block: record at byte 24: {problem}");
        assert_eq!(error.to_string(), line);
        assert!(entries.next().is_none(), "nothing follows an error");
    }
}

#[test]
fn rest_too_short_for_a_record_is_refused() {
    let mut block = block();
    // Up to 4 bytes before the checksum's record.
    block[28..30].copy_from_slice(&984_u16.to_le_bytes());
    let error = entries(&block, &format()).nth(3).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "directory block: record at byte 1008: only 4 bytes are left"
    );
}

#[test]
fn changing_a_wrong_block_changes_nothing() {
    let mut block = block();
    block[28] = 0;
    let before = block.clone();
    insert(&mut block, &format(), &file(b"more", 14)).unwrap_err();
    remove(&mut block, &format(), 12).unwrap_err();
    assert_eq!(block, before);
}

#[test]
fn removed_name_does_not_stay_behind() {
    let mut block = block();
    remove(&mut block, &format(), 24).unwrap();
    assert!(!block.windows(5).any(|bytes| bytes == b"hello"));
    assert_eq!(names(&block).len(), 2);
}

#[test]
fn retargeted_entry_keeps_its_name() {
    let mut block = block();
    retarget(
        &mut block,
        &format(),
        24,
        InodeNumber(99),
        FileType::Directory,
    );
    let entry = find(&block, &format(), b"hello").unwrap().unwrap();
    assert_eq!(
        (entry.inode, entry.file_type),
        (InodeNumber(99), Some(FileType::Directory))
    );
}

#[test]
fn entry_that_is_gone_is_not_removed_again() {
    let mut block = block();
    remove(&mut block, &format(), 24).unwrap();
    let before = block.clone();
    for offset in [24, 4] {
        let line = remove(&mut block, &format(), offset).unwrap_err();
        let expected = format!("directory block: no entry at byte {offset} any more");
        assert_eq!(line.to_string(), expected);
    }
    assert_eq!(block, before);
}

#[test]
fn find_judges_the_entry_it_finds_and_of_others_the_length() {
    let mut block = block();
    insert(&mut block, &format(), &file(b"other", 14)).unwrap();
    // "hello" names an inode that cannot be.
    block[24..28].fill(0xFF);
    let other = find(&block, &format(), b"other").unwrap().unwrap();
    assert_eq!(other.inode, InodeNumber(14));
    let error = find(&block, &format(), b"hello").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(entries(&block, &format()).any(|entry| entry.is_err()));
    block[28] = 0;
    let error = find(&block, &format(), b"other").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn block_of_64_kib_has_a_record_longer_than_16_bits_say() {
    let format = DirectoryFormat {
        block_bytes: 1 << 16,
        tail: Tail::None,
        ..format()
    };
    let mut block = vec![0; 1 << 16];
    assert!(fill(&mut block, &format, [file(b"one", 14)]));
    assert_eq!(block[4..6], [0xFF, 0xFF]);
    // Emptied and used again.
    remove(&mut block, &format, 0).unwrap();
    assert_eq!(entries(&block, &format).count(), 0);
    assert_eq!(
        insert(&mut block, &format, &file(b"two", 15)).unwrap(),
        Some(0)
    );
    assert_eq!(entries(&block, &format).count(), 1);
}

#[test]
fn fill_says_when_names_do_not_fit() {
    let names: Vec<_> = (0..100)
        .map(|number| format!("{number:03}").into_bytes())
        .collect();
    let mut block = vec![0; 1024];
    let entries = |count: usize| names[..count].iter().map(|name| file(name, 14));
    // 1012 bytes hold 84 records of 12.
    assert!(fill(&mut block, &format(), entries(84)));
    assert!(!fill(&mut block, &format(), entries(85)));
}

#[test]
fn invalid_name_is_refused() {
    for name in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
        let error = check_name(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    let error = check_name(&[b'x'; 256]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NameTooLong);
    check_name(&[b'x'; 255]).unwrap();
    check_name(b"...").unwrap();
}

proptest! {
    /// Names are added and removed as in a map; there is room as long as the records say so.
    #[test]
    fn block_follows_a_map(steps in prop::collection::vec((any::<bool>(), 1..60_usize), 1..80)) {
        let format = format();
        let mut model = BTreeMap::from([(b".".to_vec(), 12), (b"..".to_vec(), 2)]);
        let mut block = vec![0; 1024];
        init_first(&mut block, &format, InodeNumber(12), InodeNumber(2));
        for (step, (insertion, length)) in steps.into_iter().enumerate() {
            let name = vec![b'a' + (length % 26) as u8; length];
            let known = find(&block, &format, &name).unwrap();
            match (insertion, known) {
                (true, None) => {
                    let inode = 20 + step as u32;
                    if insert(&mut block, &format, &file(&name, inode)).unwrap().is_some() {
                        model.insert(name, inode);
                    } else {
                        let used: usize = model.keys().map(|name| record_bytes(name.len())).sum();
                        prop_assert!(used + record_bytes(length) * model.len() > 400);
                    }
                }
                (false, Some(entry)) => {
                    let offset = entry.offset;
                    remove(&mut block, &format, offset).unwrap();
                    model.remove(&name);
                }
                _ => {}
            }
            prop_assert_eq!(names(&block).into_iter().collect::<BTreeMap<_, _>>(), model.clone());
        }
    }
}

/// A root with the hashes 0, 100, 200.
fn root() -> Vec<u8> {
    let format = format();
    let mut block = vec![0xAA; 1024];
    let (own, parent) = (InodeNumber(12), InodeNumber(2));
    let below = LogicalBlock(1);
    let kind = HashKind::HalfMd4;
    let mut node = IndexNodeMut::init_root(&mut block, &format, own, parent, kind, below);
    for (index, hash, block) in [(1, 200, 2), (1, 100, 3)] {
        let block = LogicalBlock(block);
        node.insert(index, DxEntry { hash, block });
    }
    node.seal(&format, seed());
    block
}

fn blocks(node: &IndexNode<'_>) -> Vec<(u32, u32)> {
    node.entries()
        .map(|entry| (entry.hash, entry.block.0))
        .collect()
}

#[test]
fn root_reads_back_and_finds_hashes() {
    let block = root();
    let node = IndexNode::parse_root(&block, &format(), 1, seed()).unwrap();
    assert_eq!(blocks(&node), [(0, 1), (100, 3), (200, 2)]);
    assert_eq!((node.levels(), node.hash_kind()), (0, HashKind::HalfMd4));
    // 1024 less 32 before and 8 behind.
    assert_eq!(node.capacity(), 123);
    let found = [0, 99, 100, 199, 200, u32::MAX].map(|hash| node.find(hash));
    assert_eq!(found, [0, 0, 1, 1, 2, 2]);
}

#[test]
fn root_lies_behind_itself_and_its_parent() {
    let block = root();
    let node = IndexNode::parse_root(&block, &format(), 1, seed()).unwrap();
    let dots = node.dots(&format());
    let expected = [(0, &b"."[..], 12), (12, b"..", 2)];
    assert_eq!(
        dots.map(|dot| (dot.offset, dot.name, dot.inode.0)),
        expected
    );
}

#[test]
fn blocks_are_distinguished_by_their_content() {
    let kind = |index, block: &[u8]| block_kind(block, LogicalBlock(index), &format());
    assert_eq!(kind(0, &root()), BlockKind::Root);
    let mut node = vec![0; 1024];
    IndexNodeMut::init_node(&mut node, &format(), LogicalBlock(1));
    assert_eq!(kind(1, &node), BlockKind::Node);
    assert_eq!(kind(1, &block()), BlockKind::Records);
}

#[test]
fn node_and_empty_block_are_distinct_without_checksums() {
    let format = DirectoryFormat {
        tail: Tail::None,
        ..format()
    };
    let mut block = vec![0; 1024];
    IndexNodeMut::init_node(&mut block, &format, LogicalBlock(1));
    assert_eq!(
        block_kind(&block, LogicalBlock(1), &format),
        BlockKind::Node
    );
    assert!(fill(&mut block, &format, [file(b"x", 14)]));
    remove(&mut block, &format, 0).unwrap();
    assert_eq!(
        block_kind(&block, LogicalBlock(1), &format),
        BlockKind::Records
    );
}

#[test]
fn each_spoilt_field_of_a_root_is_named() {
    let cases: [(usize, u8, &str); 9] = [
        (24, 1, "reserved_zero is 1, outside 0 to 0"),
        (28, 6, "hash_version is 6 (siphash)"),
        (28, 9, "hash_version is 9"),
        (29, 9, "info_length is 9, outside 8 to 8"),
        (30, 2, "indirect_levels is 2, outside 0 to 1"),
        (31, 1, "unused_flags is 1, outside 0 to 0"),
        (32, 122, "limit is 122, outside 123 to 123"),
        (34, 0, "count is 0, outside 1 to 123"),
        (34, 124, "count is 124, outside 1 to 123"),
    ];
    for (at, value, problem) in cases {
        let mut block = root();
        block[at] = value;
        let error = IndexNode::parse_root(&block, &format(), 1, None).unwrap_err();
        assert_eq!(error.to_string(), format!("hash tree root: {problem}"));
        let field = problem.split(' ').next().unwrap();
        let corruption = Corruption::range("hash tree root", field);
        match at {
            28 => assert_eq!(error.kind(), ErrorKind::Unsupported),
            _ => assert_eq!(error.corruption(), Some(&corruption)),
        }
    }
    // With large_dir, two levels may be.
    let mut block = root();
    block[30] = 2;
    IndexNode::parse_root(&block, &format(), 2, None).unwrap();
}

#[test]
fn root_without_its_two_names_is_refused() {
    let cases: [(usize, u8, &str); 5] = [
        (4, 16, "hash tree root: no record of .. at byte 12"),
        (8, b'x', "hash tree root: no record of . at byte 0"),
        (0, 0, "hash tree root: no record of . at byte 0"),
        (
            13,
            0xFF,
            "directory block: record at byte 12: inode is 65282, of 32768",
        ),
        (
            16,
            0xF8,
            "directory block: record at byte 12: rec_len is 1016, 1012 bytes are left",
        ),
    ];
    for (at, value, line) in cases {
        let mut block = root();
        block[at] = value;
        if at == 4 {
            block[16..24].copy_from_slice(&[1, 0, 0, 0, 0xF0, 3, 1, 2]);
            block[24] = b'.';
        }
        let error = IndexNode::parse_root(&block, &format(), 1, None).unwrap_err();
        assert_eq!(error.to_string(), line);
    }
}

#[test]
fn falling_hash_and_wrong_sum_are_refused() {
    let mut block = root();
    block[40..44].copy_from_slice(&201_u32.to_le_bytes());
    let line = IndexNode::parse_root(&block, &format(), 1, None)
        .unwrap_err()
        .to_string();
    assert_eq!(line, "hash tree root: entry 2 has hash 0xc8 after 0xc9");
    let error = IndexNode::parse_root(&block, &format(), 1, seed()).unwrap_err();
    assert_eq!(
        error.corruption(),
        Some(&Corruption::checksum("hash tree root"))
    );
}

#[test]
fn reread_root_is_judged_by_all_but_its_sum_and_order() {
    let (block, format) = (root(), format());
    for at in 0..block.len() {
        let mut block = block.clone();
        block[at] ^= 0x40;
        let parsed = IndexNode::parse_root(&block, &format, 1, None).map(|_| ());
        let reread = IndexNode::reread_root(&block, &format, 1).map(|_| ());
        match parsed {
            Err(error) if error.to_string().contains("has hash") => reread.unwrap(),
            parsed => assert_eq!(
                parsed.map_err(|error| error.to_string()),
                reread.map_err(|error| error.to_string()),
                "byte {at}"
            ),
        }
    }
}

#[test]
fn block_of_records_is_no_node() {
    const LINE: &str = "hash tree node: a record of 12 bytes before it";
    let error = IndexNode::parse_node(&block(), &format(), None).unwrap_err();
    assert_eq!(error.to_string(), LINE);
    let error = IndexNode::reread_node(&block(), &format()).unwrap_err();
    assert_eq!(error.to_string(), LINE);
}

#[test]
fn full_root_gets_a_level_and_splits() {
    let format = format();
    let mut block = root();
    let mut node = IndexNodeMut::new(&mut block, IndexShape::Root, &format);
    while !node.is_full() {
        let count = node.len() as u32;
        let entry = DxEntry {
            hash: count * 100,
            block: LogicalBlock(count + 1),
        };
        node.insert(count as usize, entry);
    }
    let mut left = vec![0; 1024];
    assert_eq!(node.split_into(0, &mut left, &format), 0);
    node.set_block(0, LogicalBlock(500));
    node.set_levels(1);
    let mut right = vec![0; 1024];
    let mut lower = IndexNodeMut::new(&mut left, IndexShape::Node, &format);
    let hash = lower.split_into(60, &mut right, &format);
    assert_eq!(hash, 6000);
    let entry = DxEntry {
        hash,
        block: LogicalBlock(501),
    };
    node.insert(1, entry);

    let root = IndexNode::parse_root(&block, &format, 1, None).unwrap();
    assert_eq!(root.levels(), 1);
    assert_eq!(blocks(&root), [(0, 500), (6000, 501)]);
    let left = IndexNode::parse_node(&left, &format, None).unwrap();
    let right = IndexNode::parse_node(&right, &format, None).unwrap();
    assert_eq!((left.len(), right.len()), (60, 63));
    assert_eq!(right.entry(0).block, LogicalBlock(61));
    assert_eq!(right.entry(1).hash, 6100);

    let mut block = block.clone();
    let mut node = IndexNodeMut::new(&mut block, IndexShape::Root, &format);
    node.remove(1);
    assert_eq!(node.len(), 1);
}
