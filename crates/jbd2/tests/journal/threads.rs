//! Many threads with handles and commits: group commits, full transactions, interspersed power
//! cuts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use extant_blockdev::simulation::{CrashDevice, Survivors};
use extant_blockdev::{Device, MemoryDevice};
use extant_jbd2::{Extension, TransactionOptions, Transactions};
use extant_space::ErrorKind;

use crate::device::{V3, device, open, recover};
use crate::toy::{PAIRS, Pairs, change, version_at_home};

const BLOCKS: u32 = 120;
const THREADS: usize = 4;

const NEVER: TransactionOptions = TransactionOptions {
    interval: Duration::from_secs(3600),
    slots: Some(3),
    credits: None,
};

fn begin(device: impl Device + 'static, options: TransactionOptions) -> Transactions<Arc<Pairs>> {
    let journal = open(device, BLOCKS, V3);
    Transactions::new(journal, Arc::default(), options).unwrap()
}

#[test]
fn changes_of_many_threads_are_in_place_after_emptying_the_log() {
    let device = Arc::new(device(BLOCKS));
    let transactions = begin(device.clone(), NEVER);
    let versions: Vec<AtomicU64> = (0..PAIRS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for seed in 0..THREADS as u64 {
            let (transactions, versions) = (&transactions, &versions);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                for _ in 0..3000 {
                    let pair = random.usize(..PAIRS);
                    let (version, transaction) = change(transactions, pair).unwrap();
                    versions[pair].fetch_max(version, Ordering::Relaxed);
                    if random.u8(..50) == 0 {
                        transactions.commit(transaction).unwrap();
                        assert!(transactions.last_committed() >= Some(transaction));
                    }
                }
            });
        }
    });
    transactions.empty().unwrap();
    assert_eq!(transactions.journal().unwrap().log_use().used, 0);
    for (pair, version) in versions.iter().enumerate() {
        assert_eq!(
            version_at_home(&*device, pair),
            version.load(Ordering::Relaxed)
        );
    }
}

#[test]
fn statistics_count_transactions_with_changes_and_say_whether_a_commit_was_requested() {
    let transactions = begin(device(BLOCKS), NEVER);
    let opened = transactions.statistics();
    assert_eq!((opened.transactions, opened.handles), (0, 0));
    for _ in 0..3 {
        let (_, transaction) = change(&transactions, 0).unwrap();
        transactions.commit(transaction).unwrap();
        // Nothing has changed since.
        transactions.commit(transactions.running()).unwrap();
    }
    let counted = transactions.statistics();
    assert_eq!((counted.transactions, counted.requested), (3, 3));
    assert_eq!(counted.handles, 3);
    let log = transactions.journal().unwrap().log_use();
    assert_eq!(
        (counted.log_blocks, counted.log_used),
        (log.blocks, log.used)
    );
    // A descriptor and a commit block for each.
    assert_eq!(counted.blocks_logged, counted.blocks + 2 * 3);
    assert_eq!(counted.blocks_max, transactions.credits_max());

    let short = TransactionOptions {
        interval: Duration::from_millis(1),
        ..NEVER
    };
    let transactions = begin(device(BLOCKS), short);
    let (_, transaction) = change(&transactions, 0).unwrap();
    while transactions.last_committed() < Some(transaction) {
        thread::yield_now();
    }
    let counted = transactions.statistics();
    assert_eq!((counted.transactions, counted.requested), (1, 0));
}

#[test]
fn committed_transactions_survive_power_cuts_under_load() {
    for seed in 0..12 {
        survive_a_power_cut(seed);
    }
}

