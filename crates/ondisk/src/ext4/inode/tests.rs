//! The meaning of the fields, and refusals, on manually constructed inodes.

use super::*;
use crate::ext4::superblock::fixture;
use crate::ext4::{GroupNumber, RoCompat, Superblock};
use extant_space::Corruption;

const NUMBER: InodeNumber = InodeNumber(13);

/// The bytes of a plausible file, sealed.
fn file(superblock: &Superblock) -> [u8; 256] {
    let mut inode = Inode::zeroed(32);
    inode.set_mode(Mode::new(FileType::Regular, 0o644));
    inode.set_links(1);
    inode.set_generation(7);
    let mut bytes = [0xAA; 256];
    inode.write(&mut bytes, NUMBER, superblock.layout(), superblock.seed());
    bytes
}

fn parse(bytes: &[u8], superblock: &Superblock) -> Result<Inode> {
    Inode::parse(bytes, NUMBER, superblock.layout(), superblock.seed())
}

#[test]
fn bytes_past_the_fields_survive_a_write_and_are_summed() {
    let superblock = fixture();
    let mut bytes = file(&superblock);
    assert!(bytes[160..].iter().all(|&byte| byte == 0xAA));
    parse(&bytes, &superblock).unwrap();
    bytes[255] = 0;
    let error = parse(&bytes, &superblock).unwrap_err();
    assert_eq!(error.corruption(), Some(&Corruption::checksum("inode 13")));
}

