//! Lists made, written to both places, read back, and spoilt in every way that is refused.

use extant_space::{Corruption, ErrorKind};

use super::*;
use crate::ext4::superblock::fixture;
use crate::ext4::{Inode, PhysicalBlock, Seed};

const PLACE: PhysicalBlock = PhysicalBlock(4711);

fn name(full: &'static str) -> XattrName<'static> {
    XattrName::new(full.as_bytes()).unwrap()
}

fn seed() -> Option<Seed> {
    Some(Seed::from_stored(5))
}

/// `user.two`, `security.x`, `user.a` and an access list without a value.
fn list() -> Attributes<'static> {
    let mut list = Attributes::default();
    list.set(name("user.two"), &b"22222"[..]);
    list.set(name("security.x"), &b"s"[..]);
    list.set(name("user.a"), &b"1"[..]);
    list.set(name("system.posix_acl_access"), &b""[..]);
    list
}

fn block() -> Vec<u8> {
    let mut block = vec![0; 1024];
    list().write_block(&mut block, 3, PLACE, seed()).unwrap();
    block
}

fn full_names(attributes: &Attributes<'_>) -> Vec<String> {
    attributes
        .iter()
        .map(|attribute| String::from_utf8(attribute.name.full()).unwrap())
        .collect()
}

#[test]
fn block_reads_back_sorted_by_number_length_and_name() {
    let block = block();
    let parsed = XattrBlock::parse(&block, PLACE, seed()).unwrap();
    assert_eq!(parsed.references, 3);
    assert_eq!(
        full_names(&parsed.attributes),
        [
            "user.a",
            "user.two",
            "system.posix_acl_access",
            "security.x"
        ]
    );
    let value = parsed.attributes.get(&name("user.two"));
    assert_eq!(value, Some(&XattrValue::Bytes(b"22222".into())));
    parsed.attributes.check_hashes().unwrap();
    assert_eq!(parsed.hash, parsed.computed_hash());
}

#[test]
fn references_are_counted_under_the_seal() {
    let mut block = block();
    set_references(&mut block, 1024, PLACE, seed());
    assert_eq!(
        XattrBlock::parse(&block, PLACE, seed()).unwrap().references,
        1024
    );
}

#[test]
fn block_at_another_place_is_refused() {
    let block = block();
    let error = XattrBlock::parse(&block, PhysicalBlock(4712), seed()).unwrap_err();
    assert_eq!(
        error.corruption(),
        Some(&Corruption::checksum("attribute block 4712"))
    );
}

#[test]
fn reserved_words_of_the_header_survive_a_rewrite() {
    let mut block = block();
    block[0x18] = 0x5A;
    list().write_block(&mut block, 1, PLACE, seed()).unwrap();
    assert_eq!(block[0x18], 0x5A);
    XattrBlock::parse(&block, PLACE, seed()).unwrap();
}

#[test]
fn each_impossible_header_or_entry_is_named() {
    // Entries: user.a at 0x20, user.two at 0x34, ..., values from the end of the block.
    let cases: [(usize, &[u8], &str); 10] = [
        (0, &[1], "h_magic is 0xea020001, not 0xea020000"),
        (4, &[0, 0], "h_refcount is 0, outside 1 to 1024"),
        (4, &[1, 4], "h_refcount is 1025, outside 1 to 1024"),
        (8, &[2], "h_blocks is 2, outside 1 to 1"),
        (0x30, &[0], "entry 0: a zero in the name"),
        (0x20, &[0, 0, 1, 0], "entry 0: no name"),
        (0x22, &[0, 4], "entry 0: no room for a value of 1 bytes"),
        (
            0x28,
            &[0xFF, 0xFF, 0xFF, 0xFF],
            "entry 0: no room for a value of 4294967295 bytes",
        ),
        (
            0x22,
            &[0x40, 0],
            "a value at byte 64 overlaps the data before it",
        ),
        // The value of user.two is below that of user.a.
        (0x36, &[0xFC, 3], "entry 1: no room for a value of 5 bytes"),
    ];
    for (at, bytes, problem) in cases {
        let mut block = block();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        let error = XattrBlock::parse(&block, PLACE, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(
            error.to_string(),
            format!("attribute block 4711: {problem}")
        );
    }
}

#[test]
fn list_without_an_end_is_refused() {
    let mut block = block();
    let header = block[..32].to_vec();
    block.fill(0);
    block[..32].copy_from_slice(&header);
    // Names of 232 bytes without values: the fourth ends with the block.
    for entry in 0..4 {
        block[32 + entry * 248] = 232;
        block[32 + entry * 248 + 16..][..232].fill(b'n');
    }
    let error = XattrBlock::parse(&block, PLACE, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "attribute block 4711: entry 4: no end of the list"
    );
    block[32] = 255;
    block[32 + 3 * 248] = 255;
    XattrBlock::parse(&block, PLACE, None).unwrap_err();
}

#[test]
fn two_values_in_one_place_are_refused() {
    let mut block = block();
    let first = [block[0x22], block[0x23]];
    let second = 0x34 + 2;
    block[second..second + 2].copy_from_slice(&first);
    block[second + 6] = 1;
    let error = XattrBlock::parse(&block, PLACE, None).unwrap_err();
    assert!(
        error.to_string().ends_with("overlaps the data before it"),
        "{error}"
    );
}

#[test]
fn wrong_hash_of_an_entry_is_named() {
    let mut block = block();
    block[0x2C] ^= 1;
    let parsed = XattrBlock::parse(&block, PLACE, None).unwrap();
    let error = parsed.attributes.check_hashes().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("attribute user.a: e_hash is 0x"),
        "{error}"
    );
}

