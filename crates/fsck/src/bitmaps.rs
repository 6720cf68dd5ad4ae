//! Bitmaps and counts of the groups, compared with the blocks and inodes found in use.

use extant_ondisk::ext4::bitmap::Bitmap;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::inode::FileType;
use extant_ondisk::ext4::{GroupDescriptor, GroupNumber, PhysicalBlock};
use extant_space::Result;

use crate::checker::{Check, Step};
use crate::findings::{FindingKind, Location};
use crate::options::Totals;
use crate::volume::{Group, Places};

const BITS: u32 = u64::BITS;

/// Expected contents of a group.
struct Expected {
    free_blocks: u32,
    free_inodes: u32,
    directories: u32,
}

impl Check<'_> {
    /// Compares all groups, and their totals with the superblock.
    pub(crate) fn check_bitmaps(&mut self, totals: Totals) -> Result<()> {
        let (mut free_blocks, mut free_inodes) = (0, 0);
        let nothing = vec![0; self.volume.layout().blocks_per_group().div_ceil(BITS) as usize];
        for group in self.volume.groups() {
            self.advance(Step::Bitmaps, group)?;
            let Group { descriptor, places } = self.volume.group(group);
            let (descriptor, places) = (*descriptor, *places);
            let claimed = self.claims.take_group(group);
            let blocks_used = claimed.as_deref().unwrap_or(&nothing);
            let inodes_used = self.used_inodes(group);
            if places == Places::Known {
                self.check_block_bitmap(group, &descriptor, blocks_used)?;
                self.check_inode_bitmap(group, &descriptor, &inodes_used)?;
            }
            let layout = self.volume.layout();
            let expected = Expected {
                free_blocks: layout.blocks_in(group) - ones(blocks_used),
                free_inodes: layout.inodes_per_group() - ones(&inodes_used),
                directories: self.directories_in(group),
            };
            free_blocks += u64::from(expected.free_blocks);
            free_inodes += expected.free_inodes;
            self.check_counts(group, &descriptor, &expected);
        }
        let layout = self.volume.layout();
        self.counts.blocks_total = layout.blocks();
        self.counts.blocks_used = layout.blocks() - free_blocks;
        self.counts.inodes_total = layout.inodes().into();
        self.counts.inodes_used = (layout.inodes() - free_inodes).into();
        if totals == Totals::Compare {
            self.check_totals(free_blocks, free_inodes);
        }
        Ok(())
    }

    fn used_inodes(&self, group: GroupNumber) -> Vec<u64> {
        let layout = self.volume.layout();
        let mut bits = vec![0; layout.inodes_per_group().div_ceil(BITS) as usize];
        let mut set = |index: u32| bits[(index / BITS) as usize] |= 1 << (index % BITS);
        for (index, _) in self.states.of_group(group) {
            set(*index);
        }
        let first = layout.inode_at(group, 0).0;
        // Reserved inodes are marked whether or not there is something in them.
        for number in first
            ..layout
                .first_inode()
                .0
                .min(first + layout.inodes_per_group())
        {
            set(number - first);
        }
        bits
    }

    fn directories_in(&self, group: GroupNumber) -> u32 {
        let states = self.states.of_group(group).iter();
        let directories = states.filter(|(_, state)| state.kind == Some(FileType::Directory));
        directories.count() as u32
    }

    fn check_block_bitmap(
        &mut self,
        group: GroupNumber,
        descriptor: &GroupDescriptor,
        used: &[u64],
    ) -> Result<()> {
        let layout = *self.volume.layout();
        let place = Location::group(group);
        if descriptor.flags(&layout).contains(GroupFlags::BLOCK_UNINIT) {
            let own = self.own_blocks(group, descriptor);
            if ones(used) != own {
                let words = format_args!(
                    "{} blocks are in use, and {own} in a group that was never used",
                    ones(used)
                );
                self.findings.add(FindingKind::BlockBitmap, place, words);
            }
            return Ok(());
        }
        let bytes = self.volume.block(descriptor.block_bitmap())?;
        let place = place.in_block(descriptor.block_bitmap());
        let superblock = self.volume.superblock();
        if let Err(error) = Bitmap::Blocks.verify(&bytes, group, descriptor, superblock) {
            self.findings
                .add(FindingKind::BitmapChecksum, place.clone(), error);
        }
        let first = layout.first_block(group);
        let name = |bit: u32| PhysicalBlock(first.0 + u64::from(bit)).to_string();
        let blocks = layout.blocks_in(group);
        self.compare(
            FindingKind::BlockBitmap,
            &place,
            &bytes,
            used,
            blocks,
            &name,
        );
        self.check_padding(&place, &bytes, blocks, "block");
        Ok(())
    }

    /// Blocks that a group has whether or not its bitmap was ever written.
    fn own_blocks(&self, group: GroupNumber, descriptor: &GroupDescriptor) -> u32 {
        let layout = self.volume.layout();
        let first = layout.first_block(group).0;
        let end = first + u64::from(layout.blocks_in(group));
        let parts = [
            (descriptor.block_bitmap(), 1),
            (descriptor.inode_bitmap(), 1),
            (descriptor.inode_table(), layout.inode_table_blocks()),
        ];
        let inside = parts.iter().map(|(block, blocks)| {
            let part_end = block.0 + u64::from(*blocks);
            part_end.min(end).saturating_sub(block.0.max(first)) as u32
        });
        layout.fixed_blocks(group) + inside.sum::<u32>()
    }

    fn check_inode_bitmap(
        &mut self,
        group: GroupNumber,
        descriptor: &GroupDescriptor,
        used: &[u64],
    ) -> Result<()> {
        let layout = *self.volume.layout();
        let flags = descriptor.flags(&layout);
        if flags.contains(GroupFlags::INODE_UNINIT) {
            if ones(used) != 0 {
                let words = "reserved inodes in a group whose inodes were never used";
                self.findings
                    .add(FindingKind::InodeBitmap, Location::group(group), words);
            }
            return Ok(());
        }
        let bytes = self.volume.block(descriptor.inode_bitmap())?;
        let place = Location::group(group).in_block(descriptor.inode_bitmap());
        let superblock = self.volume.superblock();
        if let Err(error) = Bitmap::Inodes.verify(&bytes, group, descriptor, superblock) {
            self.findings
                .add(FindingKind::BitmapChecksum, place.clone(), error);
        }
        let name = |bit: u32| layout.inode_at(group, bit).to_string();
        let inodes = layout.inodes_per_group();
        self.compare(
            FindingKind::InodeBitmap,
            &place,
            &bytes,
            used,
            inodes,
            &name,
        );
        self.check_padding(&place, &bytes, inodes, "inode");
        Ok(())
    }

    /// A finding for every run of bits that differ in the same way.
    fn compare(
        &mut self,
        kind: FindingKind,
        place: &Location,
        bitmap: &[u8],
        used: &[u64],
        bits: u32,
        name: &dyn Fn(u32) -> String,
    ) {
        let mut run: Option<(u32, bool)> = None;
        let mut end = |start: u32, end: u32, is_marked: bool| {
            let what = if start + 1 == end {
                name(start)
            } else {
                format!("{} to {}", name(start), name(end - 1))
            };
            let what = match kind {
                FindingKind::InodeBitmap => format!("inode {what}"),
                _ => format!("block {what}"),
            };
            let words = if is_marked {
                format!("{what}: marked, and not in use")
            } else {
                format!("{what}: in use, and not marked")
            };
            self.findings.add(kind, place.clone(), words);
        };
        let (words, _) = bitmap.as_chunks::<8>();
        for (index, (word, used)) in (0..).zip(words.iter().zip(used)) {
            let word = u64::from_le_bytes(*word);
            let start = index * BITS;
            if word == *used && run.is_none() || start >= bits {
                continue;
            }
            for bit in start..bits.min(start + BITS) {
                let is_marked = word >> (bit - start) & 1 == 1;
                let differs = is_marked != (used >> (bit - start) & 1 == 1);
                match run {
                    Some((_, same)) if differs && same == is_marked => {}
                    _ => {
                        if let Some((from, is_marked)) = run.take() {
                            end(from, bit, is_marked);
                        }
                        run = differs.then_some((bit, is_marked));
                    }
                }
            }
        }
        if let Some((from, is_marked)) = run {
            end(from, bits, is_marked);
        }
    }

    /// Bits after the last one are set, so that they are not allocated.
    fn check_padding(&mut self, place: &Location, bitmap: &[u8], bits: u32, name: &str) {
        let (whole, rest) = bitmap.split_at((bits / 8) as usize);
        debug_assert_eq!(whole.len(), (bits / 8) as usize);
        let first = rest
            .first()
            .is_none_or(|byte| byte >> (bits % 8) == 0xFF >> (bits % 8));
        if !first || rest.iter().skip(1).any(|&byte| byte != 0xFF) {
            let words = format_args!("bits past the end of the {name} bitmap are clear");
            self.findings
                .add(FindingKind::BitmapPadding, place.clone(), words);
        }
    }

    fn check_counts(&mut self, group: GroupNumber, stored: &GroupDescriptor, expected: &Expected) {
        for (field, stored, expected) in [
            (
                "bg_free_blocks_count",
                stored.free_blocks(),
                expected.free_blocks,
            ),
            (
                "bg_free_inodes_count",
                stored.free_inodes(),
                expected.free_inodes,
            ),
            (
                "bg_used_dirs_count",
                stored.used_directories(),
                expected.directories,
            ),
        ] {
            if stored != expected {
                let words = format_args!("{field} is {stored}, not {expected}");
                self.findings
                    .add(FindingKind::GroupCounts, Location::group(group), words);
            }
        }
    }

    fn check_totals(&mut self, free_blocks: u64, free_inodes: u32) {
        let superblock = self.volume.superblock();
        for (field, stored, expected) in [
            ("s_free_blocks_count", superblock.free_blocks(), free_blocks),
            (
                "s_free_inodes_count",
                superblock.free_inodes().into(),
                free_inodes.into(),
            ),
        ] {
            if stored != expected {
                let words = format_args!("{field} is {stored}, not {expected}");
                self.findings
                    .add(FindingKind::Totals, Location::default(), words);
            }
        }
    }
}

fn ones(bits: &[u64]) -> u32 {
    bits.iter().map(|word| word.count_ones()).sum()
}
