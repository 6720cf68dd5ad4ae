//! Validation of a superblock before anything is calculated from it.
//!
//! The limits are those of the kernel and of e2fsck, the stricter one if they differ. Values are
//! validated in the order in which later checks rely on them.

use extant_space::Result;

use super::{RawSuperblock, Superblock, computed_checksum, features_of};
use crate::ext4::{Features, GroupNumber, Incompat, Layout, RoCompat};
use crate::fault::{check_range, check_sum, corrupt, unsupported};

const NAME: &str = "superblock";
const CHECKSUM_CRC32C: u8 = 1;
const BLOCK_BITS_MAX: u64 = 16;

/// Validates `raw` and returns the layout.
pub(super) fn check(raw: &RawSuperblock) -> Result<Layout> {
    let magic = raw.s_magic.get();
    if magic != Superblock::MAGIC {
        return Err(corrupt(
            NAME,
            format_args!("s_magic is {magic:#06x}, not {:#06x}", Superblock::MAGIC),
        ));
    }
    let revision = raw.s_rev_level.get();
    if revision > 1 {
        return Err(unsupported(NAME, format_args!("s_rev_level is {revision}")));
    }
    let features = features_of(raw);
    check_checksum(raw, &features)?;
    // Its other fields are those of no file system.
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        let problem = "unsupported feature journal_dev: the journal of another file system";
        return Err(unsupported(NAME, problem));
    }
    check_sizes(raw, &features)?;
    let layout = Layout::from_raw(raw, features);
    check_blocks(&layout)?;
    check_inodes(&layout)?;
    check_descriptors(raw, &layout)?;
    check_counts(raw, &layout)?;
    Ok(layout)
}

fn check_checksum(raw: &RawSuperblock, features: &Features) -> Result<()> {
    if !features.has_metadata_checksums() {
        return Ok(());
    }
    if raw.s_checksum_type != CHECKSUM_CRC32C {
        let kind = raw.s_checksum_type;
        return Err(unsupported(NAME, format_args!("s_checksum_type is {kind}")));
    }
    check_sum(NAME, raw.s_checksum.get(), computed_checksum(raw))
}

/// The exponents, before anything is shifted by them.
fn check_sizes(raw: &RawSuperblock, features: &Features) -> Result<()> {
    let log_block = raw.s_log_block_size.get();
    let log_cluster = raw.s_log_cluster_size.get();
    check_range(
        NAME,
        "s_log_block_size",
        log_block.into(),
        0..=BLOCK_BITS_MAX - 10,
    )?;
    if features.ro_compat.contains(RoCompat::BIGALLOC) {
        // Up to 1 GiB, as in mke2fs.
        check_range(
            NAME,
            "s_log_cluster_size",
            log_cluster.into(),
            log_block.into()..=20,
        )?;
    } else if log_cluster != log_block {
        return Err(corrupt(
            NAME,
            format_args!("s_log_cluster_size is {log_cluster}, s_log_block_size {log_block}"),
        ));
    }
    check_range(
        NAME,
        "s_log_groups_per_flex",
        raw.s_log_groups_per_flex.into(),
        0..=31,
    )
}

fn check_blocks(layout: &Layout) -> Result<()> {
    let bits_of_a_block = u64::from(layout.block_bytes()) * 8;
    let first = u64::from(layout.first_data_block);
    let is_bigalloc = layout.features.ro_compat.contains(RoCompat::BIGALLOC);
    let allowed = match (layout.block_bits, is_bigalloc) {
        (10, true) => 0..=1,
        (10, false) => 1..=1,
        _ => 0..=0,
    };
    check_range(NAME, "s_first_data_block", first, allowed)?;
    let clusters = u64::from(layout.clusters_per_group);
    check_range(NAME, "s_clusters_per_group", clusters, 8..=bits_of_a_block)?;
    if clusters % 8 != 0 {
        return Err(corrupt(
            NAME,
            format_args!("s_clusters_per_group is {clusters}, not a multiple of 8"),
        ));
    }
    let blocks_per_group = u64::from(layout.blocks_per_group);
    if blocks_per_group != clusters << (layout.cluster_bits - layout.block_bits) {
        return Err(corrupt(
            NAME,
            format_args!(
                "s_blocks_per_group is {blocks_per_group}, which is not {clusters} clusters"
            ),
        ));
    }
    let most = i64::MAX as u64 >> layout.block_bits;
    check_range(NAME, "s_blocks_count", layout.blocks, first + 1..=most)?;
    let groups = (layout.blocks - first).div_ceil(blocks_per_group);
    if groups > u64::from(u32::MAX) {
        return Err(corrupt(
            NAME,
            format_args!(
                "s_blocks_count is {}, which makes {groups} groups",
                layout.blocks
            ),
        ));
    }
    Ok(())
}

