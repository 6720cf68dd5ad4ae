//! Names with equal hashes: the leaf is split between them, and the tree marks the continuation.

use std::collections::HashMap;

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::directory::name_hash;
use extant_ondisk::ext4::inode::FileType;
use extant_space::ErrorKind;

use super::verify::verified;
use super::{HALF_MD4, TEA, context, empty, insert, listed, name};

/// Names of 112 bytes of which TEA makes one hash, major and minor. TEA takes 16 bytes
/// as a key, and two halves of the key each have a twin: the one with both top bits turned.
pub(super) fn twins(count: usize) -> Vec<Vec<u8>> {
    const KEY_BYTES: usize = 16;
    assert!(count <= 1 << 14);
    let twin = |number: usize| {
        let mut name = vec![b'x'; 7 * KEY_BYTES];
        for (piece, key) in name.chunks_mut(KEY_BYTES).enumerate() {
            for half in 0..2 {
                let flip = ((number >> (2 * piece + half)) & 1) as u8 * 0x80;
                key[half * 8] ^= flip;
                key[half * 8 + 4] ^= flip;
            }
        }
        name
    };
    (0..count).map(twin).collect()
}

/// Two names with the same major hash, found by trying.
fn half_md4_pair(hash: impl Fn(&[u8]) -> u32) -> [Vec<u8>; 2] {
    let mut seen = HashMap::new();
    for number in 0.. {
        let name = name(number, 30);
        if let Some(before) = seen.insert(hash(&name), name.clone()) {
            return [before, name];
        }
    }
    unreachable!("there are more names than hashes")
}

#[test]
fn pair_on_both_sides_of_a_split_is_found() {
    let mut directory = empty(context(HALF_MD4));
    let seed = directory.context.tree.unwrap().seed;
    let hash = |name: &[u8]| name_hash(name, HALF_MD4, seed).major;
    let pair = half_md4_pair(hash);
    // A leaf is full with 25 such names, and is cut before the 13th from its end.
    let others = |is_lower: bool| {
        let pair_hash = hash(&pair[0]);
        let names = (1_000_000..).map(|number| name(number, 30));
        names.filter(move |name| (hash(name) < pair_hash) == is_lower)
    };
    let names: Vec<_> = others(true)
        .take(11)
        .chain(pair.clone())
        .chain(others(false).take(12))
        .collect();
    for name in &names {
        insert(&mut directory, name, 100);
    }
    let one_more = others(true).nth(11).unwrap();
    assert_eq!(verified(&directory).continued, 0);
    insert(&mut directory, &one_more, 100);
    assert_eq!(verified(&directory).continued, 1);
    for name in &pair {
        assert_eq!(directory.lookup(name).unwrap().unwrap().inode.0, 100);
    }
    let missing = others(false).nth(12).unwrap();
    assert_eq!(directory.lookup(&missing).unwrap(), None);
    assert_eq!(listed(&directory).len(), 26);
}

#[test]
fn collisions_are_found_in_every_continued_leaf() {
    let mut directory = empty(context(TEA));
    let names = twins(300);
    for (number, name) in names.iter().enumerate() {
        insert(&mut directory, name, 100 + number as u32);
        if number % 7 == 0 {
            assert_eq!(verified(&directory).names.len(), number + 1);
        }
    }
    let state = verified(&directory);
    // Eight names per leaf at most, and all but the first leaf are continuations.
    assert!(
        state.continued >= 300 / 8,
        "{} leaves continue",
        state.continued
    );
    assert_eq!(listed(&directory), state.names);
    for name in &names {
        let again = directory.insert(name, InodeNumber(9), FileType::Regular);
        assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
    for (number, name) in names.iter().enumerate().rev() {
        assert_eq!(directory.remove(name).unwrap().inode.0, 100 + number as u32);
        assert_eq!(directory.lookup(name).unwrap(), None);
        if number % 7 == 0 {
            assert_eq!(verified(&directory).names.len(), number);
        }
    }
    assert!(directory.is_empty().unwrap());
}
