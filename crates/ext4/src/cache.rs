//! Cache of metadata blocks.
//!
//! Model: the bytes of a block are an `Arc<[u8]>`. A reader clones the `Arc` and is not affected by
//! later changes; a writer copies the bytes if a reader still holds the old ones. A commit freezes
//! a block by taking its `Arc`, and the next transaction can change it at once.
//!
//! On a miss the block is read from the journal if it is committed but not checkpointed, otherwise
//! from the device.
//!
//! Invariants:
//! - bytes from the device are validated once, before any user sees them;
//! - a block is evicted only when it has no user: a transaction holds the blocks it changed until
//!   it has committed, so there are never two objects of one block number;
//! - a forgotten block (freed) is not written and not found any more.
//!
//! Lock order: a block's lock is the last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use extant_blockdev::Device;
use extant_jbd2::{Journal, TransactionId};
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, Result};

use crate::pinned_cache::{PinnedCache, held_cache};
use crate::sync::lock;

/// Validates bytes read from the device.
pub(crate) type Validator<'a> = &'a dyn Fn(&[u8]) -> Result<()>;

pub(crate) struct BlockCache {
    device: Arc<dyn Device>,
    journal: Option<Arc<Journal>>,
    block_bytes: usize,
    blocks: PinnedCache<PhysicalBlock, Block>,
    counts: Arc<Counts>,
}

/// Use of the cache since the file system was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Blocks in the cache.
    pub blocks: u64,
    /// Blocks that it keeps at most, apart from those in use.
    pub capacity_blocks: u64,
    /// Reads and changes of a block that was in the cache.
    pub hits: u64,
    /// Those of a block that was read from the device or the journal.
    pub misses: u64,
}

/// Counters outside of the cached blocks.
#[derive(Default)]
struct Counts {
    /// Of blocks that are no longer in the cache.
    hits: AtomicU64,
    misses: AtomicU64,
}

/// One block.
pub(crate) struct Block {
    number: PhysicalBlock,
    state: Mutex<CacheState>,
    counts: Arc<Counts>,
}

struct CacheState {
    /// Nothing before the first read.
    bytes: Option<Arc<[u8]>>,
    /// The running transaction, when it changed the block.
    changed_in: Option<TransactionId>,
    /// The last transaction that made it out of a free block.
    created_in: Option<TransactionId>,
    forgotten: bool,
    /// Counted under the lock, which costs no other cache line.
    hits: u64,
}

/// The owner of changes to blocks for a transaction.
pub(crate) trait Changing {
    /// The running transaction.
    fn id(&self) -> TransactionId;
    /// Adds a block to it that it did not have.
    fn joined(&self, block: &Arc<Block>);
}

