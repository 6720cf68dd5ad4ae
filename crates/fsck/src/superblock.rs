//! The superblock with its copies, and the group descriptors; the blocks that they occupy.
//!
//! A superblock that cannot be right ends the check: nothing that follows would mean anything. A
//! descriptor that cannot be right costs its group.

use std::fmt::Display;

use extant_blockdev::Device;
use extant_ondisk::ext4::group_descriptor::GroupFlags;
use extant_ondisk::ext4::mmp::Mmp;
use extant_ondisk::ext4::{
    Compat, Features, GroupDescriptor, GroupNumber, Incompat, PhysicalBlock, RoCompat, Superblock,
};
use extant_space::{ByteRange, Error, ErrorKind, Result};

use crate::checker::Check;
use crate::findings::{FindingKind, Findings, Location};
use crate::options::Backups;
use crate::volume::{Group, Places, can_be_quota_file, quota_inodes, read};

/// Features that the check supports in full.
const CHECKED: Features = Features {
    compat: Features::UNDERSTOOD.compat,
    incompat: Features::UNDERSTOOD
        .incompat
        .union(Incompat::MMP)
        .union(Incompat::INLINE_DATA)
        .union(Incompat::ENCRYPT)
        .union(Incompat::CASEFOLD),
    ro_compat: Features::UNDERSTOOD
        .ro_compat
        .union(RoCompat::READONLY)
        .union(RoCompat::QUOTA)
        .union(RoCompat::PROJECT)
        .union(RoCompat::SHARED_BLOCKS)
        .union(RoCompat::VERITY),
};
/// More groups than that are refused, 2 PiB in blocks of 4 KiB: a sparse image can claim as many as
/// it likes, and each costs memory.
const GROUPS_MAX: u32 = 1 << 24;

/// Reads and validates the superblock; `None` after a finding that ends the check.
///
/// # Errors
/// `Unsupported` for unknown features, and for too many groups.
pub(crate) fn open(device: &dyn Device, findings: &mut Findings) -> Result<Option<Superblock>> {
    let size = device.geometry().size;
    let range = ByteRange::new(
        Superblock::OFFSET,
        Superblock::OFFSET + Superblock::BYTES as u64,
    );
    let mut wrong = |words: &dyn Display| {
        findings.add(FindingKind::Superblock, Location::default(), words);
        Ok(None)
    };
    if range.end() > size {
        return wrong(&format_args!(
            "the device has {size} bytes, no room for a superblock"
        ));
    }
    let superblock = match Superblock::parse(&read(device, range)?) {
        Ok(superblock) => superblock,
        Err(error) if error.kind() == ErrorKind::Corrupt => return wrong(&error),
        Err(error) => return Err(error),
    };
    refuse_unknown(superblock.features())?;
    let layout = superblock.layout();
    if layout.groups() > GROUPS_MAX {
        let detail = format!(
            "superblock: {} groups, of {GROUPS_MAX} at most",
            layout.groups()
        );
        return Err(Error::new(ErrorKind::Unsupported).detail(detail));
    }
    let needed = layout.blocks() << layout.block_bits();
    if needed > size {
        return wrong(&format_args!(
            "the file system has {needed} bytes, the device {size}"
        ));
    }
    let clusters = superblock.raw().s_clusters_per_group.get();
    if clusters != layout.clusters_per_group() {
        let expected = layout.clusters_per_group();
        return wrong(&format_args!(
            "s_clusters_per_group is {clusters}, not {expected}"
        ));
    }
    if superblock.reserved_blocks() > layout.blocks() / 2 {
        let reserved = superblock.reserved_blocks();
        return wrong(&format_args!(
            "s_r_blocks_count is {reserved}, more than half of all"
        ));
    }
    Ok(Some(superblock))
}

fn refuse_unknown(features: &Features) -> Result<()> {
    let advice = "check it with e2fsck";
    let unknown: Vec<_> = features.compat.difference(CHECKED.compat).names().collect();
    if !unknown.is_empty() {
        let detail = format!(
            "superblock: features that are not known: {}",
            unknown.join(", ")
        );
        return Err(Error::new(ErrorKind::Unsupported)
            .detail(detail)
            .advice(advice));
    }
    // A check without knowledge of a feature would report unchecked parts as valid.
    features
        .check(&CHECKED, extant_ondisk::ext4::Access::ReadWrite)
        .map_err(|error| error.advice(advice))
}

