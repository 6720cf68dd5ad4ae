//! No space and blocks that cannot be read, at every point: the directory remains valid, and the
//! operation took effect completely or not at all.

use std::ops::ControlFlow;

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::inode::FileType;
use extant_space::{ErrorKind, Result};

use super::super::{After, Directory};
use super::verify::verified;
use super::{HALF_MD4, Memory, context, empty, insert, sorted_names};

/// Every stage of growth up to two levels: a directory and the next name.
pub(super) fn stages() -> impl Iterator<Item = (Directory<Memory>, Vec<u8>)> {
    let mut directory = empty(context(HALF_MD4));
    let names = sorted_names(&directory.context, 300);
    names.into_iter().map(move |new| {
        let before = copy(&directory);
        insert(&mut directory, &new, 100);
        (before, new)
    })
}

pub(super) fn copy(directory: &Directory<Memory>) -> Directory<Memory> {
    Directory {
        context: directory.context,
        blocks: directory.blocks.clone(),
    }
}

fn insert_new(directory: &mut Directory<Memory>, name: &[u8]) -> Result<()> {
    directory.insert(name, InodeNumber(99), FileType::Regular)
}

/// Blocks that inserting `new` appends.
pub(super) fn appended_for(before: &Directory<Memory>, new: &[u8]) -> u32 {
    let mut directory = copy(before);
    directory.blocks.take_counts();
    insert_new(&mut directory, new).unwrap();
    directory.blocks.appended
}

#[test]
fn no_space_at_any_append_leaves_a_valid_directory_without_the_name() {
    let mut failures = [0; 2];
    for (before, new) in stages() {
        let names = verified(&before).names;
        for space in 0..2 {
            let mut directory = copy(&before);
            directory.blocks.space = space;
            let Err(error) = insert_new(&mut directory, &new) else {
                break;
            };
            assert_eq!(error.kind(), ErrorKind::NoSpace);
            failures[space as usize] += 1;
            assert_eq!(verified(&directory).names, names);
            // Space is freed.
            directory.blocks.space = u32::MAX;
            insert_new(&mut directory, &new).unwrap();
            assert!(directory.lookup(&new).unwrap().is_some());
        }
    }
    // Leaves are split often; two blocks are for the first tree, and for a node with a leaf.
    assert!(failures[0] > 100 && failures[1] > 1, "{failures:?}");
}

type Operation = fn(&mut Directory<Memory>, new: &[u8], old: &[u8]) -> Result<()>;

const OPERATIONS: [Operation; 7] = [
    |directory, new, _| insert_new(directory, new),
    |directory, _, old| directory.remove(old).map(|_| ()),
    |directory, _, old| {
        let old = directory.retarget(old, InodeNumber(98), FileType::Fifo);
        old.map(|_| ())
    },
    |directory, _, _| {
        let old = directory.retarget(b"..", InodeNumber(98), FileType::Directory);
        old.map(|_| ())
    },
    |directory, new, _| directory.lookup(new).map(|_| ()),
    |directory, _, _| directory.for_each(After::default(), &mut |_| ControlFlow::Continue(())),
    |directory, _, _| directory.is_empty().map(|_| ()),
];

#[test]
fn read_error_at_any_block_leaves_a_valid_directory_and_the_operation_undone() {
    let mut failures = [0; OPERATIONS.len()];
    let mut old = None;
    for (number, (before, new)) in stages().enumerate() {
        let Some(old) = old.replace(new.clone()) else {
            continue;
        };
        // Most insertions are like the one before.
        if appended_for(&before, &new) < 2 && number % 40 > 1 {
            continue;
        }
        let names = verified(&before).names;
        for (operation, failures) in OPERATIONS.iter().zip(&mut failures) {
            // Behind that many, a listing only repeats itself.
            for reads in 0..40 {
                let mut directory = copy(&before);
                directory.blocks.reads.set(reads);
                let Err(error) = operation(&mut directory, &new, &old) else {
                    break;
                };
                assert_eq!(error.kind(), ErrorKind::Io);
                assert!(error.range().is_some(), "{error} without its place");
                *failures += 1;
                if directory.blocks.blocks != before.blocks.blocks {
                    assert_eq!(verified(&directory).names, names);
                }
            }
        }
    }
    assert!(failures.iter().all(|&count| count >= 20), "{failures:?}");
}
