//! Every format of the log, read back: contents, escapes, revocations, going round the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_blockdev::{Device, MemoryDevice};
use extant_jbd2::{FastCommits, Frozen, Journal, JournalOptions, Recovery};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::ErrorKind;

use crate::device::{
    BLOCK, FORMATS, HOMES, V3, contents, device, device_from, home, location, open, options,
    recover,
};

const BLOCKS: u32 = 200;

fn transaction(blocks: &[u64], version: u64, revoked: &[u64]) -> Frozen {
    let mut frozen = Frozen::new();
    for block in blocks {
        frozen.block(PhysicalBlock(*block), contents(*block, version));
    }
    for block in revoked {
        frozen.revoke(PhysicalBlock(*block));
    }
    frozen
}

/// Three transactions: many blocks, newer contents of some, one block given up.
fn leave_log(device: &Arc<MemoryDevice>, format: extant_jbd2::LogFormat) -> BTreeMap<u64, u64> {
    let journal = open(device.clone(), BLOCKS, format);
    let all: Vec<u64> = (0..HOMES).collect();
    journal.commit(transaction(&all, 1, &[])).unwrap();
    journal.commit(transaction(&[3, 5, 6], 2, &[])).unwrap();
    journal.commit(transaction(&[5, 9], 3, &[4, 9, 3])).unwrap();
    let mut expected: BTreeMap<u64, u64> = all.iter().map(|block| (*block, 1)).collect();
    expected.extend([(5, 3), (6, 2), (9, 3)]);
    expected.remove(&4);
    expected.remove(&3);
    expected
}

#[test]
fn log_of_every_format_is_replayed_to_the_last_contents() {
    for format in FORMATS {
        let device = Arc::new(device(BLOCKS));
        let expected = leave_log(&device, format);
        for block in 0..HOMES {
            assert_eq!(home(&*device, block), [0; BLOCK], "home before replay");
        }
        let report = recover(device.clone(), BLOCKS).unwrap();
        assert_eq!(report.transactions, 3, "{format:?}");
        assert_eq!(report.blocks as usize, expected.len());
        assert_eq!(report.revoked, 2);
        assert_eq!(report.failed_commit, None);
        for block in 0..HOMES {
            let is = home(&*device, block);
            match expected.get(&block) {
                Some(version) => assert_eq!(is, *contents(block, *version), "{format:?} {block}"),
                None => assert_eq!(is, [0; BLOCK], "{format:?}: revoked block {block}"),
            }
        }
        assert!(
            !Recovery::read(device, location(BLOCKS))
                .unwrap()
                .is_needed()
        );
    }
}

#[test]
fn overlay_shows_the_same_and_writes_nothing() {
    for format in FORMATS {
        let device = Arc::new(device(BLOCKS));
        let expected = leave_log(&device, format);
        let before = device.snapshot();
        let recovery = Recovery::read(device.clone(), location(BLOCKS)).unwrap();
        let overlay = recovery.into_overlay();
        let mut into = [0; BLOCK];
        for block in 0..HOMES {
            let is_there = overlay.read(PhysicalBlock(block), &mut into).unwrap();
            assert_eq!(is_there, expected.contains_key(&block));
            assert_eq!(is_there, overlay.contains(PhysicalBlock(block)));
            if let Some(version) = expected.get(&block) {
                assert_eq!(into, *contents(block, *version), "{format:?} {block}");
            }
        }
        assert_eq!(overlay.blocks().len(), expected.len());
        assert_eq!(device.first_difference(&before), None);
    }
}