impl BlockCache {
    /// A cache that tries to keep `capacity` blocks of `block_bytes`.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        journal: Option<Arc<Journal>>,
        block_bytes: usize,
        capacity: usize,
    ) -> Self {
        Self {
            device,
            journal,
            block_bytes,
            blocks: held_cache(capacity),
            counts: Arc::default(),
        }
    }

    /// Visits every block in the cache.
    pub(crate) fn statistics(&self) -> CacheStatistics {
        let cached = self.blocks.iter();
        let hits: u64 = cached.map(|(_, block)| lock(&block.state).hits).sum();
        CacheStatistics {
            blocks: self.blocks.len() as u64,
            capacity_blocks: self.blocks.capacity(),
            hits: hits + self.counts.hits.load(Ordering::Relaxed),
            misses: self.counts.misses.load(Ordering::Relaxed),
        }
    }

    /// The bytes of a block; `validate` checks them when they are read from the device.
    ///
    /// # Errors
    /// Those of the device and of `validate`.
    pub(crate) fn read(&self, number: PhysicalBlock, validate: Validator<'_>) -> Result<Arc<[u8]>> {
        self.with(number, |_, state| {
            self.fill(number, state, validate)?;
            Ok(Arc::clone(state.bytes.as_ref().expect("just filled")))
        })
    }

    /// Changes a block, as [`read`](Self::read) finds it, in the running transaction.
    ///
    /// # Errors
    /// As [`read`](Self::read); nothing is changed then.
    pub(crate) fn change<T>(
        &self,
        by: &impl Changing,
        number: PhysicalBlock,
        validate: Validator<'_>,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<T> {
        self.with(number, |block, state| {
            self.fill(number, state, validate)?;
            Ok(state.change(by, block, change))
        })
    }

    /// Changes a pinned block that was read. Changes of a forgotten block have no effect.
    pub(crate) fn change_held<T>(
        &self,
        by: &impl Changing,
        block: &Arc<Block>,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> T {
        let mut state = lock(&block.state);
        if state.forgotten {
            // Only a damaged file system has two owners of a block, of whom one has freed it.
            return change(&mut vec![0; self.block_bytes]);
        }
        state.change(by, block, change)
    }

    /// Makes a block of metadata out of a free one; `change` sees zeros.
    pub(crate) fn create<T>(
        &self,
        by: &impl Changing,
        number: PhysicalBlock,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> T {
        let made = self.with(number, |block, state| {
            state.bytes = Some(vec![0; self.block_bytes].into());
            state.created_in = Some(by.id());
            Ok(state.change(by, block, change))
        });
        made.expect("nothing was read")
    }

    /// Drops a block that is free now: the running transaction does not write it.
    pub(crate) fn forget(&self, number: PhysicalBlock) {
        let Some(block) = self.blocks.get(&number) else {
            return;
        };
        let mut state = lock(&block.state);
        state.forgotten = true;
        state.bytes = None;
        self.blocks.remove(&number);
    }

    /// Makes the journal checkpoint a block.
    ///
    /// # Errors
    /// Errors of the device, which stop the journal.
    pub(crate) fn bring_home(&self, number: PhysicalBlock) -> Result<()> {
        match &self.journal {
            Some(journal) => journal.bring_home(number),
            None => Ok(()),
        }
    }

    /// The block itself, which stays in the cache as long as it is held.
    pub(crate) fn hold(&self, number: PhysicalBlock) -> Arc<Block> {
        let made = self.blocks.get_or_insert_with(&number, || {
            Ok::<_, Error>(Arc::new(Block {
                number,
                state: Mutex::new(CacheState {
                    bytes: None,
                    changed_in: None,
                    created_in: None,
                    forgotten: false,
                    hits: 0,
                }),
                counts: Arc::clone(&self.counts),
            }))
        });
        made.expect("making one does not fail")
    }

    /// Runs `work` on a block that is not forgotten.
    fn with<T>(
        &self,
        number: PhysicalBlock,
        work: impl FnOnce(&Arc<Block>, &mut CacheState) -> Result<T>,
    ) -> Result<T> {
        loop {
            let block = self.hold(number);
            let mut state: MutexGuard<'_, CacheState> = lock(&block.state);
            if !state.forgotten {
                return work(&block, &mut state);
            }
        }
    }

    fn fill(
        &self,
        number: PhysicalBlock,
        state: &mut CacheState,
        validate: Validator<'_>,
    ) -> Result<()> {
        if state.bytes.is_some() {
            state.hits += 1;
            return Ok(());
        }
        self.counts.misses.fetch_add(1, Ordering::Relaxed);
        let journal = self.journal.as_ref();
        let bytes = match journal.and_then(|journal| journal.lookup(number)) {
            Some(bytes) => bytes,
            None => {
                let mut bytes = vec![0; self.block_bytes];
                self.device
                    .read_at(&mut bytes, number.0 * self.block_bytes as u64)?;
                bytes.into()
            }
        };
        validate(&bytes)?;
        state.bytes = Some(bytes);
        Ok(())
    }
}

impl Block {
    /// Its number.
    pub(crate) fn number(&self) -> PhysicalBlock {
        self.number
    }

    /// Whether it was free before `transaction`.
    pub(crate) fn is_new_in(&self, transaction: TransactionId) -> bool {
        lock(&self.state).created_in == Some(transaction)
    }

    /// Its number and its bytes as they are now; `None` when it was freed.
    pub(crate) fn freeze(&self) -> Option<(PhysicalBlock, Arc<[u8]>)> {
        let state = lock(&self.state);
        let bytes = state.bytes.as_ref().filter(|_| !state.forgotten)?;
        Some((self.number, Arc::clone(bytes)))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let hits = state.unwrap_or_else(PoisonError::into_inner).hits;
        self.counts.hits.fetch_add(hits, Ordering::Relaxed);
    }
}

impl CacheState {
    fn change<T>(
        &mut self,
        by: &impl Changing,
        block: &Arc<Block>,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> T {
        if self.changed_in != Some(by.id()) {
            self.changed_in = Some(by.id());
            by.joined(block);
        }
        change(Arc::make_mut(self.bytes.as_mut().expect("filled")))
    }
}