fn check_inodes(layout: &Layout) -> Result<()> {
    let block = u64::from(layout.block_bytes());
    let bytes = u64::from(layout.inode_bytes);
    check_power_of_two("s_inode_size", bytes)?;
    check_range(NAME, "s_inode_size", bytes, 128..=block)?;
    let per_group = u64::from(layout.inodes_per_group);
    let least = u64::from(layout.inodes_per_block()).max(8);
    check_range(NAME, "s_inodes_per_group", per_group, least..=block * 8)?;
    if per_group % 8 != 0 {
        return Err(corrupt(
            NAME,
            format_args!("s_inodes_per_group is {per_group}, not a multiple of 8"),
        ));
    }
    let expected = u64::from(layout.groups()) * per_group;
    if u64::from(layout.inodes) != expected {
        return Err(corrupt(
            NAME,
            format_args!(
                "s_inodes_count is {}, not {expected} for {} groups of {per_group}",
                layout.inodes,
                layout.groups()
            ),
        ));
    }
    let first = u64::from(layout.first_inode);
    check_range(NAME, "s_first_ino", first, 11..=layout.inodes.into())
}

fn check_descriptors(raw: &RawSuperblock, layout: &Layout) -> Result<()> {
    let bytes = u64::from(layout.descriptor_bytes);
    if layout.features.incompat.contains(Incompat::BIT64) {
        check_power_of_two("s_desc_size", bytes)?;
        check_range(NAME, "s_desc_size", bytes, 64..=layout.block_bytes().into())?;
    }
    let reserved = u64::from(layout.reserved_descriptor_blocks);
    let numbers_in_a_block = u64::from(layout.block_bytes()) / 4;
    check_range(
        NAME,
        "s_reserved_gdt_blocks",
        reserved,
        0..=numbers_in_a_block,
    )?;
    if layout.features.incompat.contains(Incompat::META_BG) {
        let first = u64::from(raw.s_first_meta_bg.get());
        check_range(
            NAME,
            "s_first_meta_bg",
            first,
            0..=layout.descriptor_blocks().into(),
        )?;
    }
    // Every other group is as long as the first.
    for group in [0, layout.groups() - 1].map(GroupNumber) {
        let fixed = layout.fixed_blocks(group);
        let room = layout.blocks_in(group);
        if fixed > room {
            return Err(corrupt(
                NAME,
                format_args!("descriptors take {fixed} blocks of group {group}, which has {room}"),
            ));
        }
    }
    Ok(())
}

fn check_counts(raw: &RawSuperblock, layout: &Layout) -> Result<()> {
    let wide = |low: u32, high: u32| {
        let is_64bit = layout.features.incompat.contains(Incompat::BIT64);
        u64::from(if is_64bit { high } else { 0 }) << 32 | u64::from(low)
    };
    let reserved = wide(raw.s_r_blocks_count_lo.get(), raw.s_r_blocks_count_hi.get());
    check_range(NAME, "s_r_blocks_count", reserved, 0..=layout.blocks)?;
    let free = wide(
        raw.s_free_blocks_count_lo.get(),
        raw.s_free_blocks_count_hi.get(),
    );
    check_range(NAME, "s_free_blocks_count", free, 0..=layout.blocks)?;
    let free = u64::from(raw.s_free_inodes_count.get());
    check_range(NAME, "s_free_inodes_count", free, 0..=layout.inodes.into())?;
    for (field, number) in [
        ("s_journal_inum", raw.s_journal_inum.get()),
        ("s_last_orphan", raw.s_last_orphan.get()),
        ("s_orphan_file_inum", raw.s_orphan_file_inum.get()),
    ] {
        check_range(NAME, field, number.into(), 0..=layout.inodes.into())?;
    }
    Ok(())
}

