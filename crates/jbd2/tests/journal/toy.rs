//! A client whose metadata are pairs of blocks: both always have the same version.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use extant_blockdev::Device;
use extant_jbd2::{Client, Frozen, Handle, TransactionId, Transactions};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, Result};

use crate::device::{HOMES, contents, home};

pub const PAIRS: usize = HOMES as usize / 2;

#[derive(Default)]
pub struct Pairs {
    versions: [Mutex<u64>; PAIRS],
    changed: Mutex<BTreeSet<usize>>,
    pub frozen: AtomicU64,
    pub committed: AtomicU64,
    pub aborted: Mutex<Vec<String>>,
}

impl Pairs {
    /// Changes a pair in a handle of at least 2 credits; returns its new version.
    pub fn change(&self, pair: usize, handle: &Handle<'_>) -> u64 {
        let mut version = self.versions[pair].lock().unwrap();
        *version += 1;
        if self.changed.lock().unwrap().insert(pair) {
            handle.joined(2);
        }
        *version
    }
}

impl Client for Pairs {
    fn freeze(&self, transaction: TransactionId, frozen: &mut Frozen) {
        let before = self.frozen.swap(transaction.number(), Ordering::Relaxed);
        assert_eq!(before + 1, transaction.number(), "transactions in order");
        for pair in std::mem::take(&mut *self.changed.lock().unwrap()) {
            // No handle is open, so it is unlocked.
            let version = *self.versions[pair].try_lock().expect("no handle is open");
            for block in blocks(pair) {
                frozen.block(PhysicalBlock(block), contents(block, version));
            }
        }
    }

    fn committed(&self, transaction: TransactionId) {
        let before = self.committed.swap(transaction.number(), Ordering::Relaxed);
        assert_eq!(before + 1, transaction.number(), "transactions in order");
    }

    fn aborted(&self, error: &Error) {
        self.aborted.lock().unwrap().push(error.to_string());
    }
}

/// Changes `pair` and returns its version and the transaction.
pub fn change(
    transactions: &Transactions<Arc<Pairs>>,
    pair: usize,
) -> Result<(u64, TransactionId)> {
    let handle = transactions.start(2)?;
    let version = transactions.client().change(pair, &handle);
    Ok((version, handle.transaction()))
}

fn blocks(pair: usize) -> [u64; 2] {
    [2 * pair as u64, 2 * pair as u64 + 1]
}

/// The version of a pair in place.
///
/// # Panics
/// When its blocks do not fit each other.
pub fn version_at_home(device: &dyn Device, pair: usize) -> u64 {
    let versions = blocks(pair).map(|block| {
        let is = home(device, block);
        let version = u64::from_le_bytes(is[12..20].try_into().unwrap());
        assert!(
            version == 0 || is == *contents(block, version),
            "block {block}"
        );
        version
    });
    assert_eq!(versions[0], versions[1], "pair {pair} is torn");
    versions[0]
}
