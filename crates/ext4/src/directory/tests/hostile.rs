//! Malicious directories: an error with the location, or harmless behaviour.

use std::ops::ControlFlow;

use extant_ondisk::ext4::directory::{BlockKind, DxEntry, IndexNodeMut, IndexShape, fill, seal};
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{InodeNumber, LogicalBlock};
use extant_space::ErrorKind;
use proptest::prelude::*;

use super::super::{After, Directory};
use super::memory::Source;
use super::verify::verified;
use super::{
    HALF_MD4, Memory, TEA, collisions, context, context_without_sums, empty, failures, insert,
    name, sorted_names,
};

/// A tree of one level with 30 names.
fn tree() -> Directory<Memory> {
    let mut directory = empty(context(HALF_MD4));
    for number in 0..30 {
        insert(&mut directory, &name(number, 200), 100 + number);
    }
    directory
}

/// Changes a node and seals it again.
fn spoil_root(directory: &mut Directory<Memory>, change: impl FnOnce(&mut IndexNodeMut<'_>)) {
    let (format, seed) = (directory.context.format, directory.context.seed);
    directory.blocks.spoil(0, |block| {
        let mut node = IndexNodeMut::new(block, IndexShape::Root, &format);
        change(&mut node);
        node.seal(&format, seed);
    });
}

fn list(directory: &Directory<Memory>) -> extant_space::Result<usize> {
    let mut count = 0;
    let visit = &mut |_: super::super::Listed<'_>| {
        count += 1;
        ControlFlow::Continue(())
    };
    directory.for_each(After::default(), visit)?;
    Ok(count)
}

#[test]
fn wrong_sum_is_refused_with_its_block() {
    for index in 0..3 {
        let mut directory = tree();
        directory.blocks.spoil(index, |block| block[44] ^= 1);
        let error = list(&directory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.range().unwrap().start(), u64::from(index) * 1024);
        assert!(error.to_string().contains("checksum"), "{error}");
    }
}

#[test]
fn hole_is_refused() {
    let mut directory = tree();
    directory.blocks.spoil(1, |block| block.fill(0));
    assert_eq!(list(&directory).unwrap_err().kind(), ErrorKind::Corrupt);
    let mut linear = empty(context_without_sums(HALF_MD4));
    linear.blocks.spoil(0, |block| block.fill(0));
    assert_eq!(linear.lookup(b"x").unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn tree_that_leads_past_the_end_is_refused() {
    let mut directory = tree();
    spoil_root(&mut directory, |root| root.set_block(0, LogicalBlock(5000)));
    let error = list(&directory).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bytes 5120000 to 5121024: directory: past the last of 11 blocks"
    );
}

#[test]
fn tree_that_leads_to_itself_is_refused() {
    let mut directory = tree();
    spoil_root(&mut directory, |root| root.set_block(0, LogicalBlock(0)));
    let error = list(&directory).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bytes 0 to 1024: directory: the tree leads back to block 0"
    );
}

#[test]
fn tree_with_more_leaves_than_blocks_is_refused() {
    let mut directory = empty(context(TEA));
    for (number, name) in collisions::twins(30).iter().enumerate() {
        insert(&mut directory, name, 100 + number as u32);
    }
    spoil_root(&mut directory, |root| {
        while !root.is_full() {
            let (hash, block) = (u32::MAX, LogicalBlock(1));
            root.insert(root.len(), DxEntry { hash, block });
        }
    });
    let error = list(&directory).unwrap_err();
    assert_eq!(
        error.to_string(),
        "bytes 0 to 1024: directory: the tree names more leaves than there are blocks"
    );
}

#[test]
fn first_block_without_itself_and_its_parent_is_refused() {
    let mut directory = empty(context(HALF_MD4));
    let (format, seed) = (directory.context.format, directory.context.seed);
    directory.blocks.spoil(0, |block| {
        let names: Vec<_> = (0..4).map(|number| name(number, 200)).collect();
        let entries = names.iter().map(|name| super::super::disk::NewEntry {
            name,
            inode: InodeNumber(100),
            file_type: FileType::Regular,
        });
        assert!(fill(block, &format, entries));
        seal(block, &format, seed);
    });
    let error = directory.lookup(b"..").unwrap_err();
    assert_eq!(error.to_string(), "bytes 0 to 1024: directory: no entry ..");
    let result = directory.insert(&name(9, 200), InodeNumber(9), FileType::Regular);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(directory.blocks.blocks.len(), 1);
}

#[test]
fn name_in_the_wrong_leaf_is_listed_all_the_same() {
    let mut directory = tree();
    let names = verified(&directory).names.len();
    // The first two leaves change places.
    let blocks = &mut directory.blocks.blocks;
    blocks.swap(1, 2);
    assert_eq!(list(&directory).unwrap(), names + 2);
    assert!(!directory.is_empty().unwrap());
}

#[test]
fn block_kind_of_a_leaf_does_not_matter_to_is_empty() {
    let mut directory = tree();
    for name in verified(&directory).names.into_keys() {
        assert!(!directory.is_empty().unwrap());
        directory.remove(&name).unwrap();
    }
    assert!(directory.is_empty().unwrap());
    assert_eq!(
        directory.any(LogicalBlock(1)).unwrap().0,
        BlockKind::Records
    );
}