fn check_power_of_two(field: &str, value: u64) -> Result<()> {
    if value.is_power_of_two() {
        return Ok(());
    }
    Err(corrupt(
        NAME,
        format_args!("{field} is {value}, not a power of two"),
    ))
}

#[cfg(test)]
mod tests {
    use extant_space::Corruption;

    use extant_space::ErrorKind;

    use super::*;
    use crate::ext4::superblock::fixture;

    /// Result of the check of the fixture after `change`, with a valid checksum.
    fn verdict(change: impl FnOnce(&mut RawSuperblock)) -> String {
        let error = fixture().edit(change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        error.to_string()
    }

    #[test]
    fn changed_byte_is_found_by_the_checksum() {
        let mut bytes = fixture().as_bytes().to_vec();
        bytes[0x3F0] ^= 1;
        let error = Superblock::parse(&bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(
            error.corruption(),
            Some(&Corruption::checksum("superblock"))
        );
    }

    #[test]
    fn too_few_bytes_are_refused() {
        let error = Superblock::parse(&fixture().as_bytes()[..1023]).unwrap_err();
        assert_eq!(error.to_string(), "superblock: only 1023 bytes");
    }

    #[test]
    fn unknown_revision_and_checksum_are_unsupported() {
        for (line, error) in [
            (
                "superblock: s_rev_level is 2",
                fixture().edit(|raw| raw.s_rev_level.set(2)),
            ),
            (
                "superblock: s_checksum_type is 9",
                fixture().edit(|raw| raw.s_checksum_type = 9),
            ),
            (
                "superblock: unsupported feature journal_dev: the journal of another file system",
                fixture().edit(|raw| {
                    raw.s_feature_incompat |= Incompat::JOURNAL_DEV.bits();
                    raw.s_inodes_per_group.set(0);
                }),
            ),
        ] {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.to_string(), line);
        }
    }

    #[test]
    fn each_nonsense_is_named_with_field_and_value() {
        type Case = (&'static str, fn(&mut RawSuperblock));
        let cases: [Case; 24] = [
            ("s_magic is 0xef54, not 0xef53", |raw| {
                raw.s_magic.set(0xEF54)
            }),
            ("s_log_block_size is 7, outside 0 to 6", |raw| {
                raw.s_log_block_size.set(7)
            }),
            ("s_log_block_size is 4294967295, outside 0 to 6", |raw| {
                raw.s_log_block_size.set(u32::MAX);
            }),
            ("s_log_cluster_size is 3, s_log_block_size 2", |raw| {
                raw.s_log_cluster_size.set(3)
            }),
            ("s_log_cluster_size is 21, outside 2 to 20", |raw| {
                raw.s_log_cluster_size.set(21);
                raw.s_feature_ro_compat
                    .set(raw.s_feature_ro_compat.get() | 0x200);
            }),
            ("s_log_groups_per_flex is 32, outside 0 to 31", |raw| {
                raw.s_log_groups_per_flex = 32
            }),
            ("s_first_data_block is 1, outside 0 to 0", |raw| {
                raw.s_first_data_block.set(1)
            }),
            ("s_clusters_per_group is 0, outside 8 to 32768", |raw| {
                raw.s_blocks_per_group.set(0)
            }),
            ("s_clusters_per_group is 32769, outside 8 to 32768", |raw| {
                raw.s_blocks_per_group.set(32769);
            }),
            (
                "s_clusters_per_group is 32764, not a multiple of 8",
                |raw| {
                    raw.s_blocks_per_group.set(32764);
                },
            ),
            (
                "s_blocks_per_group is 32768, which is not 4096 clusters",
                |raw| {
                    raw.s_feature_ro_compat
                        .set(raw.s_feature_ro_compat.get() | 0x200);
                    raw.s_log_cluster_size.set(6);
                    raw.s_clusters_per_group.set(4096);
                },
            ),
            (
                "s_blocks_count is 0, outside 1 to 2251799813685247",
                |raw| {
                    raw.s_blocks_count_lo.set(0);
                },
            ),
            (
                "s_blocks_count is 2251799813685247, which makes 281474976710656 groups",
                |raw| {
                    raw.s_blocks_count_lo.set(u32::MAX);
                    raw.s_blocks_count_hi.set((1 << 19) - 1);
                    raw.s_blocks_per_group.set(8);
                },
            ),
            ("s_inode_size is 192, not a power of two", |raw| {
                raw.s_inode_size.set(192)
            }),
            ("s_inode_size is 8192, outside 128 to 4096", |raw| {
                raw.s_inode_size.set(8192)
            }),
            ("s_inodes_per_group is 8, outside 16 to 32768", |raw| {
                raw.s_inodes_per_group.set(8)
            }),
            ("s_inodes_per_group is 20, not a multiple of 8", |raw| {
                raw.s_inodes_per_group.set(20)
            }),
            (
                "s_inodes_count is 32769, not 32768 for 4 groups of 8192",
                |raw| {
                    raw.s_inodes_count.set(32769);
                },
            ),
            ("s_first_ino is 10, outside 11 to 32768", |raw| {
                raw.s_first_ino.set(10)
            }),
            ("s_desc_size is 32, outside 64 to 4096", |raw| {
                raw.s_desc_size.set(32)
            }),
            ("s_reserved_gdt_blocks is 1025, outside 0 to 1024", |raw| {
                raw.s_reserved_gdt_blocks.set(1025);
            }),
            ("s_first_meta_bg is 2, outside 0 to 1", |raw| {
                raw.s_feature_incompat
                    .set(raw.s_feature_incompat.get() | 0x10);
                raw.s_first_meta_bg.set(2);
            }),
            ("s_free_inodes_count is 32769, outside 0 to 32768", |raw| {
                raw.s_free_inodes_count.set(32769);
            }),
            ("s_journal_inum is 32769, outside 0 to 32768", |raw| {
                raw.s_journal_inum.set(32769)
            }),
        ];
        for (line, change) in cases {
            assert_eq!(verdict(change), format!("superblock: {line}"));
        }
    }

    #[test]
    fn counts_above_the_total_are_refused() {
        let blocks = fixture().layout().blocks();
        let line = verdict(|raw| raw.s_free_blocks_count_hi.set(1));
        assert!(line.ends_with(&format!("outside 0 to {blocks}")), "{line}");
        let line = verdict(|raw| raw.s_r_blocks_count_hi.set(1));
        assert!(
            line.starts_with("superblock: s_r_blocks_count is 42"),
            "{line}"
        );
    }

    #[test]
    fn table_larger_than_its_group_is_refused() {
        let line = verdict(|raw| {
            raw.s_blocks_per_group.set(256);
            raw.s_inodes_per_group.set(64);
            raw.s_inodes_count.set(512 * 64);
            raw.s_reserved_gdt_blocks.set(300);
        });
        assert_eq!(
            line,
            "superblock: descriptors take 309 blocks of group 0, which has 256"
        );
    }

    #[test]
    fn last_group_shorter_than_its_copy_is_refused() {
        let fixed = fixture().layout().fixed_blocks(GroupNumber(3));
        let line = verdict(|raw| raw.s_blocks_count_lo.set(3 * 32768 + fixed - 1));
        let room = fixed - 1;
        assert_eq!(
            line,
            format!("superblock: descriptors take {fixed} blocks of group 3, which has {room}")
        );
    }

    #[test]
    fn high_halves_without_64bit_are_ignored() {
        let mut small = fixture();
        small
            .edit(|raw| {
                raw.s_feature_incompat
                    .set(raw.s_feature_incompat.get() & !0x80);
                raw.s_blocks_count_hi.set(7);
                raw.s_free_blocks_count_hi.set(7);
            })
            .unwrap();
        assert_eq!(small.layout().blocks(), fixture().layout().blocks());
        assert_eq!(small.layout().descriptor_bytes(), 32);
        assert_eq!(small.free_blocks(), fixture().free_blocks());
    }
}
