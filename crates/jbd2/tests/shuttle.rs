//! Handles, credits, commits and errors under every order of steps that the model checker tries.
//!
//! Run with `cargo test -p extant-jbd2 --features shuttle --test shuttle`.

#![cfg(feature = "shuttle")]

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use extant_blockdev::simulation::{CrashDevice, Survivors};
use extant_blockdev::{Device, MemoryDevice, Persistence};
use extant_jbd2::{
    BlockNumbers, Checksums, Client, FastCommitSpace, FastCommits, Frozen, Journal,
    JournalLocation, JournalOptions, LogFormat, Recovery, Run, TransactionId, TransactionOptions,
    Transactions,
};
use extant_ondisk::ext4::PhysicalBlock;
use extant_ondisk::jbd2::superblock::RawJournalSuperblock;
use extant_space::{Error, ErrorKind};
use shuttle::thread;
use zerocopy::{FromZeros, IntoBytes};

const BLOCK: usize = 1024;
const HOMES: u64 = 16;
const BLOCKS: u32 = 40;
const SCHEDULES: usize = 400;

/// Room for a log beside four blocks of fast commits.
const FAST_BLOCKS: u32 = 1024 + 5;

fn location() -> JournalLocation {
    place_of(BLOCKS)
}

fn place_of(blocks: u32) -> JournalLocation {
    let run = Run {
        first: PhysicalBlock(HOMES),
        blocks,
    };
    JournalLocation::new(BLOCK as u32, &[run]).unwrap()
}

fn device() -> MemoryDevice {
    device_of(BLOCKS)
}

fn device_of(blocks: u32) -> MemoryDevice {
    let device = MemoryDevice::new((HOMES + u64::from(blocks)) * BLOCK as u64);
    let mut raw = RawJournalSuperblock::new_zeroed();
    raw.s_header.h_magic.set(0xC03B_3998);
    raw.s_header.h_blocktype.set(4);
    raw.s_blocksize.set(BLOCK as u32);
    raw.s_maxlen.set(blocks);
    raw.s_num_fc_blks.set(5);
    raw.s_first.set(1);
    raw.s_sequence.set(1);
    let at = HOMES * BLOCK as u64;
    let written = device.write_at(raw.as_bytes(), at, Persistence::Fua);
    written.unwrap();
    device
}

/// Counters in blocks. Its locks are those of the standard library: nothing of the checker happens
/// while one is held.
#[derive(Default)]
struct Counters {
    values: Mutex<[u64; HOMES as usize]>,
    changed: Mutex<BTreeSet<u64>>,
    aborted: Mutex<u32>,
    /// Last value of each counter in transactions and fast commits.
    said: Mutex<[u64; HOMES as usize]>,
}

impl Client for Counters {
    fn freeze(&self, _: TransactionId, frozen: &mut Frozen) {
        let values = self.values.lock().unwrap();
        for block in std::mem::take(&mut *self.changed.lock().unwrap()) {
            let mut contents = [0; BLOCK];
            contents[8..16].copy_from_slice(&values[block as usize].to_le_bytes());
            frozen.block(PhysicalBlock(block), Arc::new(contents));
        }
        *self.said.lock().unwrap() = *values;
    }

    fn fast_commit(&self, _: TransactionId, _: &FastCommitSpace) -> Option<Vec<u8>> {
        let values = self.values.lock().unwrap();
        assert_eq!(values[1], values[2], "in the middle of a change");
        *self.said.lock().unwrap() = *values;
        Some(vec![1; BLOCK])
    }

    fn committed(&self, _: TransactionId) {}

    fn aborted(&self, _: &Error) {
        *self.aborted.lock().unwrap() += 1;
    }
}

fn begin(device: Arc<dyn Device>) -> Arc<Transactions<Counters>> {
    begin_at(device, location())
}

fn begin_at(device: Arc<dyn Device>, location: JournalLocation) -> Arc<Transactions<Counters>> {
    let options = JournalOptions {
        format: Some(LogFormat {
            checksums: Checksums::V3,
            block_numbers: BlockNumbers::Bits64,
        }),
        fast_commits: FastCommits::On,
    };
    let journal = Journal::open(device, location, options).unwrap();
    let options = TransactionOptions {
        interval: Duration::from_secs(3600),
        slots: Some(2),
        credits: None,
    };
    Arc::new(Transactions::new(journal, Counters::default(), options).unwrap())
}

/// Adds one to two blocks in a handle with `credits`.
fn add(
    transactions: &Transactions<Counters>,
    blocks: [u64; 2],
    credits: u32,
) -> extant_space::Result<TransactionId> {
    let handle = transactions.start(credits)?;
    for block in blocks {
        // Between the two another thread may run, but no commit.
        thread::yield_now();
        let client = transactions.client();
        client.values.lock().unwrap()[block as usize] += 1;
        if client.changed.lock().unwrap().insert(block) {
            handle.joined(1);
        }
    }
    Ok(handle.transaction())
}

fn value(device: &dyn Device, block: u64) -> u64 {
    let mut contents = [0; BLOCK];
    let at = block * BLOCK as u64;
    device.read_at(&mut contents, at).unwrap();
    u64::from_le_bytes(contents[8..16].try_into().unwrap())
}

fn recover(device: Arc<dyn Device>) {
    let recovery = Recovery::read(device, location()).unwrap();
    recovery.replay().unwrap();
    recovery.finish().unwrap();
}

