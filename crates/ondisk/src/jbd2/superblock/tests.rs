//! Rejections, and the locations of log and fast commits, on a journal made by mke2fs.

use extant_space::{Corruption, ErrorKind};

use super::*;

/// Superblock by mke2fs 1.47 for 512 MiB with blocks of 4 KiB: 4096 blocks, never used.
fn fixture() -> JournalSuperblock {
    JournalSuperblock::parse(include_bytes!("../../../tests/data/journal_superblock.bin")).unwrap()
}

fn add_incompat(raw: &mut RawJournalSuperblock, features: JournalIncompat) {
    let features = raw.s_feature_incompat.get() | features.bits();
    raw.s_feature_incompat.set(features);
}

/// With checksums v3 and fast commits, as Linux sets them at the first mount.
fn modern() -> JournalSuperblock {
    let mut superblock = fixture();
    superblock
        .edit(|raw| {
            add_incompat(raw, JournalIncompat::CSUM_V3 | JournalIncompat::FAST_COMMIT);
            raw.s_checksum_type = CRC32C;
        })
        .unwrap();
    superblock
}

fn verdict(change: impl FnOnce(&mut RawJournalSuperblock)) -> String {
    let mut superblock = modern();
    let before = superblock.clone();
    let error = superblock.edit(change).unwrap_err();
    assert_eq!(superblock, before, "on an error nothing has changed");
    error.to_string()
}

#[test]
fn journal_of_mke2fs_is_empty_and_has_no_features() {
    let journal = fixture();
    assert_eq!(journal.blocks(), 4096);
    assert_eq!((journal.start(), journal.sequence()), (None, Sequence(1)));
    assert_eq!(journal.log(), 1..4096);
    assert!(journal.fast_commits().is_empty());
    assert_eq!(journal.features().to_string(), "");
    assert_eq!(journal.format().checksums, Checksums::None);
    assert_eq!(journal.error_number(), 0);
}

#[test]
fn fast_commits_take_the_end_without_its_first_block() {
    let mut journal = modern();
    assert_eq!(journal.log(), 1..3840);
    assert_eq!(journal.fast_commits(), 3841..4096);
    journal.edit(|raw| raw.s_num_fc_blks.set(1)).unwrap();
    assert_eq!(journal.log(), 1..4095);
    assert!(journal.fast_commits().is_empty());
}

#[test]
fn start_is_stored_under_the_seal() {
    let mut journal = modern();
    journal.set_start(Some(JournalBlock(3839)), Sequence(9));
    let back = JournalSuperblock::parse(journal.as_bytes()).unwrap();
    assert_eq!(
        (back.start(), back.sequence()),
        (Some(JournalBlock(3839)), Sequence(9))
    );
    journal.set_start(None, Sequence(10));
    assert_eq!(journal.start(), None);
}

#[test]
#[should_panic(expected = "a block of the log")]
fn start_past_the_log_is_a_mistake_of_the_caller() {
    modern().set_start(Some(JournalBlock(3840)), Sequence(9));
}

#[test]
fn first_version_has_no_features() {
    let mut journal = fixture();
    journal
        .edit(|raw| {
            raw.s_header.h_blocktype.set(3);
            raw.s_feature_incompat.set(u32::MAX);
        })
        .unwrap();
    assert_eq!(journal.features(), JournalFeatures::default());
}

#[test]
fn each_nonsense_is_named_with_field_and_value() {
    type Case = (&'static str, fn(&mut RawJournalSuperblock));
    let cases: [Case; 12] = [
        ("h_magic is 0xc03b3999, not 0xc03b3998", |raw| {
            raw.s_header.h_magic.set(MAGIC + 1)
        }),
        ("h_blocktype is 1", |raw| raw.s_header.h_blocktype.set(1)),
        ("h_blocktype is 6", |raw| raw.s_header.h_blocktype.set(6)),
        ("s_blocksize is 4095, not a power of two", |raw| {
            raw.s_blocksize.set(4095)
        }),
        ("s_blocksize is 512, outside 1024 to 65536", |raw| {
            raw.s_blocksize.set(512)
        }),
        ("s_maxlen is 1, outside 2 to 4294967295", |raw| {
            raw.s_maxlen.set(1)
        }),
        ("s_first is 0, outside 1 to 3839", |raw| raw.s_first.set(0)),
        ("s_first is 3840, outside 1 to 3839", |raw| {
            raw.s_first.set(3840)
        }),
        ("s_num_fc_blks is 3073, outside 1 to 3072", |raw| {
            raw.s_num_fc_blks.set(3073)
        }),
        ("s_num_fc_blks is 256, outside 1 to 0", |raw| {
            raw.s_maxlen.set(1000)
        }),
        ("s_start is 3840, outside 1 to 3839", |raw| {
            raw.s_start.set(3840)
        }),
        ("more than one kind of checksums", |raw| {
            add_incompat(raw, JournalIncompat::CSUM_V2)
        }),
    ];
    for (line, change) in cases {
        assert_eq!(verdict(change), format!("journal superblock: {line}"));
    }
}

#[test]
fn unknown_feature_is_unsupported_by_name() {
    type Case = (&'static str, fn(&mut RawJournalSuperblock));
    let cases: [Case; 3] = [
        ("unsupported feature FEATURE_I30", |raw| {
            add_incompat(raw, JournalIncompat::from_bits_retain(1 << 30));
        }),
        ("unsupported feature FEATURE_R2", |raw| {
            raw.s_feature_ro_compat.set(4)
        }),
        ("s_checksum_type is 2", |raw| raw.s_checksum_type = 2),
    ];
    for (line, change) in cases {
        let error = modern().edit(change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.to_string(), format!("journal superblock: {line}"));
    }
}

#[test]
fn changed_byte_is_found_by_the_checksum() {
    let mut bytes = modern().as_bytes().to_vec();
    bytes[1000] ^= 1;
    let error = JournalSuperblock::parse(&bytes).unwrap_err();
    assert_eq!(
        error.corruption(),
        Some(&Corruption::checksum("journal superblock"))
    );
    let line = JournalSuperblock::parse(&bytes[..1023])
        .unwrap_err()
        .to_string();
    assert_eq!(line, "journal superblock: only 1023 bytes");
}

#[test]
fn room_for_fast_commits_leaves_a_log_that_linux_takes() {
    let mut superblock = modern();
    let has_room = |superblock: &mut JournalSuperblock, blocks: u32, kept: u32| {
        let edited = superblock.edit(|raw| {
            let incompat = raw.s_feature_incompat.get();
            let fast_commit = JournalIncompat::FAST_COMMIT.bits();
            raw.s_feature_incompat.set(incompat & !fast_commit);
            raw.s_start.set(0);
            raw.s_maxlen.set(blocks);
            raw.s_num_fc_blks.set(kept);
        });
        edited.unwrap();
        superblock.has_room_for_fast_commits()
    };
    assert!(has_room(&mut superblock, 1024 + 16, 16));
    assert!(!has_room(&mut superblock, 1024 + 15, 16));
    assert!(has_room(&mut superblock, 1024 + 256, 0));
    assert!(!has_room(&mut superblock, 1024 + 255, 0));
    assert!(!has_room(&mut superblock, 100, 16));
}