#[test]
fn list_in_an_inode_is_behind_its_fields() {
    let layout = *fixture().layout();
    let inode = Inode::zeroed(32);
    let mut bytes = vec![0x11; 256];
    assert_eq!(Attributes::inode_room(&inode, &layout), 96);
    let mut list = list();
    assert!(list.remove(&name("user.a")));
    list.write_inode(&mut bytes, &inode, &layout).unwrap();
    assert!(bytes[..160].iter().all(|&byte| byte == 0x11));
    let read = Attributes::parse_inode(&bytes, &inode, &layout).unwrap();
    assert_eq!(full_names(&read), full_names(&list));
    assert_eq!(read.get(&name("security.x")), list.get(&name("security.x")));

    Attributes::default()
        .write_inode(&mut bytes, &inode, &layout)
        .unwrap();
    assert!(bytes[160..].iter().all(|&byte| byte == 0));
    assert!(
        Attributes::parse_inode(&bytes, &inode, &layout)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn list_that_does_not_fit_changes_nothing() {
    let layout = *fixture().layout();
    let inode = Inode::zeroed(32);
    let mut large = list();
    large.set(name("user.big"), vec![7; 100]);
    let mut bytes = vec![0x11; 256];
    let error = large.write_inode(&mut bytes, &inode, &layout).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(bytes, [0x11; 256]);

    large.set(name("user.big"), vec![7; 1000]);
    let mut block = vec![0x11; 1024];
    let error = large.write_block(&mut block, 1, PLACE, seed()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert_eq!(block, [0x11; 1024]);
}

#[test]
fn list_that_fits_to_the_byte_is_taken() {
    let layout = *fixture().layout();
    let inode = Inode::zeroed(32);
    let mut list = Attributes::default();
    // In 96 bytes: 4 of the header, 20 of the entry, 4 of the end.
    list.set(name("user.a"), vec![7; 68]);
    let mut bytes = vec![0; 256];
    list.write_inode(&mut bytes, &inode, &layout).unwrap();
    let read = Attributes::parse_inode(&bytes, &inode, &layout).unwrap();
    assert_eq!(read.get(&name("user.a")), list.get(&name("user.a")));
    list.set(name("user.a"), vec![7; 69]);
    list.write_inode(&mut bytes, &inode, &layout).unwrap_err();
}

#[test]
fn value_in_an_inode_is_hashed_by_its_hash() {
    let mut block = block();
    // user.a in inode 13, its value of one byte taken for the hash of the value there.
    block[0x24] = 13;
    let parsed = XattrBlock::parse(&block, PLACE, None).unwrap();
    let attribute = parsed.attributes.iter().next().unwrap();
    assert!(attribute.is_hash_of_inode(u32::from(b'1')));
    assert!(!attribute.is_hash_of_inode(u32::from(b'2')));
}

#[test]
fn value_in_an_inode_is_kept() {
    let mut block = block();
    // user.a: no offset, inode 13, its hash stays.
    block[0x22..0x24].fill(0);
    block[0x24] = 13;
    block[0x2C..0x30].copy_from_slice(&[1, 2, 3, 4]);
    let parsed = XattrBlock::parse(&block, PLACE, None).unwrap();
    let value = parsed.attributes.get(&name("user.a")).unwrap();
    let (inode, bytes) = (InodeNumber(13), 1);
    assert_eq!(*value, XattrValue::Inode { inode, bytes });
    parsed.attributes.check_hashes().unwrap();
    let mut copy = vec![0; 1024];
    parsed
        .attributes
        .write_block(&mut copy, 3, PLACE, None)
        .unwrap();
    assert_eq!(copy[0x20..0x34], block[0x20..0x34]);
}