fn survive_a_power_cut(seed: u64) {
    let disk = Arc::new(CrashDevice::new(device(BLOCKS)));
    let transactions = begin(disk.clone(), NEVER);
    disk.power_cut_after(50 + seed * 40);
    let promised: Vec<AtomicU64> = (0..PAIRS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (transactions, promised) = (&transactions, &promised);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed * 100 + number as u64);
                loop {
                    let pair = random.usize(..PAIRS);
                    let Ok((version, transaction)) = change(transactions, pair) else {
                        return;
                    };
                    if random.u8(..10) == 0 && transactions.commit(transaction).is_ok() {
                        promised[pair].fetch_max(version, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let client = transactions.client().clone();
    drop(transactions);
    assert_eq!(client.aborted.lock().unwrap().len(), 1);
    let crash = disk.restart(Survivors::Seeded(seed));
    recover(disk.clone(), BLOCKS).unwrap_or_else(|error| panic!("{crash}: {error}"));
    for (pair, promised) in promised.iter().enumerate() {
        let is = version_at_home(&*disk, pair);
        let promised = promised.load(Ordering::Relaxed);
        assert!(
            is >= promised,
            "{crash}: pair {pair} is {is}, {promised} was promised"
        );
    }
}

#[test]
fn waiters_for_one_transaction_share_its_commit() {
    let transactions = begin(device(BLOCKS), NEVER);
    let barrier = Barrier::new(4);
    thread::scope(|scope| {
        for pair in 0..4 {
            let (transactions, barrier) = (&transactions, &barrier);
            scope.spawn(move || {
                let (_, transaction) = change(transactions, pair).unwrap();
                barrier.wait();
                transactions.commit(transaction).unwrap();
            });
        }
    });
    assert_eq!(transactions.client().committed.load(Ordering::Relaxed), 1);
}

#[test]
fn interval_commits_without_a_request() {
    let options = TransactionOptions {
        interval: Duration::from_millis(20),
        ..NEVER
    };
    let transactions = begin(device(BLOCKS), options);
    let (_, transaction) = change(&transactions, 1).unwrap();
    while transactions.last_committed() < Some(transaction) {
        thread::sleep(Duration::from_millis(1));
    }
    // Without changes there is no commit.
    thread::sleep(Duration::from_millis(100));
    assert_eq!(transactions.last_committed(), Some(transaction));
}

#[test]
fn commit_of_an_unchanged_transaction_returns_and_writes_nothing() {
    let device = Arc::new(device(BLOCKS));
    let before = device.snapshot();
    let transactions = begin(device.clone(), NEVER);
    let handle = transactions.start(5).unwrap();
    let transaction = handle.transaction();
    drop(handle);
    transactions.commit(transaction).unwrap();
    assert!(transactions.running() > transaction);
    assert_eq!(device.first_difference(&before), None);
}

#[test]
fn transaction_without_credits_left_is_committed_for_the_next_handle() {
    let transactions = begin(device(BLOCKS), NEVER);
    let most = transactions.credits_max();
    assert_eq!(most, (BLOCKS - 1) / 4);
    let first = change(&transactions, 0).unwrap().1;
    // All but the two of the pair are left.
    let handle = transactions.start(most).unwrap();
    assert!(handle.transaction() > first);
    assert_eq!(handle.extend(1), Extension::Refused);
    assert_eq!(handle.credits(), most);
    drop(handle);
    let handle = transactions.start(1).unwrap();
    assert_eq!(handle.extend(most - 1), Extension::Granted);
    assert_eq!(handle.credits(), most);
}

#[test]
fn credits_that_were_not_needed_are_there_for_others() {
    let transactions = begin(device(BLOCKS), NEVER);
    let most = transactions.credits_max();
    let first = transactions.running();
    // Each thread has another slot, whose lease would keep some back.
    for pair in 0..3 {
        thread::scope(|scope| {
            let transactions = &transactions;
            scope.spawn(move || {
                let handle = transactions.start(4).unwrap();
                transactions.client().change(pair, &handle);
            });
        });
    }
    let handle = transactions.start(most - 6).unwrap();
    assert_eq!(handle.transaction(), first);
}

#[test]
fn half_used_transaction_is_committed_unasked() {
    let transactions = begin(device(BLOCKS), NEVER);
    let first = transactions.running();
    for pair in 0..8 {
        change(&transactions, pair).unwrap();
    }
    while transactions.last_committed() < Some(first) {
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn handle_larger_than_a_transaction_is_refused() {
    let transactions = begin(device(BLOCKS), NEVER);
    let most = transactions.credits_max();
    let error = transactions.start(most + 1).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let line = error.to_string();
    assert!(line.contains("30 blocks") && line.contains("29"), "{line}");
}

#[test]
fn commit_of_a_transaction_to_come_is_refused() {
    let ahead = begin(device(BLOCKS), NEVER);
    ahead.commit(ahead.running()).unwrap();
    let behind = begin(device(BLOCKS), NEVER);
    let error = behind.commit(ahead.running()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
#[should_panic(expected = "3 blocks joined the transaction in a handle with 2 credits")]
fn handle_that_takes_more_than_its_credits_is_a_mistake() {
    let transactions = begin(device(BLOCKS), NEVER);
    let handle = transactions.start(2).unwrap();
    handle.joined(2);
    handle.joined(1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "started while the thread has a handle open")]
fn handle_in_a_handle_is_a_mistake() {
    let transactions = begin(device(BLOCKS), NEVER);
    let _outer = transactions.start(1).unwrap();
    let _inner = transactions.start(1);
}

#[test]
fn transactions_dropped_without_an_end_leave_the_state_of_a_crash() {
    let device = Arc::new(device(BLOCKS));
    let transactions = begin(device.clone(), NEVER);
    let (_, transaction) = change(&transactions, 3).unwrap();
    transactions.commit(transaction).unwrap();
    change(&transactions, 3).unwrap();
    drop(transactions);
    let copy: Arc<MemoryDevice> = Arc::new(device.snapshot());
    assert_eq!(version_at_home(&*copy, 3), 0);
    assert_eq!(recover(copy.clone(), BLOCKS).unwrap().transactions, 1);
    assert_eq!(version_at_home(&*copy, 3), 1);
}

#[test]
fn handle_may_wait_for_the_transaction_before_its_own() {
    let transactions = begin(device(BLOCKS), NEVER);
    let (_, before) = change(&transactions, 1).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| transactions.commit(before).unwrap());
        let handle = loop {
            let handle = transactions.start(2).unwrap();
            if handle.transaction() > before {
                break handle;
            }
            drop(handle);
            thread::yield_now();
        };
        transactions.commit(before).unwrap();
        drop(handle);
    });
    assert!(transactions.journal().unwrap().next_sequence().is_some());
}
