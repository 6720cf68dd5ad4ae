//! The scan of the inode tables: every inode in use is validated and its blocks are claimed.
//!
//! Link counts and directories are compared afterwards; the scan records a [`InodeState`] for every
//! inode and the runs of every directory.

use extant_ondisk::ext4::inode::{FileType, InodeFlags};
use extant_ondisk::ext4::layout::Mapping;
use extant_ondisk::ext4::xattr::{Attributes, NameIndex, XattrName, XattrValue};
use extant_ondisk::ext4::{
    Compat, GroupNumber, Incompat, Inode, InodeNumber, PhysicalBlock, RoCompat,
};
use extant_space::Result;

use crate::checker::{Check, Step};
use crate::file_blocks::{FileBlocks, Keep};
use crate::findings::{FindingKind, Location};
use crate::mapping::{Shape, walk};
use crate::states::{InodeState, InodeUse};
use crate::volume::{can_be_quota_file, quota_inodes};

/// Bytes of a table read at once.
const CHUNK_BYTES: u32 = 256 << 10;
/// Number of the inode of bad blocks.
const BAD_BLOCKS: InodeNumber = InodeNumber(1);
/// A regular file of this size needs `large_file`.
const LARGE_BYTES: u64 = 1 << 31;

impl Check<'_> {
    /// Validates all inodes.
    pub(crate) fn scan_inodes(&mut self) -> Result<()> {
        let zeros = vec![0; self.volume.layout().inode_bytes().into()];
        for group in self.volume.groups() {
            self.advance(Step::Inodes, group)?;
            let inodes = self.volume.inodes_in_use_max(group);
            self.scan_table(group, inodes, &zeros)?;
        }
        if self.states.kind(InodeNumber::ROOT) != Some(FileType::Directory) {
            let place = Location::inode(InodeNumber::ROOT);
            self.findings.add(
                FindingKind::ReservedInode,
                place,
                "the root is no directory",
            );
        }
        Ok(())
    }

    fn scan_table(&mut self, group: GroupNumber, inodes: u32, zeros: &[u8]) -> Result<()> {
        let layout = *self.volume.layout();
        let per_block = layout.inodes_per_block();
        let table = self.volume.group(group).descriptor.inode_table();
        let blocks = inodes.div_ceil(per_block);
        let chunk = (CHUNK_BYTES / layout.block_bytes()).max(1);
        for first in (0..blocks).step_by(chunk as usize) {
            let at = PhysicalBlock(table.0 + u64::from(first));
            let bytes = self.volume.blocks(at, chunk.min(blocks - first))?;
            let entries = bytes.chunks(zeros.len());
            for (index, bytes) in (first * per_block..inodes).zip(entries) {
                if bytes != zeros {
                    self.judge(layout.inode_at(group, index), bytes)?;
                }
            }
        }
        Ok(())
    }

    fn judge(&mut self, number: InodeNumber, bytes: &[u8]) -> Result<()> {
        let layout = *self.volume.layout();
        let place = Location::inode(number);
        let inode = Inode::read(bytes, &layout);
        if let Err(error) = Inode::parse(bytes, number, &layout, self.volume.seed()) {
            self.findings.add(FindingKind::Inode, place.clone(), error);
        }
        let usage = self.usage_of(number, &inode);
        if usage == InodeUse::None {
            if inode.links() == 0 && inode.mode().0 != 0 && inode.deletion_word() == 0 {
                let words = "deleted, and has no time of deletion";
                self.findings.add(FindingKind::Inode, place, words);
            }
            return Ok(());
        }
        let kind = inode.mode().file_type();
        let state = InodeState {
            usage,
            kind,
            links_stored: inode.links(),
            links_found: 0,
        };
        self.states.push(number, state);
        if usage != InodeUse::Orphan && inode.deletion_word() != 0 {
            let words = format_args!("in use, and i_dtime is {}", inode.deletion_word());
            self.findings.add(FindingKind::Inode, place.clone(), words);
        }
        if usage == InodeUse::Own {
            self.judge_own_mode(number, &inode);
        }
        if usage != InodeUse::Own {
            let Some(kind) = kind else {
                let words = format_args!("i_mode is {:#o}, which is no type", inode.mode().0);
                self.findings.add(FindingKind::Inode, place, words);
                return Ok(());
            };
            self.counts.add_file(kind);
            self.check_type(number, &inode, kind);
        }
        self.judge_fields(number, &inode);
        let blocks_of_attributes = self.check_attributes(number, bytes, &inode)?;
        if usage == InodeUse::File && inode.flags().contains(InodeFlags::ENCRYPT) {
            self.check_encryption(number, bytes, &inode)?;
        }
        if number == InodeNumber::RESIZE && self.has_resize_inode() {
            return self.check_resize_inode(&inode);
        }
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            self.keep_inline(number, bytes, &inode);
        }
        self.judge_blocks(number, &inode, usage, blocks_of_attributes)
    }

    /// Checks the data of an inode that stores it inline: `i_block`, and the attribute
    /// `system.data`.
    fn keep_inline(&mut self, number: InodeNumber, bytes: &[u8], inode: &Inode) {
        let layout = *self.volume.layout();
        let mut data = inode.block_area().to_vec();
        let attributes = Attributes::parse_inode(bytes, inode, &layout);
        // EXT4_XATTR_INDEX_SYSTEM.
        let name = XattrName {
            index: NameIndex(7),
            rest: (&b"data"[..]).into(),
        };
        let place = Location::inode(number);
        match attributes.as_ref().ok().and_then(|all| all.get(&name)) {
            Some(XattrValue::Bytes(rest)) => data.extend_from_slice(rest),
            _ => self.findings.add(
                FindingKind::Attributes,
                place.clone(),
                "data in the inode without system.data",
            ),
        }
        let (size, kind) = (inode.size_bytes(&layout), inode.mode().file_type());
        let is_wrong = match kind {
            Some(FileType::Directory) => size != data.len() as u64,
            // Zeros follow: mke2fs copies the data of a sparse file only.
            Some(FileType::Regular) => false,
            _ => size > data.len() as u64,
        };
        if is_wrong {
            let words = format_args!("i_size is {size}, with {} bytes in the inode", data.len());
            self.findings.add(FindingKind::Size, place, words);
        }
        if kind == Some(FileType::Directory) {
            self.inline_directories.insert(number, data);
        }
    }

    /// Usage of an inode, regardless of directories.
    fn usage_of(&self, number: InodeNumber, inode: &Inode) -> InodeUse {
        let superblock = self.volume.superblock();
        let is_own = number < self.volume.layout().first_inode() && number != InodeNumber::ROOT
            || self.journal_inode() == Some(number)
            || superblock.orphan_file() == Some(number)
            || self.is_quota_file(number);
        if is_own {
            let is_empty = inode.links() == 0 && number != BAD_BLOCKS;
            return if is_empty {
                InodeUse::None
            } else {
                InodeUse::Own
            };
        }
        if self.orphans.contains(&number) {
            return InodeUse::Orphan;
        }
        let has_values = superblock.features().incompat.contains(Incompat::EA_INODE);
        let is_value = has_values && inode.flags().contains(InodeFlags::EA_INODE);
        match (inode.links(), is_value) {
            (0, _) => InodeUse::None,
            (_, true) => InodeUse::AttributeValue,
            (_, false) => InodeUse::File,
        }
    }

    /// Whether the superblock names the inode as a file of quotas.
    fn is_quota_file(&self, number: InodeNumber) -> bool {
        let superblock = self.volume.superblock();
        let has_quota = superblock.features().ro_compat.contains(RoCompat::QUOTA);
        has_quota
            && can_be_quota_file(number.0, superblock)
            && quota_inodes(superblock).any(|(_, inode)| inode == number.0)
    }

    fn judge_own_mode(&mut self, number: InodeNumber, inode: &Inode) {
        let superblock = self.volume.superblock();
        let is_wanted = match number {
            InodeNumber::RESIZE => self.has_resize_inode(),
            InodeNumber::JOURNAL => self.journal_inode() == Some(number),
            _ => true,
        };
        let kind = inode.mode().file_type();
        let is_file = kind == Some(FileType::Regular);
        let needs_file = self.journal_inode() == Some(number)
            || superblock.orphan_file() == Some(number)
            || self.is_quota_file(number)
            || number == InodeNumber::RESIZE;
        // All that it has is a map of blocks.
        let raw = inode.raw();
        let is_more_than_map = inode.mode().0 != 0
            || inode.links() != 0
            || raw.i_uid.get() != 0
            || raw.i_gid.get() != 0
            || raw.i_file_acl_lo.get() != 0;
        let words = match (is_wanted, needs_file) {
            _ if number == BAD_BLOCKS && is_more_than_map => {
                "a list of bad blocks that is also a file"
            }
            (false, _) => "in use, and no feature asks for it",
            (true, true) if !is_file => "a file of the file system that is no regular file",
            (true, false) if kind.is_none() && inode.mode().0 != 0 => "i_mode is no type",
            _ => return,
        };
        self.findings
            .add(FindingKind::ReservedInode, Location::inode(number), words);
    }

    /// Flags, and fields that must be zero.
    fn judge_fields(&mut self, number: InodeNumber, inode: &Inode) {
        let features = *self.volume.superblock().features();
        let flags = inode.flags();
        let kind = inode.mode().file_type();
        let has_index = features.compat.contains(Compat::DIR_INDEX);
        let mut never = InodeFlags::COMPRBLK | InodeFlags::IMAGIC;
        for (flag, feature) in [
            (InodeFlags::INLINE_DATA, Incompat::INLINE_DATA),
            (InodeFlags::ENCRYPT, Incompat::ENCRYPT),
            (InodeFlags::CASEFOLD, Incompat::CASEFOLD),
        ] {
            never.set(flag, !features.incompat.contains(feature));
        }
        never.set(
            InodeFlags::VERITY,
            !features.ro_compat.contains(RoCompat::VERITY),
        );
        let raw = inode.raw();
        let is_linux = self.volume.layout().has_linux_inodes();
        let is_wide = features.incompat.contains(Incompat::BIT64);
        let problems = [
            (
                flags.intersects(never),
                "a flag of a feature that is not on",
            ),
            (
                flags.contains(InodeFlags::EXTENTS)
                    && !features.incompat.contains(Incompat::EXTENTS),
                "an extent tree without the feature",
            ),
            (
                flags.contains(InodeFlags::EA_INODE)
                    && !features.incompat.contains(Incompat::EA_INODE),
                "the value of an attribute without the feature",
            ),
            (
                flags.contains(InodeFlags::INDEX)
                    && !(has_index && kind == Some(FileType::Directory)),
                "a hash tree where there can be none",
            ),
            (
                flags.contains(InodeFlags::HUGE_FILE)
                    && !features.ro_compat.contains(RoCompat::HUGE_FILE),
                "i_blocks in blocks without the feature",
            ),
            (raw.i_obso_faddr.get() != 0, "i_obso_faddr is not 0"),
            (
                raw.l_i_blocks_high.get() != 0
                    && !features.ro_compat.contains(RoCompat::HUGE_FILE)
                    && is_linux,
                "l_i_blocks_high is not 0 without huge_file",
            ),
            (
                raw.l_i_file_acl_high.get() != 0 && !is_wide && is_linux,
                "l_i_file_acl_high is not 0 without 64bit",
            ),
        ];
        for (_, words) in problems.into_iter().filter(|(is_wrong, _)| *is_wrong) {
            self.findings
                .add(FindingKind::Inode, Location::inode(number), words);
        }
    }

    /// Walks the map of an inode, if it has one, and compares its blocks and its end.
    fn judge_blocks(
        &mut self,
        number: InodeNumber,
        inode: &Inode,
        usage: InodeUse,
        blocks_of_attributes: u64,
    ) -> Result<()> {
        let features = *self.volume.superblock().features();
        let kind = inode.mode().file_type();
        let is_inline = inode.flags().contains(InodeFlags::INLINE_DATA);
        let is_mapped = match kind {
            _ if is_inline => false,
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::SymbolicLink) => inode.short_link_target().is_none(),
            Some(_) => false,
            None => number == BAD_BLOCKS,
        };
        let mut blocks = FileBlocks::new(
            number,
            inode,
            &mut self.claims,
            &mut self.findings,
            &mut self.reread_left,
        );
        blocks.shares_data = kind == Some(FileType::Regular)
            && usage == InodeUse::File
            && features.ro_compat.contains(RoCompat::SHARED_BLOCKS);
        let is_own_file = usage == InodeUse::Own && kind == Some(FileType::Regular);
        if kind == Some(FileType::Directory) || kind == Some(FileType::SymbolicLink) || is_own_file
        {
            blocks.keep = Keep::Runs;
        }
        let shape = if is_mapped {
            Some(walk(&self.volume, number, inode, &mut blocks)?)
        } else {
            None
        };
        let summary = blocks.into_summary();
        self.count_shape(shape, usage);
        self.counts.extents += summary.extents;
        let taken = summary.blocks + blocks_of_attributes;
        if summary.is_scattered && taken < self.volume.layout().blocks_per_group().into() {
            match kind {
                Some(FileType::Directory) => self.counts.non_contiguous_directories += 1,
                _ => self.counts.non_contiguous_files += 1,
            }
        }
        // Reserved inodes that are not files are not counted.
        if number != BAD_BLOCKS {
            self.check_block_count(number, inode, taken);
        }
        match kind {
            Some(FileType::Directory) => self.add_directory(number, inode, summary),
            Some(FileType::Regular) if is_inline => {}
            Some(FileType::Regular) => {
                self.check_size(number, inode, usage, summary.last_written);
                if self.journal_inode() == Some(number) {
                    self.check_journal(number, &summary.runs)?;
                }
            }
            Some(FileType::SymbolicLink) => self.check_link_target(number, inode, &summary.runs)?,
            _ => {}
        }
        Ok(())
    }

    fn count_shape(&mut self, shape: Option<Shape>, usage: InodeUse) {
        match shape {
            Some(Shape::Tree { depth }) => self.counts.trees_by_depth[usize::from(depth)] += 1,
            Some(Shape::Blocks { indirect }) if usage != InodeUse::Own => {
                for (count, is_there) in self.counts.indirect_blocks.iter_mut().zip(indirect) {
                    *count += u64::from(is_there);
                }
            }
            _ => {}
        }
    }

    /// Blocks past the end are allowed if they are not written, and one block more: blocks behind
    /// the last byte may be allocated before the size changes.
    fn check_size(
        &mut self,
        number: InodeNumber,
        inode: &Inode,
        usage: InodeUse,
        last_written: Option<u64>,
    ) {
        let layout = self.volume.layout();
        let size = inode.size_bytes(layout);
        let mapping = if inode.flags().contains(InodeFlags::EXTENTS) {
            Mapping::Extents
        } else {
            Mapping::Blocks
        };
        let place = Location::inode(number);
        let most = layout.file_bytes_max(mapping);
        if size > most {
            let words = format_args!("i_size is {size}, more than {most}");
            self.findings.add(FindingKind::Size, place.clone(), words);
        }
        let end = if inode.flags().contains(InodeFlags::VERITY) {
            // The tree of hashes is behind the end.
            0
        } else {
            last_written.map_or(0, |last| last << layout.block_bits())
        };
        if size < end && usage != InodeUse::Orphan {
            let words = format_args!("i_size is {size}, and a block is written at byte {end}");
            self.findings.add(FindingKind::Size, place.clone(), words);
        }
        let features = self.volume.superblock().features();
        if size >= LARGE_BYTES && !features.ro_compat.contains(RoCompat::LARGE_FILE) {
            let words = format_args!("i_size is {size} without large_file");
            self.findings.add(FindingKind::Feature, place, words);
        }
    }
}
