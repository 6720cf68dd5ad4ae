//! From one block to the deepest tree.

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::inode::FileType;
use extant_space::ErrorKind;

use super::super::context::InsertBound;
use super::super::{Directory, Shape};
use super::verify::verified;
use super::{
    HALF_MD4, Memory, OWN, PARENT, context, context_without_sums, empty, insert, listed, name,
    sorted_names,
};

#[test]
fn full_block_gets_a_tree_and_keeps_its_parent() {
    let mut directory = empty(context(HALF_MD4));
    let mut number = 0;
    while directory.blocks.shape == Shape::Linear {
        insert(&mut directory, &name(number, 200), 100 + number);
        number += 1;
    }
    // Four names beside . and .., the fifth asked for more; the root, two leaves.
    assert_eq!((number, directory.blocks.blocks.len()), (5, 3));
    assert_eq!(verified(&directory).levels, Some(0));
    let inode = |name: &[u8]| directory.lookup(name).unwrap().unwrap().inode;
    assert_eq!((inode(b"."), inode(b"..")), (OWN, PARENT));
}

#[test]
fn parent_is_retargeted_in_either_shape() {
    let mut directory = empty(context(HALF_MD4));
    for number in 0..10 {
        let new = InodeNumber(40 + number);
        let old = directory.retarget(b"..", new, FileType::Directory).unwrap();
        assert_eq!(
            old.inode,
            if number == 0 {
                PARENT
            } else {
                InodeNumber(39 + number)
            }
        );
        assert_eq!(directory.lookup(b"..").unwrap().unwrap().inode, new);
        insert(&mut directory, &name(number, 200), 100);
        assert_eq!(verified(&directory).names.len() as u32, number + 1);
    }
    assert_eq!(directory.blocks.shape, Shape::Tree);
}

#[test]
fn without_dir_index_blocks_follow_one_another() {
    let mut context = context(HALF_MD4);
    context.tree = None;
    let mut directory = empty(context);
    for number in 0..40 {
        insert(&mut directory, &name(number, 200), 100 + number);
    }
    assert_eq!(directory.blocks.shape, Shape::Linear);
    // Four a block.
    assert_eq!(directory.blocks.blocks.len(), 10);
    assert_eq!(verified(&directory).names.len(), 40);
}

#[test]
fn scattered_room_of_a_leaf_is_used_before_it_is_split() {
    let mut directory = empty(context(HALF_MD4));
    for number in 0..5 {
        insert(&mut directory, &name(number, 200), 100 + number);
    }
    // Filled with short names; then every other one is removed: no room of more than 40 bytes is
    // left.
    let blocks = loop {
        let blocks = directory.blocks.blocks.len();
        let number = 1000 + listed(&directory).len() as u32;
        insert(&mut directory, &name(number, 10), number);
        if directory.blocks.blocks.len() > blocks + 3 || number > 1200 {
            break directory.blocks.blocks.len();
        }
    };
    for name in listed(&directory).into_keys().step_by(2) {
        directory.remove(&name).unwrap();
    }
    directory.blocks.space = 0;
    let left = listed(&directory).len();
    let mut inserted = 0;
    while directory
        .insert(&name(inserted, 100), InodeNumber(9), FileType::Regular)
        .is_ok()
    {
        inserted += 1;
    }
    assert!(inserted > blocks as u32, "{inserted} in {blocks} blocks");
    assert_eq!(verified(&directory).names.len(), left + inserted as usize);
}

#[test]
fn tree_grows_to_its_full_depth_and_says_when_it_is_full() {
    let mut directory = empty(context_without_sums(HALF_MD4));
    let names = sorted_names(&directory.context, 17_000);
    let mut most = InsertBound {
        changed_blocks: 0,
        appended_blocks: 0,
    };
    let mut grow = |directory: &mut Directory<Memory>, names: &[Vec<u8>]| {
        for (number, name) in names.iter().enumerate() {
            let inode = InodeNumber(100 + number as u32);
            if let Err(error) = directory.insert(name, inode, FileType::Regular) {
                return Some((number, error));
            }
            let (changed, appended) = directory.blocks.take_counts();
            most.changed_blocks = most.changed_blocks.max(changed);
            most.appended_blocks = most.appended_blocks.max(appended);
        }
        None
    };
    let (count, error) = grow(&mut directory, &names).expect("two levels have an end");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(
        error.to_string(),
        "directory: the hash tree with 1 levels below its root is full; \
         turn on large_dir (tune2fs -O large_dir)"
    );
    let state = verified(&directory);
    assert_eq!((state.levels, state.names.len()), (Some(1), count));
    directory.blocks.take_counts();

    directory.context.tree.as_mut().unwrap().levels_max = 2;
    let rest = &names[count..];
    assert!(
        grow(&mut directory, rest).is_none(),
        "three levels take more"
    );
    let state = verified(&directory);
    assert_eq!((state.levels, state.names.len()), (Some(2), names.len()));
    for name in names.iter().step_by(7) {
        assert!(directory.lookup(name).unwrap().is_some());
    }
    assert_eq!(listed(&directory), state.names);
    let bound = directory.context.insert_bound();
    assert!(
        most.changed_blocks <= bound.changed_blocks
            && most.appended_blocks <= bound.appended_blocks
    );
    assert_eq!(most.appended_blocks, bound.appended_blocks);
}

#[test]
fn directory_ends_with_the_blocks_that_its_size_can_count() {
    let mut linear = context(HALF_MD4);
    linear.tree = None;
    for mut context in [context(HALF_MD4), linear] {
        context.blocks_max = 5;
        let mut directory = empty(context);
        let mut number = 0;
        let error = loop {
            let name = name(number, 200);
            match directory.insert(&name, InodeNumber(100), FileType::Regular) {
                Ok(()) => number += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(
            error.to_string(),
            "directory: its size does not go beyond 5 blocks"
        );
        assert_eq!(directory.blocks.blocks.len(), 5);
        assert_eq!(verified(&directory).names.len() as u32, number);
    }
}

#[test]
fn tree_without_dir_index_is_forgotten_when_a_name_is_written_over_it() {
    let mut tree = empty(context_without_sums(HALF_MD4));
    for number in 0..20 {
        insert(&mut tree, &name(number, 200), 100 + number);
    }
    let mut context = tree.context;
    context.tree = None;
    let mut directory = Directory::new(context, tree.blocks).unwrap();
    assert!(directory.lookup(&name(7, 200)).unwrap().is_some());
    directory.remove(&name(7, 200)).unwrap();
    assert_eq!(directory.blocks.shape, Shape::Tree);
    insert(&mut directory, &name(50, 200), 150);
    assert_eq!(directory.blocks.shape, Shape::Linear);
    assert_eq!(verified(&directory).names.len(), 20);
}

#[test]
fn tree_without_dir_index_and_with_sums_is_refused() {
    let mut context = context(HALF_MD4);
    context.tree = None;
    context.flagged = Shape::Tree;
    let error = Directory::new(context, Memory::new(&context))
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}
