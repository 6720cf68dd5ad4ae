//! Fast commits: their position, their validity, and sharing between syncs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use extant_blockdev::{Device, MemoryDevice};
use extant_jbd2::{
    Client, FastCommitSpace, FastCommits, Frozen, Journal, JournalOptions, Recovery, TransactionId,
    TransactionOptions, Transactions,
};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, ErrorKind};

use crate::device::{BLOCK, V3, contents, device, home, location, offset, open};

/// Large enough for the log that Linux wants beside the 256 blocks of fast commits.
const BLOCKS: u32 = 1400;

fn options() -> JournalOptions {
    JournalOptions {
        format: Some(V3),
        fast_commits: FastCommits::On,
    }
}

fn journal(device: &Arc<MemoryDevice>) -> Journal {
    Journal::open(device.clone(), location(BLOCKS), options()).unwrap()
}

fn transaction(block: u64, version: u64) -> Frozen {
    let mut frozen = Frozen::new();
    frozen.block(PhysicalBlock(block), contents(block, version));
    frozen
}

fn block_of(device: &MemoryDevice, block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let at = offset(&location(BLOCKS), block);
    device.read_at(&mut bytes, at).unwrap();
    bytes
}

#[test]
fn fast_commits_follow_each_other_and_end_with_the_next_transaction() {
    let device = Arc::new(device(BLOCKS));
    let journal = journal(&device);
    assert_eq!(journal.fast_commit_space(), None, "there is no log yet");
    let refused = journal.write_fast_commit(&[1; BLOCK]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    journal.commit(transaction(3, 1)).unwrap();
    let first = journal.fast_commits().start;
    let space = journal.fast_commit_space().unwrap();
    assert_eq!((space.used, space.left), (0, 255));
    assert_eq!(Some(space.sequence), journal.next_sequence());
    journal
        .write_fast_commit(&[[1; BLOCK], [2; BLOCK]].concat())
        .unwrap();
    journal.write_fast_commit(&[3; BLOCK]).unwrap();
    for (block, value) in [1, 2, 3, 0].into_iter().enumerate() {
        assert_eq!(block_of(&device, first + block as u32), [value; BLOCK]);
    }
    assert_eq!(journal.fast_commit_space().unwrap().used, 3);
    let many = vec![4; 253 * BLOCK];
    let refused = journal.write_fast_commit(&many).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    // Recovery finds the fast commits on the transaction that would be next.
    let recovery = Recovery::read(Arc::new(device.snapshot()), location(BLOCKS)).unwrap();
    assert_eq!(recovery.report().next, space.sequence);
    let found: Vec<u8> = recovery
        .fast_commits()
        .take(4)
        .map(|block| block.unwrap()[0])
        .collect();
    assert_eq!(found, [1, 2, 3, 0]);

    journal.commit(transaction(3, 2)).unwrap();
    let after = journal.fast_commit_space().unwrap();
    assert_eq!((after.used, after.sequence), (0, space.sequence.next()));
    assert_eq!(
        block_of(&device, first),
        [0; BLOCK],
        "an old one looks like an error to e2fsck"
    );
}

#[test]
fn block_written_in_place_on_request_is_kept_in_the_log() {
    let device = Arc::new(device(BLOCKS));
    let journal = journal(&device);
    journal.commit(transaction(3, 1)).unwrap();
    assert_ne!(home(&*device, 3), *contents(3, 1));
    for version in [1, 2] {
        journal.commit(transaction(3, version)).unwrap();
        journal.bring_home(PhysicalBlock(3)).unwrap();
        assert_eq!(home(&*device, 3), *contents(3, version));
        assert!(journal.lookup(PhysicalBlock(3)).is_some());
    }
    journal.bring_home(PhysicalBlock(9)).unwrap();
    journal.empty().unwrap();
    assert_eq!(home(&*device, 3), *contents(3, 2));
}

#[test]
fn resumed_journal_continues_with_the_transaction_of_the_fast_commits() {
    let device = Arc::new(device(BLOCKS));
    let old = journal(&device);
    old.commit(transaction(3, 1)).unwrap();
    old.commit(transaction(4, 1)).unwrap();
    old.write_fast_commit(&[7; BLOCK]).unwrap();
    let space = old.fast_commit_space().unwrap();
    drop(old);
    let recovery = Recovery::read(device.clone(), location(BLOCKS)).unwrap();
    recovery.replay().unwrap();
    let resumed = recovery.resume().unwrap();
    assert_eq!(home(&*device, 4), *contents(4, 1));
    // A crash now finds an empty log and the same fast commits.
    let again = Recovery::read(Arc::new(device.snapshot()), location(BLOCKS)).unwrap();
    assert_eq!(
        (again.report().transactions, again.report().next),
        (0, space.sequence)
    );
    assert_eq!(again.fast_commits().next().unwrap().unwrap(), [7; BLOCK]);
    assert_eq!(
        resumed.read_fast_commits().next().unwrap().unwrap(),
        [7; BLOCK]
    );
    assert_eq!(
        resumed.fast_commit_space(),
        None,
        "no more fit before the transaction"
    );
    resumed.commit(transaction(5, 1)).unwrap();
    let again = Recovery::read(Arc::new(device.snapshot()), location(BLOCKS)).unwrap();
    let report = again.report();
    assert_eq!(
        (report.transactions, report.next),
        (1, space.sequence.next())
    );
    assert_eq!(block_of(&device, resumed.fast_commits().start), [0; BLOCK]);
    resumed.empty().unwrap();
    drop(resumed);
    open(device.clone(), BLOCKS, V3)
        .commit(transaction(6, 1))
        .unwrap();
    assert_eq!(home(&*device, 5), *contents(5, 1));
}

#[test]
fn journal_without_room_for_fast_commits_has_none() {
    let journal = Journal::open(Arc::new(device(200)), location(200), options()).unwrap();
    assert!(journal.fast_commits().is_empty());
    journal.commit(transaction(3, 1)).unwrap();
    assert_eq!(journal.fast_commit_space(), None);
}

/// Says its counter in fast commits, or in a block.
#[derive(Default)]
struct Counter {
    value: AtomicU64,
    is_silent: AtomicU64,
    said: Mutex<Vec<u64>>,
}

impl Client for Counter {
    fn freeze(&self, _: TransactionId, frozen: &mut Frozen) {
        let value = self.value.load(Ordering::Relaxed);
        frozen.block(PhysicalBlock(1), contents(1, value));
    }

    fn fast_commit(&self, _: TransactionId, space: &FastCommitSpace) -> Option<Vec<u8>> {
        if self.is_silent.load(Ordering::Relaxed) != 0 || space.left == 0 {
            return None;
        }
        let value = self.value.load(Ordering::Relaxed);
        self.said.lock().unwrap().push(value);
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(&value.to_le_bytes());
        Some(block)
    }

    fn committed(&self, _: TransactionId) {}

    fn aborted(&self, _: &Error) {}
}

fn transactions(device: &Arc<MemoryDevice>) -> Transactions<Arc<Counter>> {
    let options = TransactionOptions {
        interval: Duration::from_secs(3600),
        slots: Some(2),
        credits: None,
    };
    Transactions::new(journal(device), Arc::new(Counter::default()), options).unwrap()
}

#[test]
fn sync_is_a_fast_commit_where_the_client_can_say_it() {
    let device = Arc::new(device(BLOCKS));
    let all = transactions(&device);
    let counter = all.client().clone();
    let add = || {
        let handle = all.start(1).unwrap();
        counter.value.fetch_add(1, Ordering::Relaxed);
        handle.epoch()
    };
    // The first begins the log.
    let epoch = add();
    all.sync(epoch).unwrap();
    assert_eq!(all.last_committed().map(TransactionId::number), Some(1));
    assert!(counter.said.lock().unwrap().is_empty());
    for value in 2..5 {
        let epoch = add();
        assert!(all.last_durable() < Some(epoch));
        all.sync(epoch).unwrap();
        assert_eq!(all.last_durable(), Some(epoch));
        all.sync(epoch).unwrap();
        assert_eq!(counter.said.lock().unwrap().last(), Some(&value));
    }
    assert_eq!(
        counter.said.lock().unwrap().len(),
        3,
        "a second sync says nothing"
    );
    assert_eq!(all.last_committed().map(TransactionId::number), Some(1));
    assert_eq!(all.running().number(), 2);
    // A commit also makes changes without records durable.
    counter.is_silent.store(1, Ordering::Relaxed);
    let epoch = add();
    all.sync(epoch).unwrap();
    assert_eq!(all.last_committed().map(TransactionId::number), Some(2));
    let counted = all.statistics();
    assert_eq!((counted.transactions, counted.requested), (2, 2));
    assert_eq!((counted.handles, counted.blocks), (5, 2));
    assert_eq!((counted.fast_commits, counted.fast_commit_blocks), (3, 3));
    assert_eq!(counted.fast_commits_ineligible, 1);
}

#[test]
fn syncs_of_many_threads_share_fast_commits_and_lose_nothing() {
    let device = Arc::new(device(BLOCKS));
    let all = Arc::new(transactions(&device));
    let barrier = Arc::new(Barrier::new(4));
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let (all, barrier) = (all.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                for number in 0..100 {
                    let (epoch, value) = {
                        let handle = all.start(1).unwrap();
                        let value = all.client().value.fetch_add(1, Ordering::Relaxed) + 1;
                        (handle.epoch(), value)
                    };
                    all.sync(epoch).unwrap();
                    if number % 40 == thread {
                        all.commit(all.running()).unwrap();
                    }
                    if number % 25 == 0 {
                        promised(&all, value);
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    promised(&all, 400);
}

/// Checks that a crash now leaves at least `value`.
fn promised(all: &Transactions<Arc<Counter>>, value: u64) {
    let said = all.client().said.lock().unwrap().last().copied();
    let block = all.journal().unwrap().lookup(PhysicalBlock(1));
    let committed = block.map(|bytes| u64::from_le_bytes(bytes[12..20].try_into().unwrap()));
    assert!(
        said.max(committed) >= Some(value),
        "{said:?}, {committed:?}, not {value}"
    );
}
