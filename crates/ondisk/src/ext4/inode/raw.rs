//! The fields of an inode, as Linux uses them.

use zerocopy::little_endian::{U16, U32};

use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_inode`; fields past 0x80 exist up to `i_extra_isize`.
    pub struct RawInode: 160 {
        0x00 i_mode: U16,
        0x02 i_uid: U16,
        0x04 i_size_lo: U32,
        0x08 i_atime: U32,
        0x0C i_ctime: U32,
        0x10 i_mtime: U32,
        0x14 i_dtime: U32,
        0x18 i_gid: U16,
        0x1A i_links_count: U16,
        0x1C i_blocks_lo: U32,
        0x20 i_flags: U32,
        0x24 l_i_version: U32,
        0x28 i_block: [u8; 60],
        0x64 i_generation: U32,
        0x68 i_file_acl_lo: U32,
        0x6C i_size_high: U32,
        0x70 i_obso_faddr: U32,
        0x74 l_i_blocks_high: U16,
        0x76 l_i_file_acl_high: U16,
        0x78 l_i_uid_high: U16,
        0x7A l_i_gid_high: U16,
        0x7C l_i_checksum_lo: U16,
        0x7E l_i_reserved: U16,
        0x80 i_extra_isize: U16,
        0x82 i_checksum_hi: U16,
        0x84 i_ctime_extra: U32,
        0x88 i_mtime_extra: U32,
        0x8C i_atime_extra: U32,
        0x90 i_crtime: U32,
        0x94 i_crtime_extra: U32,
        0x98 i_version_hi: U32,
        0x9C i_projid: U32,
    }
}
