//! Inodes: everything about a file except its name and its data.
//!
//! Model: an entry of an inode table has the size given by the superblock, at least 128 bytes. If
//! it is larger, `i_extra_isize` is the number of bytes after the first 128 that are fields; the
//! rest belongs to extended attributes. [`Inode`] is a copy of the existing fields.
//! [`Inode::write`] writes them back into the bytes of the table, so that attributes and unknown
//! fields survive, and seals the whole.
//!
//! Invariants:
//! - a field past `i_extra_isize` reads as absent and is never written;
//! - a sealed inode has the checksum of all its bytes, whose high half is stored only if
//!   `i_extra_isize` covers it.
//!
//! Format: docs/formats/ext4.md, "Inode".

mod device;
mod flags;
mod mode;
mod raw;
mod timestamp;

use core::mem::offset_of;

use extant_space::{Error, ErrorKind, Result};
use zerocopy::{FromZeros, IntoBytes};

pub use device::DeviceNumber;
pub use flags::InodeFlags;
pub use mode::{FileType, Mode};
pub use raw::RawInode;
pub use timestamp::{TimeField, Timestamp};

use super::{InodeNumber, InodeSeed, Layout, PhysicalBlock, Seed};
use crate::fault::{check_range, check_sum, corrupt};
use crate::narrow::{fit16, low16, low32};

const CHECKSUM_LO: usize = offset_of!(RawInode, l_i_checksum_lo);
const CHECKSUM_HI: usize = offset_of!(RawInode, i_checksum_hi);

/// A copy of the fields of one inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    raw: RawInode,
    /// Bytes after the first 128 that are fields.
    extra: u16,
}

impl Inode {
    /// Bytes that every inode has.
    pub const BASE_BYTES: u16 = 128;
    /// Bytes of fields after those that are known here: `i_extra_isize` of new inodes.
    pub const EXTRA_BYTES: u16 = fit16(size_of::<RawInode>()) - Self::BASE_BYTES;

    /// An inode of nothing, with room for `extra_isize` bytes of fields past the first 128.
    ///
    /// # Panics
    /// When `extra_isize` is no multiple of 4.
    pub fn zeroed(extra_isize: u16) -> Self {
        assert!(extra_isize.is_multiple_of(4));
        let mut raw = RawInode::new_zeroed();
        raw.i_extra_isize.set(extra_isize);
        Self {
            raw,
            extra: extra_isize,
        }
    }

    /// Reads the inode at the start of `bytes` without judging it; only an `i_extra_isize` beyond
    /// the inode is clipped to the available room.
    ///
    /// # Panics
    /// When `bytes` are fewer than the layout's inodes have.
    pub fn read(bytes: &[u8], layout: &Layout) -> Self {
        let bytes = &bytes[..layout.inode_bytes().into()];
        let room = layout.inode_bytes() - Self::BASE_BYTES;
        let mut raw = RawInode::new_zeroed();
        let base = usize::from(Self::BASE_BYTES);
        raw.as_mut_bytes()[..base].copy_from_slice(&bytes[..base]);
        let extra = match bytes.get(base..base + 2) {
            Some(size) => u16::from_le_bytes([size[0], size[1]]).min(room),
            None => 0,
        };
        let kept = fields_end(extra);
        raw.as_mut_bytes()[..kept].copy_from_slice(&bytes[..kept]);
        Self { raw, extra }
    }