#[test]
fn log_that_went_round_its_end_many_times_is_replayed() {
    for format in FORMATS {
        let device = Arc::new(device(40));
        let mut journal = open(device.clone(), 40, format);
        let mut versions = BTreeMap::new();
        for version in 1..200u64 {
            let blocks: Vec<u64> = (0..version % 7 + 1)
                .map(|n| (version * 5 + n * 3) % HOMES)
                .collect();
            journal.commit(transaction(&blocks, version, &[])).unwrap();
            versions.extend(blocks.into_iter().map(|block| (block, version)));
            if version.is_multiple_of(23) {
                // As after a crash.
                drop(journal);
                recover(device.clone(), 40).unwrap();
                for (block, version) in &versions {
                    let expected = contents(*block, *version);
                    assert_eq!(home(&*device, *block), *expected, "{format:?} {block}");
                }
                journal = open(device.clone(), 40, format);
            }
        }
        journal.empty().unwrap();
        for (block, version) in versions {
            assert_eq!(home(&*device, block), *contents(block, version));
        }
    }
}

#[test]
fn kept_end_of_the_journal_is_not_log_and_is_shown_after_a_crash() {
    const LARGE: u32 = 1400;
    let device = Arc::new(device(LARGE));
    let options = JournalOptions {
        fast_commits: FastCommits::On,
        ..options(V3)
    };
    let journal = Journal::open(device.clone(), location(LARGE), options).unwrap();
    // 256 are kept, of which the kernel never uses the first.
    assert_eq!(journal.fast_commits(), LARGE - 255..LARGE);
    assert_eq!(journal.log_use().blocks, LARGE - 256 - 1);
    assert_eq!(journal.next_sequence(), None);
    journal.commit(transaction(&[1], 1, &[])).unwrap();
    // The number in an empty journal is not given again, so this was 2.
    assert_eq!(journal.next_sequence(), Some(extant_jbd2::Sequence(3)));
    let sequence = journal.next_sequence().unwrap();
    let first = crate::device::offset(journal.location(), journal.fast_commits().start);
    let data = [7; BLOCK];
    let persistence = extant_blockdev::Persistence::Fua;
    device.write_at(&data, first, persistence).unwrap();
    drop(journal);

    let recovery = Recovery::read(device.clone(), location(LARGE)).unwrap();
    assert_eq!(recovery.report().next, sequence);
    let blocks: Vec<_> = recovery.fast_commits().map(Result::unwrap).collect();
    assert_eq!(blocks.len(), 255);
    assert_eq!(blocks[0], data);
    recovery.replay().unwrap();
    recovery.finish().unwrap();
    let recovery = Recovery::read(device, location(LARGE)).unwrap();
    assert_eq!(recovery.fast_commits().count(), 0);
}

#[test]
fn journal_that_needs_recovery_is_not_opened() {
    let device = Arc::new(device(BLOCKS));
    leave_log(&device, V3);
    let error = Journal::open(device, location(BLOCKS), options(V3))
        .err()
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn sequence_of_an_unfinished_transaction_is_not_given_again() {
    let device = Arc::new(device(BLOCKS));
    let mut last = None;
    for _ in 0..5 {
        let journal = open(device.clone(), BLOCKS, V3);
        journal.commit(transaction(&[1], 1, &[])).unwrap();
        drop(journal);
        let report = recover(device.clone(), BLOCKS).unwrap();
        if let Some(last) = last {
            assert!(report.next.is_after(last));
            assert_ne!(report.next, extant_jbd2::Sequence(last.0 + 1), "{last}");
        }
        last = Some(report.next);
    }
}

#[test]
fn numbers_of_transactions_go_round_after_their_end() {
    let device = Arc::new(device_from(40, u32::MAX - 5));
    let journal = open(device.clone(), 40, V3);
    for version in 1..=20 {
        journal
            .commit(transaction(&[7, version], version, &[]))
            .unwrap();
    }
    drop(journal);
    let report = recover(device.clone(), 40).unwrap();
    assert_eq!(report.next, extant_jbd2::Sequence(15));
    assert!(report.transactions > 1);
    for version in 1..=20 {
        let expected = contents(version, if version == 7 { 20 } else { version });
        assert_eq!(home(&*device, version), *expected, "{version}");
    }
}
