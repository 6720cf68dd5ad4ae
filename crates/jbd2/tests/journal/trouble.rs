//! Errors of the device: at every location they stop the journal, every caller gets the error, and
//! committed transactions survive.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant_blockdev::simulation::{Done, Fault, FaultRule, FaultyDevice, When};
use extant_blockdev::{MemoryDevice, OperationKind};
use extant_jbd2::{Client, Frozen, Recovery, TransactionId, TransactionOptions, Transactions};
use extant_space::{Error, ErrorKind, Result};

use crate::device::{V3, device, location, offset, open, recover};
use crate::toy::{PAIRS, Pairs, change, version_at_home};

const BLOCKS: u32 = 60;
const NEVER: TransactionOptions = TransactionOptions {
    interval: Duration::from_secs(3600),
    slots: Some(2),
    credits: None,
};

type Faulty = FaultyDevice<MemoryDevice>;

fn failing(operation: OperationKind, number: u64, done: Done) -> Arc<Faulty> {
    let kind = ErrorKind::Io;
    let rule = FaultRule::new(Fault::Fail { kind, done })
        .on(&[operation])
        .when(When::Nth(number));
    Arc::new(FaultyDevice::new(device(BLOCKS), number, vec![rule]))
}

#[test]
fn error_at_any_write_stops_the_journal_and_keeps_committed_data() {
    for done in [Done::Nothing, Done::Part, Done::All] {
        let mut number = 1;
        while fails_at_write(number, done) {
            number += 1;
        }
        assert!(number > 30, "{number} writes");
    }
}

/// Whether there were that many writes.
fn fails_at_write(number: u64, done: Done) -> bool {
    let device = failing(OperationKind::Write, number, done);
    let transactions = begin(device.clone());
    let mut promised = [0; PAIRS];
    let mut failure = None;
    for round in 0..25 {
        let pair = round * 3 % PAIRS;
        let result = change(&transactions, pair)
            .and_then(|(version, id)| transactions.commit(id).map(|()| version));
        match result {
            Ok(version) => promised[pair] = version,
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let failure = failure.or_else(|| transactions.empty().err());
    if let Some(error) = &failure {
        assert_eq!(error.kind(), ErrorKind::Io);
        let source = error.source().expect("the first error").to_string();
        assert!(source.contains("injected fault"), "{source}");
        for later in [
            transactions.start(1).map(drop),
            transactions.commit(transactions.running()),
            transactions.empty(),
        ] {
            let later = later.unwrap_err();
            assert_eq!(later.source().unwrap().to_string(), source);
        }
        if let Some(durable) = transactions.last_committed() {
            transactions.commit(durable).unwrap();
        }
    }
    let client = transactions.client().clone();
    // Waits for the thread of the commits, which may have more to say.
    drop(transactions);
    let aborted = client.aborted.lock().unwrap().clone();
    let first = failure.as_ref().and_then(|error| error.source());
    let expected: Vec<String> = first.iter().map(ToString::to_string).collect();
    assert_eq!(aborted, expected);
    recover_and_compare(device.inner(), &promised, number);
    failure.is_some()
}

fn begin(device: Arc<Faulty>) -> Transactions<Arc<Pairs>> {
    let journal = open(device, BLOCKS, V3);
    Transactions::new(journal, Arc::default(), NEVER).unwrap()
}

fn recover_and_compare(device: &MemoryDevice, promised: &[u64], number: u64) {
    let device = Arc::new(device.snapshot());
    recover(device.clone(), BLOCKS).unwrap();
    for (pair, promised) in promised.iter().enumerate() {
        let is = version_at_home(&*device, pair);
        // The one that failed may be there or not.
        assert!(
            (*promised..=promised + 1).contains(&is),
            "write {number}: pair {pair} is {is}"
        );
    }
}

#[test]
fn stopped_journal_is_visible_to_e2fsck() {
    let device = failing(OperationKind::Write, 5, Done::Nothing);
    let transactions = begin(device.clone());
    while change(&transactions, 1)
        .and_then(|(_, id)| transactions.commit(id))
        .is_ok()
    {}
    drop(transactions);
    let device = Arc::new(device.inner().snapshot());
    let recovery = Recovery::read(device.clone(), location(BLOCKS)).unwrap();
    assert_eq!(recovery.report().error_number, -5);
    recovery.replay().unwrap();
    recovery.finish().unwrap();
    // The next life forgets it.
    let journal = open(device.clone(), BLOCKS, V3);
    let mut frozen = Frozen::new();
    let contents = crate::device::contents(1, 9);
    frozen.block(extant_ondisk::ext4::PhysicalBlock(1), contents);
    journal.commit(frozen).unwrap();
    let recovery = Recovery::read(device, location(BLOCKS)).unwrap();
    assert_eq!(recovery.report().error_number, 0);
}

#[test]
fn error_while_reading_the_log_is_an_error_and_changes_nothing() {
    let good = Arc::new(device(BLOCKS));
    let journal = open(good.clone(), BLOCKS, V3);
    let transactions = Transactions::new(journal, Arc::<Pairs>::default(), NEVER).unwrap();
    for pair in 0..5 {
        let (_, transaction) = change(&transactions, pair).unwrap();
        transactions.commit(transaction).unwrap();
    }
    drop(transactions);
    let before = good.snapshot();
    let mut errors = 0;
    for number in 1.. {
        let rule = FaultRule::new(Fault::Fail {
            kind: ErrorKind::Io,
            done: Done::Nothing,
        });
        let rule = rule.on(&[OperationKind::Read]).when(When::Nth(number));
        let device = FaultyDevice::new(good.snapshot(), 1, vec![rule]);
        let device = Arc::new(device);
        match recover(device.clone(), BLOCKS) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Io),
        }
        // The log is still there for the next attempt.
        recover(Arc::new(device.inner().snapshot()), BLOCKS).unwrap();
        let superblock = offset(&location(BLOCKS), 0) as usize;
        let is = device.inner().to_vec();
        assert_eq!(
            is[superblock..][..512],
            before.to_vec()[superblock..][..512]
        );
        errors += 1;
    }
    assert!(errors > 3, "{errors} reads");
}