#[test]
fn leaf_with_names_of_another_is_not_split() {
    let mut directory = tree();
    directory.blocks.blocks.swap(1, 2);
    for number in 100.. {
        let before = directory.blocks.blocks.clone();
        let result = directory.insert(&name(number, 200), InodeNumber(7), FileType::Regular);
        let Err(error) = result else {
            continue;
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let line = error.to_string();
        assert!(line.contains("in a block for those from"), "{line}");
        assert!(directory.blocks.blocks == before, "something has changed");
        return;
    }
}

#[test]
fn node_that_has_changed_since_it_was_read_is_not_changed() {
    let mut directory = tree();
    let root = directory.root().unwrap();
    // One whose leaf is full.
    directory.blocks.space = 0;
    let mut new = (100..).map(|number| name(number, 200));
    let full = new.find(|name| {
        let result = directory.insert(name, InodeNumber(7), FileType::Regular);
        result.is_err()
    });
    let new = full.unwrap();
    directory.blocks.space = u32::MAX;
    let path = directory.descend(&root, root.hash(&new).major).unwrap();
    let leaf = directory.leaf(path.leaf()).unwrap();
    spoil_root(&mut directory, |root| root.remove(1));
    let spoilt = directory.blocks.blocks[0].clone();
    let error = directory.split_leaf(&root, &path, &leaf).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("has changed meanwhile"),
        "{error}"
    );
    assert!(directory.blocks.blocks[0] == spoilt);
}

#[test]
fn directory_without_blocks_has_no_names_and_gets_none() {
    let context = context(HALF_MD4);
    let mut directory = Directory::new(context, Memory::new(&context)).unwrap();
    assert_eq!(directory.lookup(b"name").unwrap(), None);
    assert_eq!(list(&directory).unwrap(), 0);
    let error = directory.is_empty().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let result = directory.insert(b"name", InodeNumber(7), FileType::Regular);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(directory.blocks.blocks.is_empty());
}

/// The bitmap of a damaged file system marks used blocks as free.
#[test]
fn new_block_that_is_an_old_one_too_does_no_harm() {
    let mut refused = 0;
    for (number, (before, new)) in failures::stages().enumerate() {
        let appended = failures::appended_for(&before, &new);
        // Most leaves are split like the one before.
        if appended == 0 || appended == 1 && number % 20 != 0 {
            continue;
        }
        for old in 0..before.blocks.blocks.len() as u32 {
            let mut directory = failures::copy(&before);
            directory.blocks.append_again = Some(old);
            let result = directory.insert(&new, InodeNumber(7), FileType::Regular);
            refused += u32::from(result.is_err());
            let _ = (directory.lookup(&new), directory.remove(&new));
            if old % 20 == 0 {
                let _ = (list(&directory), directory.is_empty());
            }
        }
    }
    assert!(refused > 5, "{refused}");
}

/// Everything is tried on a directory that may be in any state: there is an end, no panic, and no
/// insertion changes more than it may.
fn try_all(directory: &mut Directory<Memory>, names: impl Iterator<Item = Vec<u8>>) {
    let _ = (list(directory), directory.is_empty());
    let bound = directory.context.insert_bound();
    for name in names {
        let _ = directory.lookup(&name);
        directory.blocks.take_counts();
        let _ = directory.insert(&name, InodeNumber(7), FileType::Regular);
        let (changed, appended) = directory.blocks.take_counts();
        assert!(changed <= bound.changed_blocks && appended <= bound.appended_blocks);
        if name[0] % 2 == 0 {
            let _ = directory.remove(&name);
        }
    }
    let _ = directory.retarget(b"..", InodeNumber(7), FileType::Directory);
    let _ = list(directory);
}

/// Changes of single bytes: block, offset in it, new bytes.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, usize, u8)>> {
    let offset = prop_oneof![0..64_usize, 0..1024_usize];
    prop::collection::vec((any::<prop::sample::Index>(), offset, any::<u8>()), 1..8)
}

fn source() -> impl Strategy<Value = Source> {
    prop_oneof![Just(Source::Disk), Just(Source::Cache)]
}

// Without checksums only the structure protects this code from the bytes.

#[test]
fn changed_bytes_do_no_harm() {
    let mut sound = empty(context_without_sums(HALF_MD4));
    for number in 0..30 {
        insert(&mut sound, &name(number, 200), 100 + number);
    }
    let config = ProptestConfig::with_cases(120);
    proptest!(config, |(changes in changes(), source in source())| {
        let mut directory = failures::copy(&sound);
        directory.blocks.source = source;
        for (index, offset, value) in changes {
            let index = index.index(directory.blocks.blocks.len()) as u32;
            directory.blocks.spoil(index, |block| block[offset] = value);
        }
        try_all(&mut directory, (0..40).map(|number| name(number, 200)));
    });
}

#[test]
fn changed_bytes_of_nodes_do_no_harm() {
    let mut sound = empty(context_without_sums(HALF_MD4));
    sound.context.tree.as_mut().unwrap().levels_max = 2;
    let names = sorted_names(&sound.context, 1200);
    let (there, missing): (Vec<_>, Vec<_>) = (0..names.len()).partition(|number| number % 8 != 0);
    for number in there {
        insert(&mut sound, &names[number], 100);
    }
    let nodes: Vec<u32> = (0..sound.blocks.blocks.len() as u32)
        .filter(|&index| sound.any(LogicalBlock(index)).unwrap().0 != BlockKind::Records)
        .collect();
    assert!(nodes.len() > 3, "{nodes:?}");
    let config = ProptestConfig::with_cases(60);
    proptest!(config, |(changes in changes(), source in source())| {
        let mut directory = failures::copy(&sound);
        directory.blocks.source = source;
        for (index, offset, value) in changes {
            directory.blocks.spoil(*index.get(&nodes), |block| block[offset] = value);
        }
        let names = missing.iter().step_by(5).map(|&number| names[number].clone());
        try_all(&mut directory, names);
    });
}