    /// Reads and validates the inode `number` at the start of `bytes`: its checksum, and that its
    /// fields fit. An inode never used is all zeros and passes; see [`is_unused`](Self::is_unused).
    ///
    /// # Errors
    /// `Corrupt` with inode, field and value.
    ///
    /// # Panics
    /// If `bytes` are fewer than the layout's inodes have.
    pub fn parse(
        bytes: &[u8],
        number: InodeNumber,
        layout: &Layout,
        seed: Option<Seed>,
    ) -> Result<Self> {
        let inode = Self::read(bytes, layout);
        let bytes = &bytes[..layout.inode_bytes().into()];
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(inode);
        }
        let name = format!("inode {number}");
        let room = layout.inode_bytes() - Self::BASE_BYTES;
        if room > 0 {
            let stored = u16::from_le_bytes([bytes[128], bytes[129]]);
            check_range(&name, "i_extra_isize", stored.into(), 0..=room.into())?;
            if !stored.is_multiple_of(4) {
                let problem = format_args!("i_extra_isize is {stored}, not a multiple of 4");
                return Err(corrupt(&name, problem));
            }
        }
        if let Some(seed) = seed.filter(|_| layout.has_linux_inodes()) {
            let sum = computed_checksum(bytes, inode.seed(seed, number), inode.extra);
            check_sum(&name, inode.stored_checksum(), sum)?;
        }
        Ok(inode)
    }

    /// Puts the fields into `bytes`, where the inode `number` is, and seals it.
    ///
    /// # Panics
    /// When `bytes` are fewer than the layout's inodes have, or have no room for the fields.
    pub fn write(
        &self,
        bytes: &mut [u8],
        number: InodeNumber,
        layout: &Layout,
        seed: Option<Seed>,
    ) {
        assert!(
            Self::BASE_BYTES + self.extra <= layout.inode_bytes(),
            "inode {number} has fields past its end"
        );
        let bytes = &mut bytes[..layout.inode_bytes().into()];
        let kept = fields_end(self.extra);
        bytes[..kept].copy_from_slice(&self.raw.as_bytes()[..kept]);
        if layout.inode_bytes() > Self::BASE_BYTES && self.extra == 0 {
            // The size itself is not among the fields that it counts.
            bytes[128..130].fill(0);
        }
        if let Some(seed) = seed.filter(|_| layout.has_linux_inodes()) {
            let sum = computed_checksum(bytes, self.seed(seed, number), self.extra);
            bytes[CHECKSUM_LO..CHECKSUM_LO + 2].copy_from_slice(&low16(sum).to_le_bytes());
            if covers_high_checksum(self.extra) {
                let high = (sum >> 16) as u16;
                bytes[CHECKSUM_HI..CHECKSUM_HI + 2].copy_from_slice(&high.to_le_bytes());
            }
        }
    }

    /// The checksum seed of the structures of this inode.
    pub fn seed(&self, seed: Seed, number: InodeNumber) -> InodeSeed {
        seed.inode(number, self.generation())
    }

    /// The fields as they are.
    pub fn raw(&self) -> &RawInode {
        &self.raw
    }

    /// Whether it was never used, or was deleted: no links and no mode, or a deletion time. An
    /// orphan on the list looks the same: its `i_dtime` is the next one.
    pub fn is_unused(&self) -> bool {
        self.links() == 0 && (self.raw.i_mode.get() == 0 || self.raw.i_dtime.get() != 0)
    }

    /// Bytes after the first 128 that are fields.
    pub fn extra_isize(&self) -> u16 {
        self.extra
    }

    /// Type and permissions.
    pub fn mode(&self) -> Mode {
        Mode(self.raw.i_mode.get())
    }

    /// Sets type and permissions.
    pub fn set_mode(&mut self, mode: Mode) {
        self.raw.i_mode.set(mode.0);
    }

    /// The owner.
    pub fn uid(&self) -> u32 {
        u32::from(self.raw.l_i_uid_high.get()) << 16 | u32::from(self.raw.i_uid.get())
    }

    /// Sets the owner.
    pub fn set_uid(&mut self, uid: u32) {
        self.raw.i_uid.set(low16(uid));
        self.raw.l_i_uid_high.set((uid >> 16) as u16);
    }

    /// The group of users.
    pub fn gid(&self) -> u32 {
        u32::from(self.raw.l_i_gid_high.get()) << 16 | u32::from(self.raw.i_gid.get())
    }

    /// Sets the group of users.
    pub fn set_gid(&mut self, gid: u32) {
        self.raw.i_gid.set(low16(gid));
        self.raw.l_i_gid_high.set((gid >> 16) as u16);
    }

    /// The project, where the inode has room for one.
    pub fn project(&self) -> Option<u32> {
        self.has(offset_of!(RawInode, i_projid), 4)
            .then(|| self.raw.i_projid.get())
    }

    /// Sets the project, where there is room for it.
    pub fn set_project(&mut self, project: u32) {
        if self.has(offset_of!(RawInode, i_projid), 4) {
            self.raw.i_projid.set(project);
        }
    }

    /// The size in bytes. Only regular files, and directories with `large_dir`, have a high half.
    pub fn size_bytes(&self, layout: &Layout) -> u64 {
        let high = if self.has_high_size(layout) {
            self.raw.i_size_high.get()
        } else {
            0
        };
        u64::from(high) << 32 | u64::from(self.raw.i_size_lo.get())
    }

    /// Sets the size.
    ///
    /// # Panics
    /// When it does not fit: [`Layout::file_bytes_max`] is checked before.
    pub fn set_size_bytes(&mut self, bytes: u64, layout: &Layout) {
        self.raw.i_size_lo.set(low32(bytes));
        let high = (bytes >> 32) as u32;
        if self.has_high_size(layout) {
            self.raw.i_size_high.set(high);
        } else {
            assert_eq!(high, 0, "{bytes} bytes for an inode with 32 bits of size");
        }
    }

    /// Hard links, as stored: 1 for a directory stands for more than can be counted
    /// (`dir_nlink`).
    pub fn links(&self) -> u16 {
        self.raw.i_links_count.get()
    }

    /// Sets the number of links.
    pub fn set_links(&mut self, links: u16) {
        self.raw.i_links_count.set(links);
    }

    /// Space taken, in sectors of 512 bytes: data, indirect blocks, tree nodes, the attribute
    /// block.
    pub fn sectors(&self, layout: &Layout) -> u64 {
        let low = u64::from(self.raw.i_blocks_lo.get());
        if !layout.has_huge_files() {
            return low;
        }
        let count = u64::from(self.raw.l_i_blocks_high.get()) << 32 | low;
        if self.flags().contains(InodeFlags::HUGE_FILE) {
            count << (layout.block_bits() - 9)
        } else {
            count
        }
    }

    /// Sets the space taken; past 2^48 sectors it is counted in blocks (`HUGE_FILE`).
    ///
    /// # Errors
    /// `TooLarge` when the count does not fit. Nothing has changed then.
    pub fn set_sectors(&mut self, sectors: u64, layout: &Layout) -> Result<()> {
        let (count, unit) = if sectors < 1 << 48 {
            (sectors, InodeFlags::empty())
        } else {
            (sectors >> (layout.block_bits() - 9), InodeFlags::HUGE_FILE)
        };
        let most = if layout.has_huge_files() {
            1 << 48
        } else {
            1 << 32
        };
        if count >= most {
            return Err(Error::new(ErrorKind::TooLarge)
                .detail(format!("{sectors} sectors do not fit i_blocks")));
        }
        self.raw.i_blocks_lo.set(low32(count));
        if layout.has_huge_files() {
            self.raw.l_i_blocks_high.set(low16((count >> 32) as u32));
            self.set_flags(self.flags().difference(InodeFlags::HUGE_FILE).union(unit));
        }
        Ok(())
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.raw.i_flags.get())
    }

    /// Sets `i_flags`.
    pub fn set_flags(&mut self, flags: InodeFlags) {
        self.raw.i_flags.set(flags.bits());
    }

    /// The file's generation, different for each file that had the number.
    pub fn generation(&self) -> u32 {
        self.raw.i_generation.get()
    }

    /// Sets the generation. Every structure with a checksum from it must be sealed again.
    pub fn set_generation(&mut self, generation: u32) {
        self.raw.i_generation.set(generation);
    }

    /// The block with extended attributes.
    pub fn xattr_block(&self, layout: &Layout) -> Option<PhysicalBlock> {
        let is_64bit = layout.features().incompat.contains(super::Incompat::BIT64);
        let high = if is_64bit && layout.has_linux_inodes() {
            self.raw.l_i_file_acl_high.get()
        } else {
            0
        };
        let block = u64::from(high) << 32 | u64::from(self.raw.i_file_acl_lo.get());
        (block != 0).then_some(PhysicalBlock(block))
    }

    /// Sets the block with extended attributes.
    ///
    /// # Panics
    /// When the number has more than 48 bits, or than 32 where there is no room for more.
    pub fn set_xattr_block(&mut self, block: Option<PhysicalBlock>, layout: &Layout) {
        let block = block.map_or(0, |block| block.0);
        assert!(block < 1 << 48, "block {block} in 48 bits");
        self.raw.i_file_acl_lo.set(low32(block));
        if layout.has_linux_inodes() {
            self.raw.l_i_file_acl_high.set(low16((block >> 32) as u32))
        } else {
            assert!(block < 1 << 32, "block {block} in 32 bits")
        }
    }

    /// The version that NFS sees; the high half only where there is room. Meaningless in inodes of
    /// another system.
    pub fn version(&self) -> u64 {
        let high = if self.has(offset_of!(RawInode, i_version_hi), 4) {
            self.raw.i_version_hi.get()
        } else {
            0
        };
        u64::from(high) << 32 | u64::from(self.raw.l_i_version.get())
    }

    /// Sets the version, its high half where there is room. Nothing is set in inodes of another
    /// system.
    pub fn set_version(&mut self, version: u64, layout: &Layout) {
        if !layout.has_linux_inodes() {
            return;
        }
        self.raw.l_i_version.set(low32(version));
        if self.has(offset_of!(RawInode, i_version_hi), 4) {
            self.raw.i_version_hi.set((version >> 32) as u32);
        }
    }

    /// `i_dtime`, which is a time or the next orphan.
    pub fn deletion_word(&self) -> u32 {
        self.raw.i_dtime.get()
    }

    /// Sets `i_dtime`: seconds of the deletion, or the number of the next orphan.
    pub fn set_deletion_word(&mut self, word: u32) {
        self.raw.i_dtime.set(word);
    }

    /// `i_block`: an extent tree's root, block numbers, a short symbolic link or a device number.
    pub fn block_area(&self) -> &[u8; 60] {
        &self.raw.i_block
    }

    /// The same, to be changed.
    pub fn block_area_mut(&mut self) -> &mut [u8; 60] {
        &mut self.raw.i_block
    }

    /// The target of a symbolic link that is kept in the inode itself.
    ///
    /// Links shorter than `i_block` are stored in it, unless the inode has an extent tree.
    pub fn short_link_target(&self) -> Option<&[u8]> {
        let length = self.raw.i_size_lo.get() as usize;
        let is_link = self.mode().file_type() == Some(FileType::SymbolicLink);
        let elsewhere = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA | InodeFlags::EA_INODE;
        let is_short = (1..self.raw.i_block.len()).contains(&length);
        (is_link && is_short && !self.flags().intersects(elsewhere))
            .then(|| &self.raw.i_block[..length])
    }

    /// Whether `i_block` maps the inode's blocks, by an extent tree or a block map.
    pub fn is_mapped(&self) -> bool {
        match self.mode().file_type() {
            _ if self.flags().contains(InodeFlags::INLINE_DATA) => false,
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::SymbolicLink) => self.short_link_target().is_none(),
            _ => self.flags().contains(InodeFlags::EXTENTS),
        }
    }

    fn has_high_size(&self, layout: &Layout) -> bool {
        let has_large_directories = layout
            .features()
            .incompat
            .contains(super::Incompat::LARGEDIR);
        has_large_directories || self.mode().file_type() == Some(FileType::Regular)
    }

    /// Whether the inode has room for the `bytes` bytes of a field at `offset`.
    fn has(&self, offset: usize, bytes: usize) -> bool {
        offset + bytes <= usize::from(Self::BASE_BYTES + self.extra)
    }

    fn stored_checksum(&self) -> u32 {
        let high = if covers_high_checksum(self.extra) {
            self.raw.i_checksum_hi.get()
        } else {
            0
        };
        u32::from(high) << 16 | u32::from(self.raw.l_i_checksum_lo.get())
    }
}

/// End of the known fields.
fn fields_end(extra: u16) -> usize {
    usize::from(Inode::BASE_BYTES + extra.min(Inode::EXTRA_BYTES))
}

fn covers_high_checksum(extra: u16) -> bool {
    usize::from(Inode::BASE_BYTES + extra) >= CHECKSUM_HI + 2
}

/// The checksum over all bytes of an inode, with its own taken as zeros, truncated to the stored
/// width.
fn computed_checksum(bytes: &[u8], seed: InodeSeed, extra: u16) -> u32 {
    let sum = seed.sum(&bytes[..CHECKSUM_LO]).and(&[0; 2]);
    let rest = &bytes[CHECKSUM_LO + 2..];
    if !covers_high_checksum(extra) {
        return sum.and(rest).value() & 0xFFFF;
    }
    let (before, rest) = rest.split_at(CHECKSUM_HI - CHECKSUM_LO - 2);
    sum.and(before).and(&[0; 2]).and(&rest[2..]).value()
}

#[cfg(test)]
mod tests;