#[test]
fn error_at_any_write_of_a_replay_is_repaired_by_the_next() {
    let good = Arc::new(device(BLOCKS));
    let journal = open(good.clone(), BLOCKS, V3);
    let transactions = Transactions::new(journal, Arc::<Pairs>::default(), NEVER).unwrap();
    for pair in [0, 2, 4, 6] {
        let (_, transaction) = change(&transactions, pair).unwrap();
        transactions.commit(transaction).unwrap();
    }
    drop(transactions);
    let mut errors = 0;
    for number in 1.. {
        let rule = FaultRule::new(Fault::Fail {
            kind: ErrorKind::Io,
            done: Done::Part,
        });
        let rule = rule.on(&[OperationKind::Write]).when(When::Nth(number));
        let device = Arc::new(FaultyDevice::new(good.snapshot(), 1, vec![rule]));
        let failed = recover(device.clone(), BLOCKS).is_err();
        recover(device.clone(), BLOCKS).unwrap();
        for pair in 0..8 {
            let expected = u64::from(pair % 2 == 0);
            assert_eq!(version_at_home(device.inner(), pair), expected);
        }
        if !failed {
            break;
        }
        errors += 1;
    }
    assert!(errors >= 5, "{errors} writes");
}

/// A client whose data cannot be written.
struct NoData(Arc<Pairs>);

impl Client for NoData {
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen) {
        self.0.freeze(transaction, frozen);
    }

    fn write_data(&self, _: TransactionId) -> Result<()> {
        Err(Error::new(ErrorKind::NoSpace).detail("no room for data"))
    }

    fn committed(&self, transaction: TransactionId) {
        self.0.committed(transaction);
    }

    fn aborted(&self, error: &Error) {
        self.0.aborted(error);
    }
}

#[test]
fn data_that_cannot_be_written_stops_the_journal_before_the_commit() {
    let device = Arc::new(device(BLOCKS));
    let pairs: Arc<Pairs> = Arc::default();
    let journal = open(device.clone(), BLOCKS, V3);
    let transactions = Transactions::new(journal, NoData(pairs.clone()), NEVER).unwrap();
    let handle = transactions.start(2).unwrap();
    pairs.change(1, &handle);
    let transaction = handle.transaction();
    drop(handle);
    let error = transactions.commit(transaction).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    drop(transactions);
    assert_eq!(*pairs.aborted.lock().unwrap(), ["no room for data"]);
    assert_eq!(pairs.committed.load(Ordering::Relaxed), 0);
    recover(device.clone(), BLOCKS).unwrap();
    assert_eq!(version_at_home(&*device, 1), 0);
}

#[test]
fn aborted_transaction_is_never_committed() {
    let device = Arc::new(device(BLOCKS));
    let transactions = Transactions::new(
        open(device.clone(), BLOCKS, V3),
        Arc::<Pairs>::default(),
        NEVER,
    )
    .unwrap();
    let (_, before) = change(&transactions, 1).unwrap();
    transactions.commit(before).unwrap();
    let handle = transactions.start(2).unwrap();
    transactions.client().change(1, &handle);
    let running = handle.transaction();
    transactions.abort(Error::new(ErrorKind::Corrupt).detail("found halfway"));
    drop(handle);
    for error in [
        transactions.commit(running).unwrap_err(),
        transactions.start(1).err().unwrap(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    transactions.commit(before).unwrap();
    let pairs = Arc::clone(transactions.client());
    drop(transactions);
    assert_eq!(*pairs.aborted.lock().unwrap(), ["found halfway"]);
    recover(device.clone(), BLOCKS).unwrap();
    assert_eq!(version_at_home(&*device, 1), 1);
}

/// A client that panics.
struct Panics;

impl Client for Panics {
    fn freeze(&self, _: TransactionId, _: &mut Frozen) {
        panic!("a mistake of the client");
    }

    fn committed(&self, _: TransactionId) {}

    fn aborted(&self, _: &Error) {}
}

#[test]
fn panic_of_the_client_wakes_every_waiter() {
    let journal = open(device(BLOCKS), BLOCKS, V3);
    let transactions = Transactions::new(journal, Panics, NEVER).unwrap();
    let error = transactions.commit(transactions.running()).unwrap_err();
    assert!(error.to_string().contains("panicked"), "{error}");
}
