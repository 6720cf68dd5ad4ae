//! Commits of a file system without a journal: the blocks of a transaction are written where they
//! belong.
//!
//! Model: a transaction is written in stages, which the client separates by
//! [barriers](crate::Frozen::barrier). The data is written first, and each stage is durable before
//! the next is begun. A power cut leaves a transaction done in part; the stages are ordered so that
//! a check of the file system can repair that.
//!
//! After the first error of the device nothing is written any more, as with a journal.

use std::sync::Arc;

use extant_blockdev::Device;
use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Error, ErrorKind, Result};

use crate::Frozen;
use crate::disk::{flush, write_blocks};
use crate::failure::Failure;
use crate::sync::{Mutex, lock};

/// Bytes of a transaction: the upper bound of the loss without a sync.
const TRANSACTION_BYTES_MAX: u32 = 32 << 20;

/// A device that transactions are written to without a log.
pub struct InPlace {
    device: Arc<dyn Device>,
    block_bytes: u32,
    pub(crate) failure: Arc<Failure>,
    /// Held while a transaction is written.
    writing: Mutex<()>,
}

impl InPlace {
    /// For a file system with blocks of `block_bytes`.
    ///
    /// # Errors
    /// `Unsupported` if a block is smaller than the smallest write of the device.
    pub fn new(device: Arc<dyn Device>, block_bytes: u32) -> Result<Self> {
        let unit = device.geometry().logical_block;
        if unit > block_bytes {
            return Err(Error::new(ErrorKind::Unsupported).detail(format!(
                "blocks of {block_bytes} bytes on a device with blocks of {unit}"
            )));
        }
        Ok(Self {
            device,
            block_bytes,
            failure: Arc::default(),
            writing: Mutex::new(()),
        })
    }

    /// Most blocks that a transaction may change.
    pub(crate) fn transaction_blocks_max(&self) -> u32 {
        TRANSACTION_BYTES_MAX / self.block_bytes
    }

    /// Writes a transaction, stage by stage; it is durable when this returns, along with all that
    /// was written to the device before.
    pub(crate) fn commit(&self, transaction: &Frozen) -> Result<()> {
        let _alone = lock(&self.writing);
        self.failure.check()?;
        if transaction.is_empty() {
            return Ok(());
        }
        let written = flush(&*self.device).and_then(|()| {
            transaction
                .stages()
                .filter(|stage| !stage.is_empty())
                .try_for_each(|stage| self.write(stage))
        });
        if let Err(error) = written {
            self.failure.set(error);
        }
        self.failure.check()
    }

    fn write(&self, stage: &[(PhysicalBlock, Arc<[u8]>)]) -> Result<()> {
        let mut stage: Vec<_> = stage
            .iter()
            .map(|(block, contents)| (*block, &**contents))
            .collect();
        stage.sort_unstable_by_key(|(block, _)| *block);
        write_blocks(&*self.device, self.block_bytes, stage)?;
        flush(&*self.device)
    }
}