#[test]
fn syncs_wait_for_handles_and_record_their_changes() {
    shuttle::check_random(
        || {
            let device = Arc::new(device_of(FAST_BLOCKS));
            let transactions = begin_at(device, place_of(FAST_BLOCKS));
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let transactions = transactions.clone();
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let client = transactions.client();
                            let (epoch, value) = {
                                let handle = transactions.start(2).unwrap();
                                for block in [1, 2] {
                                    thread::yield_now();
                                    client.values.lock().unwrap()[block] += 1;
                                    if client.changed.lock().unwrap().insert(block as u64) {
                                        handle.joined(1);
                                    }
                                }
                                (handle.epoch(), client.values.lock().unwrap()[2])
                            };
                            transactions.sync(epoch).unwrap();
                            assert!(transactions.last_durable() >= Some(epoch));
                            assert!(client.said.lock().unwrap()[2] >= value);
                        }
                        transactions.commit(transactions.running()).unwrap();
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(transactions.client().said.lock().unwrap()[1], 6);
        },
        SCHEDULES,
    );
}

#[test]
fn commits_wait_for_handles_and_are_shared() {
    shuttle::check_random(
        || {
            let device = Arc::new(device());
            let transactions = begin(device.clone());
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let transactions = transactions.clone();
                    thread::spawn(move || {
                        for _ in 0..2 {
                            let transaction = add(&transactions, [1, 2], 2).unwrap();
                            transactions.commit(transaction).unwrap();
                            assert!(transactions.last_committed() >= Some(transaction));
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            let commits = transactions.last_committed().unwrap().number();
            assert!(commits <= 6, "{commits} commits");
            drop(transactions);
            recover(device.clone());
            assert_eq!([value(&*device, 1), value(&*device, 2)], [6, 6]);
        },
        SCHEDULES,
    );
}

#[test]
fn half_an_operation_is_never_committed() {
    shuttle::check_random(
        || {
            let device = Arc::new(device());
            let transactions = begin(device.clone());
            let adders: Vec<_> = [[1, 2], [1, 2], [4, 5]]
                .into_iter()
                .map(|blocks| {
                    let transactions = transactions.clone();
                    thread::spawn(move || {
                        for _ in 0..3 {
                            add(&transactions, blocks, 2).unwrap();
                        }
                    })
                })
                .collect();
            let running = transactions.running();
            transactions.commit(running).unwrap();
            let copy = Arc::new(device.snapshot());
            recover(copy.clone());
            assert_eq!(value(&*copy, 1), value(&*copy, 2));
            assert_eq!(value(&*copy, 4), value(&*copy, 5));
            for thread in adders {
                thread.join().unwrap();
            }
        },
        SCHEDULES,
    );
}

#[test]
fn handles_that_use_a_transaction_up_all_get_their_turn() {
    shuttle::check_random(
        || {
            let device = Arc::new(device());
            let transactions = begin(device.clone());
            let most = transactions.credits_max();
            let threads: Vec<_> = [most, most - 1, most / 2 + 1]
                .into_iter()
                .map(|credits| {
                    let transactions = transactions.clone();
                    thread::spawn(move || {
                        for _ in 0..2 {
                            add(&transactions, [1, 2], credits).unwrap();
                        }
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            transactions.empty().unwrap();
            assert_eq!([value(&*device, 1), value(&*device, 2)], [6, 6]);
        },
        SCHEDULES,
    );
}

#[test]
fn error_reaches_every_waiter_once() {
    shuttle::check_random(
        || {
            let disk = Arc::new(CrashDevice::new(device()));
            let transactions = begin(disk.clone());
            disk.power_cut_after(4);
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let transactions = transactions.clone();
                    thread::spawn(move || {
                        let mut durable = 0;
                        loop {
                            let added = add(&transactions, [1, 2], 3);
                            match added.and_then(|transaction| transactions.commit(transaction)) {
                                Ok(()) => durable += 1,
                                Err(_) => return durable,
                            }
                        }
                    })
                })
                .collect();
            let waiting = {
                let transactions = transactions.clone();
                thread::spawn(move || transactions.empty().is_err())
            };
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            let durable: u64 = joined.sum();
            // It may have run before the power failed.
            let _ = waiting.join().unwrap();
            assert!(transactions.failure().is_some());
            let client_heard = || *transactions.client().aborted.lock().unwrap();
            while client_heard() == 0 {
                thread::yield_now();
            }
            assert_eq!(client_heard(), 1);
            drop(transactions);
            disk.restart(Survivors::None);
            recover(disk.clone());
            let values = [value(&*disk, 1), value(&*disk, 2)];
            assert_eq!(values[0], values[1]);
            assert!(values[0] >= durable, "{values:?}, {durable} were durable");
        },
        SCHEDULES,
    );
}

#[test]
fn commit_after_handles_are_refused_has_all_changes() {
    shuttle::check_random(
        || {
            let device = Arc::new(device());
            let transactions = begin(device.clone());
            let most = transactions.credits_max();
            let adders: Vec<_> = [2, 2, most]
                .into_iter()
                .map(|credits| {
                    let transactions = transactions.clone();
                    thread::spawn(move || {
                        let mut added = 0;
                        while added < 4 && add(&transactions, [1, 2], credits).is_ok() {
                            added += 1;
                        }
                        added
                    })
                })
                .collect();
            thread::yield_now();
            let last = transactions.refuse_handles();
            transactions.commit(last).unwrap();
            assert!(transactions.start(1).is_err());
            let copy = Arc::new(device.snapshot());
            let joined = adders.into_iter().map(|thread| thread.join().unwrap());
            let added: u64 = joined.sum();
            transactions.abort(Error::new(ErrorKind::ReadOnly));
            drop(transactions);
            recover(copy.clone());
            assert_eq!([value(&*copy, 1), value(&*copy, 2)], [added; 2]);
        },
        SCHEDULES,
    );
}
