//! Superblocks of which a disk may write one half.
//!
//! Disks write sectors of 512 bytes atomically, and the superblock is two of them, with one
//! checksum at the end of the second. So a power cut between them leaves a superblock with a wrong
//! checksum.
//!
//! Model: each sector contains a zero-terminated string, and the last four bytes of the longest
//! such string are never read. They are chosen so that the crc of the first sector alone, and the
//! checksum, do not change. Then sectors of all states of a superblock match.
//!
//! Format: docs/formats/ext4.md, "Superblock".

use core::mem::offset_of;
use core::ops::Range;

use zerocopy::{FromBytes, IntoBytes};

use super::RawSuperblock;
use crate::checksum::{START, crc32c, crc32c_fitting_word};

const SECTOR: usize = 512;
const WORD: usize = 4;
const SUM: usize = offset_of!(RawSuperblock, s_checksum);
/// The strings: the first ends its sector.
const STRINGS: [Range<usize>; 2] = [
    offset_of!(RawSuperblock, s_last_error_func)..SECTOR,
    SECTOR..SECTOR + 64,
];

/// Fits the sectors of `raw` to those of `older`, if its strings are short enough.
pub(super) fn fit(raw: &mut RawSuperblock, older: &RawSuperblock) {
    let mut bytes = [0; size_of::<RawSuperblock>()];
    bytes.copy_from_slice(raw.as_bytes());
    let older = older.as_bytes();
    let have_room = STRINGS.iter().all(|string| {
        let (shown, _) = bytes[string.clone()].split_at(string.len() - WORD);
        shown.contains(&0)
    });
    if !have_room {
        return;
    }
    let first = crc32c(START, &older[..SECTOR]);
    bytes[SUM..].copy_from_slice(&older[SUM..]);
    let whole = crc32c(first, &older[SECTOR..SUM]);
    for (string, start, before, end, wanted) in [
        (&STRINGS[0], 0, START, SECTOR, first),
        (&STRINGS[1], SECTOR, first, SUM, whole),
    ] {
        let word = string.end - WORD..string.end;
        let sum = crc32c(before, &bytes[start..word.start]);
        let fitting = crc32c_fitting_word(sum, &bytes[word.end..end], wanted);
        bytes[word].copy_from_slice(&fitting.to_le_bytes());
    }
    *raw = RawSuperblock::read_from_bytes(&bytes).expect("all of its bytes");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ext4::PhysicalBlock;
    use crate::ext4::superblock::{RecordedError, Superblock, fixture};

    #[test]
    fn strings_end_where_their_fields_do() {
        assert_eq!(STRINGS[0].len(), 32);
        assert_eq!(STRINGS[1].start, offset_of!(RawSuperblock, s_mount_opts));
        assert_eq!(STRINGS[1].end, offset_of!(RawSuperblock, s_usr_quota_inum));
    }

    fn changed(free: u64, orphan: u32, error: Option<(String, u8)>) -> Superblock {
        let mut superblock = fixture();
        superblock.set_free(free, 7).unwrap();
        superblock
            .edit(|raw| raw.s_last_orphan.set(orphan))
            .unwrap();
        if let Some((function, code)) = error {
            superblock.record_error(&RecordedError {
                time_seconds: 1 << 33,
                inode: None,
                block: PhysicalBlock(5),
                function,
                line: 3,
                code,
            });
        }
        superblock
    }

    proptest! {
        #[test]
        fn sectors_of_all_states_go_together(
            states in prop::collection::vec(
                (0u64..1000, 0u32..1000, prop::option::of(("[a-z]{0,27}", 1u8..6))), 1..6),
        ) {
            let first = fixture();
            let mut all = vec![first.clone()];
            for (free, orphan, error) in states {
                let plain = changed(free, orphan, error);
                let mut fitted = plain.clone();
                fitted.fit_sectors(&first);
                prop_assert_eq!(fitted.recorded_errors(), plain.recorded_errors());
                prop_assert_eq!(fitted.free_blocks(), free);
                prop_assert_eq!(fitted.last_orphan(), plain.last_orphan());
                all.push(fitted);
            }
            for (one, other) in all.iter().flat_map(|one| all.iter().map(move |other| (one, other))) {
                let (front, _) = one.as_bytes().split_at(SECTOR);
                let (_, back) = other.as_bytes().split_at(SECTOR);
                prop_assert!(Superblock::parse(&[front, back].concat()).is_ok());
            }
        }
    }

    #[test]
    fn string_that_fills_its_field_is_left_alone() {
        let plain = changed(1, 1, Some(("x".repeat(29), 2)));
        let mut fitted = plain.clone();
        fitted.fit_sectors(&fixture());
        assert_eq!(fitted, plain);
    }
}