impl Check<'_> {
    /// Checks the copies of the superblock and the features.
    pub(crate) fn check_superblock(&mut self, backups: Backups) -> Result<()> {
        let superblock = self.volume.superblock();
        let features = *superblock.features();
        let raw = superblock.raw();
        if !features.compat.contains(Compat::RESIZE_INODE) && raw.s_reserved_gdt_blocks.get() != 0 {
            let reserved = raw.s_reserved_gdt_blocks.get();
            self.findings.add(
                FindingKind::Feature,
                Location::default(),
                format_args!("s_reserved_gdt_blocks is {reserved} without resize_inode"),
            );
        }
        let with_both = features.compat.contains(Compat::RESIZE_INODE)
            && features.incompat.contains(Incompat::META_BG);
        if with_both {
            let words = "resize_inode and meta_bg, of which one can be";
            self.findings
                .add(FindingKind::Feature, Location::default(), words);
        }
        if superblock.has_orphans_in_file() && !features.compat.contains(Compat::ORPHAN_FILE) {
            let words = "orphan_present without orphan_file";
            self.findings
                .add(FindingKind::Feature, Location::default(), words);
        }
        for (field, number) in quota_inodes(superblock) {
            if !can_be_quota_file(number, superblock) {
                let words = format_args!("{field} is {number}, which can be no file of quotas");
                self.findings
                    .add(FindingKind::ReservedInode, Location::default(), words);
            }
        }
        let mmp_block = raw.s_mmp_block.get();
        if backups == Backups::Compare {
            let layout = *self.volume.layout();
            for group in layout.superblock_backups() {
                self.check_backup(group)?;
            }
        }
        if features.incompat.contains(Incompat::MMP) {
            self.check_mmp(PhysicalBlock(mmp_block))?;
        }
        Ok(())
    }

    /// A copy must be whole and describe the same file system. Its counts and features are
    /// those of the day when it was made.
    fn check_backup(&mut self, group: GroupNumber) -> Result<()> {
        let Some(block) = self.volume.layout().superblock_block(group) else {
            return Ok(());
        };
        let bytes = self.volume.block(block)?;
        let place = Location::group(group).in_block(block);
        match Superblock::parse(&bytes) {
            Ok(copy) if identity(&copy) == identity(self.volume.superblock()) => {}
            Ok(_) => {
                let words = "a superblock of another file system, or of another size";
                self.findings.add(FindingKind::Backup, place, words);
            }
            Err(error) => self.findings.add(FindingKind::Backup, place, error),
        }
        Ok(())
    }

    fn check_mmp(&mut self, block: PhysicalBlock) -> Result<()> {
        if !self.volume.layout().holds(block, 1) {
            let words = format_args!("s_mmp_block is {block}, outside the file system");
            self.findings
                .add(FindingKind::Mmp, Location::default(), words);
            return Ok(());
        }
        self.claim_fixed(
            block,
            1,
            Location::block(block),
            "the block of multiple-mount protection",
        );
        if let Err(error) = Mmp::parse(&self.volume.block(block)?, self.volume.seed()) {
            self.findings
                .add(FindingKind::Mmp, Location::block(block), error);
        }
        Ok(())
    }

    /// Reads all descriptors, and claims the fixed blocks of groups.
    pub(crate) fn read_groups(&mut self) -> Result<()> {
        let layout = *self.volume.layout();
        let per_block = layout.descriptors_per_block();
        for index in 0..layout.descriptor_blocks() {
            let bytes = self.volume.block(layout.descriptor_block(index))?;
            let first = index * per_block;
            let last = layout.groups().min(first + per_block);
            for (group, bytes) in (first..last).zip(bytes.chunks(layout.descriptor_bytes().into()))
            {
                self.read_group(GroupNumber(group), bytes);
            }
        }
        for group in self.volume.groups() {
            self.claim_group(group);
        }
        Ok(())
    }

    fn read_group(&mut self, number: GroupNumber, bytes: &[u8]) {
        let superblock = self.volume.superblock();
        let layout = superblock.layout();
        let descriptor = GroupDescriptor::read(bytes, layout);
        if let Err(error) = GroupDescriptor::parse(bytes, number, superblock) {
            self.findings
                .add(FindingKind::Descriptor, Location::group(number), error);
        }
        // The kernel passes them over, others may not.
        let flags = GroupFlags::from_bits_retain(descriptor.raw().bg_flags.get());
        let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        if flags.intersects(uninit) && !layout.features().has_group_checksums() {
            let words = format_args!("bg_flags is {:#x} without uninit_bg", flags.bits());
            self.findings
                .add(FindingKind::Descriptor, Location::group(number), words);
        }
        let table = layout.inode_table_blocks().into();
        let is_inside = layout.holds(descriptor.block_bitmap(), 1)
            && layout.holds(descriptor.inode_bitmap(), 1)
            && layout.holds(descriptor.inode_table(), table);
        self.volume.push_group(Group {
            descriptor,
            places: if is_inside {
                Places::Known
            } else {
                Places::Unknown
            },
        });
    }

    fn claim_group(&mut self, number: GroupNumber) {
        let layout = *self.volume.layout();
        // In a last group that is too short for them they would be beyond the end.
        let fixed = layout.fixed_blocks(number).min(layout.blocks_in(number));
        let first = layout.first_block(number);
        let place = Location::group(number);
        self.claim_fixed(
            first,
            fixed.into(),
            place.clone(),
            "superblock and descriptors",
        );
        let Group { descriptor, places } = self.volume.group(number);
        if *places == Places::Unknown {
            return;
        }
        let parts = [
            (descriptor.block_bitmap(), 1, "the block bitmap"),
            (descriptor.inode_bitmap(), 1, "the inode bitmap"),
            (
                descriptor.inode_table(),
                layout.inode_table_blocks(),
                "the inode table",
            ),
        ];
        for (block, blocks, owner) in parts {
            self.claim_fixed(block, blocks.into(), place.clone(), owner);
        }
    }

    fn claim_fixed(&mut self, start: PhysicalBlock, blocks: u64, place: Location, owner: &str) {
        self.claims
            .claim_for(owner, start, blocks, place, &mut self.findings);
    }
}

/// Fields that a copy of the superblock shares with the superblock as long as the size does not
/// change.
fn identity(superblock: &Superblock) -> impl PartialEq + use<> {
    let raw = superblock.raw();
    (
        [
            raw.s_blocks_count_lo,
            raw.s_blocks_count_hi,
            raw.s_first_data_block,
            raw.s_log_block_size,
            raw.s_blocks_per_group,
            raw.s_inodes_per_group,
            raw.s_inodes_count,
        ],
        // Not s_inode_size: it is unused in revision 0, which a later change replaces by 1 in the
        // superblock alone.
        superblock.layout().inode_bytes(),
        raw.s_uuid,
    )
}
