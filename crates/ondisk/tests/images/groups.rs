//! Layout and descriptors against dumpe2fs.

use std::ops::RangeInclusive;

use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::{GroupDescriptor, GroupNumber, Layout, PhysicalBlock, Superblock};
use extant_testkit::command::{self, tool};

use crate::image::Image;

/// A group in the output of dumpe2fs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Group {
    blocks: Option<RangeInclusive<u64>>,
    superblock: Option<u64>,
    descriptors: Option<RangeInclusive<u64>>,
    reserved: Option<RangeInclusive<u64>>,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: Option<RangeInclusive<u64>>,
    free_blocks: u64,
    free_inodes: u64,
    directories: u64,
    unused_inodes: u64,
    inode_uninit: bool,
    block_uninit: bool,
}

/// Compares all groups, and the places of the copies.
#[track_caller]
pub fn check(image: &Image) -> u32 {
    let superblock = image.superblock();
    let layout = superblock.layout();
    let mut command = tool("dumpe2fs");
    let text = command::text(command.arg(image.path())).unwrap();
    let said = parse(&text);
    assert_eq!(said.len(), layout.groups() as usize, "{text}");
    for (number, said) in said.iter().enumerate() {
        let group = GroupNumber(number as u32);
        let ours = ours(image, &superblock, group);
        assert_eq!(ours, *said, "group {group}");
    }
    layout.groups()
}

fn ours(image: &Image, superblock: &Superblock, group: GroupNumber) -> Group {
    let layout = superblock.layout();
    let place = layout.descriptor_place(group);
    let block = image.block(layout, place.block);
    let bytes = &block[place.byte as usize..];
    let descriptor = GroupDescriptor::parse(bytes, group, superblock).unwrap();
    let first = layout.first_block(group).0;
    let table = descriptor.inode_table().0;
    let flags = descriptor.flags(layout);
    let has_sums = layout.features().has_group_checksums();
    Group {
        blocks: Some(first..=first + u64::from(layout.blocks_in(group)) - 1),
        superblock: layout.superblock_block(group).map(|block| block.0),
        descriptors: descriptors(layout, group),
        reserved: reserved(layout, group),
        block_bitmap: descriptor.block_bitmap().0,
        inode_bitmap: descriptor.inode_bitmap().0,
        inode_table: Some(table..=table + u64::from(layout.inode_table_blocks()) - 1),
        free_blocks: descriptor.free_blocks().into(),
        free_inodes: descriptor.free_inodes().into(),
        directories: descriptor.used_directories().into(),
        unused_inodes: if has_sums {
            descriptor.unused_inodes().into()
        } else {
            0
        },
        inode_uninit: flags.contains(GroupFlags::INODE_UNINIT),
        block_uninit: flags.contains(GroupFlags::BLOCK_UNINIT),
    }
}

/// The part of the descriptor table in a group, from where its blocks and their copies are.
fn descriptors(layout: &Layout, group: GroupNumber) -> Option<RangeInclusive<u64>> {
    let mut found: Option<RangeInclusive<u64>> = None;
    for index in 0..layout.descriptor_blocks() {
        let used = std::iter::once(layout.descriptor_block(index));
        let here = used
            .chain(layout.descriptor_block_backups(index))
            .find(|&block| layout.locate(block).is_some_and(|(at, _)| at == group));
        if let Some(PhysicalBlock(block)) = here {
            let start = found.as_ref().map_or(block, |found| *found.start());
            found = Some(start..=block);
        }
    }
    found
}

/// Fixed metadata at the start of a group except superblock and descriptors.
fn reserved(layout: &Layout, group: GroupNumber) -> Option<RangeInclusive<u64>> {
    let fixed_end = layout.first_block(group).0 + u64::from(layout.fixed_blocks(group));
    let start = descriptors(layout, group)?.end() + 1;
    (start < fixed_end).then(|| start..=fixed_end - 1)
}

fn parse(text: &str) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in text.lines() {
        if let Some((_, blocks)) = line.split_once("(Blocks ") {
            groups.push(Group {
                blocks: range(blocks.split(')').next().unwrap()),
                inode_uninit: line.contains("INODE_UNINIT"),
                block_uninit: line.contains("BLOCK_UNINIT"),
                ..Group::default()
            });
            continue;
        }
        let Some(group) = groups.last_mut().filter(|_| line.starts_with("  ")) else {
            continue;
        };
        let line = line.trim_start();
        if line.starts_with(|c: char| c.is_ascii_digit()) {
            let mut counts = line.split(", ").map(number);
            let mut next = || counts.next().unwrap_or_default();
            group.free_blocks = next();
            group.free_inodes = next();
            group.directories = next();
            group.unused_inodes = next();
        }
        for (name, place) in line.split(", ").filter_map(|part| part.split_once(" at ")) {
            match name {
                "Primary superblock" | "Backup superblock" => {
                    group.superblock = Some(number(place));
                }
                "Group descriptor" | "Group descriptors" => group.descriptors = range(place),
                "Reserved GDT blocks" => group.reserved = range(place),
                "Block bitmap" => group.block_bitmap = number(place),
                "Inode bitmap" => group.inode_bitmap = number(place),
                "Inode table" => group.inode_table = range(place),
                _ => {}
            }
        }
    }
    groups
}

fn number(text: &str) -> u64 {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text[..end.unwrap_or(text.len())].parse().unwrap()
}

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    let first = number(text);
    let last = text.split_once('-').map_or(first, |(_, last)| number(last));
    Some(first..=last)
}
