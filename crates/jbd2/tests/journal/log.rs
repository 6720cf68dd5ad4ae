//! Blocks in the log and in place: look-ups, checkpoints, a full log, limits.

use std::sync::Arc;

use extant_blockdev::Device;
use extant_jbd2::{Checkpoint, Frozen, Journal};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::ErrorKind;

use crate::device::{BLOCK, HOMES, V3, contents, device, home, open};

fn commit(journal: &Journal, version: u64, blocks: impl IntoIterator<Item = u64>) {
    let mut frozen = Frozen::new();
    for block in blocks {
        frozen.block(PhysicalBlock(block), contents(block, version));
    }
    journal.commit(frozen).unwrap();
}

#[test]
fn committed_block_is_found_until_it_is_checkpointed() {
    let device = Arc::new(device(100));
    let journal = open(device.clone(), 100, V3);
    commit(&journal, 1, [7]);
    commit(&journal, 2, [7]);
    let found = journal.lookup(PhysicalBlock(7)).unwrap();
    assert_eq!(found, contents(7, 2));
    assert!(journal.lookup(PhysicalBlock(8)).is_none());
    assert_eq!(home(&*device, 7), [0; BLOCK]);

    journal.empty().unwrap();
    assert!(journal.lookup(PhysicalBlock(7)).is_none());
    assert_eq!(home(&*device, 7), *contents(7, 2));
    assert_eq!(journal.log_use().used, 0);
}

#[test]
fn revoked_block_is_never_checkpointed() {
    let device = Arc::new(device(100));
    let journal = open(device.clone(), 100, V3);
    commit(&journal, 1, [7, 8]);
    let mut frozen = Frozen::new();
    frozen.revoke(PhysicalBlock(7));
    journal.commit(frozen).unwrap();
    assert!(journal.lookup(PhysicalBlock(7)).is_none());
    journal.empty().unwrap();
    assert_eq!(home(&*device, 7), [0; BLOCK]);
    assert_eq!(home(&*device, 8), *contents(8, 1));
}

#[test]
fn checkpoint_waits_for_half_a_log_and_leaves_a_quarter() {
    let device = Arc::new(device(101));
    let journal = open(device, 101, V3);
    let blocks = journal.log_use().blocks;
    let mut version = 0;
    while journal.log_use().used <= blocks / 2 {
        assert_eq!(journal.checkpoint().unwrap(), Checkpoint::Done);
        version += 1;
        commit(&journal, version, [version % HOMES, (version + 1) % HOMES]);
    }
    let before = journal.log_use().used;
    while journal.checkpoint().unwrap() == Checkpoint::More {}
    let after = journal.log_use().used;
    assert!(after <= blocks / 4 && after > 0, "{after} of {before}");
}

#[test]
fn log_that_is_full_makes_room_for_the_next_transaction() {
    let device = Arc::new(device(41));
    let journal = open(device.clone(), 41, V3);
    // One revoked block more than half of the log, so that every commit needs room.
    for version in 1..50 {
        commit(&journal, version, 0..25);
        assert!(journal.log_use().used <= journal.log_use().blocks);
    }
    journal.empty().unwrap();
    for block in 0..25 {
        assert_eq!(home(&*device, block), *contents(block, 49));
    }
}

#[test]
fn transaction_larger_than_the_log_is_refused_and_harms_nothing() {
    let device = Arc::new(device(41));
    let journal = open(device, 41, V3);
    commit(&journal, 1, [1]);
    let mut frozen = Frozen::new();
    for block in 0..39 {
        frozen.block(PhysicalBlock(block), contents(block, 2));
    }
    let error = journal.commit(frozen).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    // A descriptor and a commit block besides.
    commit(&journal, 3, 0..38);
}

#[test]
fn blocks_outside_the_file_system_are_refused() {
    let device = Arc::new(device(100));
    let journal = open(device, 100, V3);
    let refused = |block, contents: Arc<[u8]>| {
        let mut frozen = Frozen::new();
        frozen.block(PhysicalBlock(block), contents);
        journal.commit(frozen).unwrap_err().kind() == ErrorKind::InvalidArgument
    };
    assert!(refused(HOMES, contents(0, 0)), "the journal's own");
    assert!(refused(HOMES + 100, contents(0, 0)), "past the end");
    assert!(refused(1, Arc::new([0; 512])), "half a block");
    commit(&journal, 1, [HOMES - 1]);
}

#[test]
fn empty_transaction_writes_nothing() {
    let device = Arc::new(device(100));
    let journal = open(device.clone(), 100, V3);
    let before = device.snapshot();
    journal.commit(Frozen::new()).unwrap();
    journal.empty().unwrap();
    assert_eq!(journal.checkpoint().unwrap(), Checkpoint::Done);
    assert_eq!(device.first_difference(&before), None);
}

#[test]
fn journal_of_a_handful_of_blocks_is_refused_and_the_smallest_works() {
    let small: Arc<dyn Device> = Arc::new(device(16));
    let error = Journal::open(
        small,
        crate::device::location(16),
        crate::device::options(V3),
    );
    assert_eq!(error.err().unwrap().kind(), ErrorKind::Unsupported);

    let device = Arc::new(device(17));
    let journal = open(device.clone(), 17, V3);
    for version in 1..40 {
        commit(&journal, version, [version % HOMES, 0, 1, 2]);
    }
    journal.empty().unwrap();
    assert_eq!(home(&*device, 39), *contents(39, 39));
}