#[test]
fn inode_at_the_place_of_another_is_refused() {
    let superblock = fixture();
    let bytes = file(&superblock);
    let other = InodeNumber(14);
    let error = Inode::parse(&bytes, other, superblock.layout(), superblock.seed()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn extra_size_without_room_is_refused() {
    let superblock = fixture();
    for (size, line) in [
        (132u16, "inode 13: i_extra_isize is 132, outside 0 to 128"),
        (30, "inode 13: i_extra_isize is 30, not a multiple of 4"),
    ] {
        let mut bytes = file(&superblock);
        bytes[128..130].copy_from_slice(&size.to_le_bytes());
        let error = parse(&bytes, &superblock).unwrap_err();
        assert_eq!(error.to_string(), line);
    }
}

#[test]
fn short_extra_size_hides_fields_and_keeps_16_bits_of_the_sum() {
    let superblock = fixture();
    for extra in [0, 4, 8, 28] {
        let mut inode = Inode::zeroed(extra);
        inode.set_mode(Mode::new(FileType::Regular, 0o600));
        inode.set_version(5 << 32 | 6, superblock.layout());
        let mut bytes = [0x55; 256];
        inode.write(&mut bytes, NUMBER, superblock.layout(), superblock.seed());
        let past = usize::from(128 + extra);
        // The size of the fields is kept even where it is 0.
        assert!(
            bytes[past.max(130)..].iter().all(|&byte| byte == 0x55),
            "{extra}"
        );
        // 4 bytes are the size and the high half of the sum.
        assert_eq!(bytes[130..132] == [0x55; 2], extra == 0, "{extra}");
        let back = parse(&bytes, &superblock).unwrap();
        assert_eq!(back.extra_isize(), extra);
        assert_eq!(back.project(), None);
        assert_eq!(back.version(), if extra >= 28 { 5 << 32 | 6 } else { 6 });
    }
}

#[test]
fn inode_never_used_passes_without_a_sum() {
    let superblock = fixture();
    let inode = parse(&[0; 256], &superblock).unwrap();
    assert!(inode.is_unused());
}

#[test]
fn sizes_of_directories_have_no_high_half() {
    let superblock = fixture();
    let layout = superblock.layout();
    let mut inode = Inode::zeroed(32);
    inode.set_mode(Mode::new(FileType::Regular, 0));
    inode.set_size_bytes(5 << 32 | 1, layout);
    assert_eq!(inode.size_bytes(layout), 5 << 32 | 1);
    inode.set_mode(Mode::new(FileType::Directory, 0));
    assert_eq!(inode.size_bytes(layout), 1);
}

#[test]
fn space_is_counted_in_sectors_then_in_blocks() {
    let superblock = fixture();
    let layout = superblock.layout();
    let mut inode = Inode::zeroed(32);
    for (sectors, is_huge) in [
        (8, false),
        (1 << 33, false),
        (1 << 48, true),
        (1 << 50, true),
    ] {
        inode.set_sectors(sectors, layout).unwrap();
        assert_eq!(inode.sectors(layout), sectors);
        assert_eq!(inode.flags().contains(InodeFlags::HUGE_FILE), is_huge);
    }
    inode.set_sectors(8, layout).unwrap();
    assert!(!inode.flags().contains(InodeFlags::HUGE_FILE));
    let error = inode.set_sectors(1 << 51, layout).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);

    let mut old = superblock.clone();
    let without = !RoCompat::HUGE_FILE.bits();
    old.edit(|raw| {
        raw.s_feature_ro_compat
            .set(raw.s_feature_ro_compat.get() & without)
    })
    .unwrap();
    let error = inode.set_sectors(1 << 32, old.layout()).unwrap_err();
    assert_eq!(error.to_string(), "4294967296 sectors do not fit i_blocks");
    assert_eq!(inode.sectors(layout), 8);
}

#[test]
fn owners_and_attribute_block_keep_their_high_halves() {
    let superblock = fixture();
    let mut inode = Inode::zeroed(32);
    inode.set_uid(0x1234_5678);
    inode.set_gid(0x9ABC_DEF0);
    inode.set_xattr_block(Some(PhysicalBlock(0x1234_5678_9ABC)), superblock.layout());
    assert_eq!((inode.uid(), inode.gid()), (0x1234_5678, 0x9ABC_DEF0));
    let block = inode.xattr_block(superblock.layout());
    assert_eq!(block, Some(PhysicalBlock(0x1234_5678_9ABC)));
}

#[test]
fn short_link_is_read_from_the_inode_only() {
    let mut inode = Inode::zeroed(32);
    inode.set_mode(Mode::new(FileType::SymbolicLink, 0o777));
    inode.block_area_mut()[..6].copy_from_slice(b"target");
    inode.raw.i_size_lo.set(6);
    assert_eq!(inode.short_link_target(), Some(&b"target"[..]));
    inode.raw.i_size_lo.set(60);
    assert_eq!(inode.short_link_target(), None);
    inode.raw.i_size_lo.set(6);
    inode.set_flags(InodeFlags::EXTENTS);
    assert_eq!(inode.short_link_target(), None);
}

#[test]
fn inode_numbers_and_places_are_each_others_reverse() {
    let superblock = fixture();
    let layout = superblock.layout();
    for number in [1, 2, 11, 8192, 8193, 32768].map(InodeNumber) {
        let place = layout.locate_inode(number).unwrap();
        assert_eq!(layout.inode_at(place.group, place.index), number);
    }
    let place = layout.locate_inode(InodeNumber(8192 + 18)).unwrap();
    assert_eq!((place.group, place.index), (GroupNumber(1), 17));
    assert_eq!((place.table_block, place.byte), (1, 256));
    for number in [0, 32769, u32::MAX].map(InodeNumber) {
        let error = layout.locate_inode(number).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("inode {number}: no such inode among 32768")
        );
    }
}

#[test]
fn fields_of_another_system_than_linux_are_kept() {
    let mut superblock = fixture();
    let seed = superblock.seed();
    // The Hurd.
    superblock.edit(|raw| raw.s_creator_os.set(1)).unwrap();
    let layout = superblock.layout();
    let mut bytes = [0xAA; 256];
    bytes[128..130].copy_from_slice(&32u16.to_le_bytes());
    let before = bytes;
    let mut inode = Inode::read(&bytes, layout);
    assert_eq!(inode.xattr_block(layout), Some(PhysicalBlock(0xAAAA_AAAA)));
    inode.set_version(5, layout);
    inode.set_xattr_block(Some(PhysicalBlock(7)), layout);
    inode.write(&mut bytes, NUMBER, layout, seed);
    Inode::parse(&bytes, NUMBER, layout, seed).unwrap();
    // h_i_translator, h_i_mode_high, and the field that is the checksum on Linux.
    for field in [0x24..0x28, 0x76..0x78, 0x7C..0x80, 0x82..0x84, 0x98..0x9C] {
        assert_eq!(bytes[field.clone()], before[field]);
    }
    assert_eq!(inode.xattr_block(layout), Some(PhysicalBlock(7)));
}
