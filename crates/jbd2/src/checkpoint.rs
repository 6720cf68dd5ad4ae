//! Transactions in the log, and their checkpoint, which frees their log space.
//!
//! Model: a transaction counts its blocks that are not checkpointed: those whose latest committed
//! contents are its own and not yet written in place. A block that a later transaction changes
//! again passes to that one. The tail can move past the oldest transactions without such blocks. A
//! [`Plan`] writes the blocks of some oldest transactions in place, sorted, in batches between
//! which commits may run.
//!
//! Invariant: the sum of `uncheckpointed` is the number of blocks in the table.

use std::collections::VecDeque;

use extant_ondisk::ext4::PhysicalBlock;
use extant_space::{Result, traced};

use crate::frozen::Settled;
use crate::log::{Log, Position};
use crate::table::{Ordinal, Table, Uncheckpointed};

/// Bytes of a checkpoint in flight at a time.
const BATCH_BYTES: usize = 4 << 20;

struct Logged {
    position: Position,
    blocks: u32,
    uncheckpointed: u32,
}

struct Plan {
    last: Ordinal,
    /// Blocks of these transactions that were uncheckpointed when the plan was made, sorted, last
    /// first.
    blocks: Vec<PhysicalBlock>,
}

/// The transactions in the log, oldest first.
#[derive(Default)]
pub(crate) struct Checkpoints {
    logged: VecDeque<Logged>,
    /// That of the first one in the log, or of the next.
    first: Ordinal,
    plan: Option<Plan>,
}

impl Checkpoints {
    /// Takes in a transaction that was written at `position`: the latest contents of its blocks are
    /// its own, and blocks that it revoked need no checkpoint any more.
    pub(crate) fn committed(
        &mut self,
        transaction: Settled,
        position: Position,
        blocks: u32,
        table: &Table,
    ) {
        let ordinal = self.first + self.logged.len() as u64;
        self.logged.push_back(Logged {
            position,
            blocks,
            uncheckpointed: 0,
        });
        for (block, contents) in transaction.blocks {
            let uncheckpointed = Uncheckpointed { contents, ordinal };
            let before = table.insert(block, uncheckpointed);
            self.of(ordinal).uncheckpointed += 1;
            self.found_home(before);
        }
        for block in transaction.revoked {
            let before = table.remove(block);
            self.found_home(before);
        }
    }

    fn of(&mut self, ordinal: Ordinal) -> &mut Logged {
        &mut self.logged[(ordinal - self.first) as usize]
    }

    fn found_home(&mut self, of: Option<Ordinal>) {
        if let Some(ordinal) = of {
            self.of(ordinal).uncheckpointed -= 1;
        }
    }

    /// Whether a plan is being carried out.
    pub(crate) fn is_under_way(&self) -> bool {
        self.plan.is_some()
    }

    /// Plans the checkpoint of everything that keeps more than `used` blocks of the log in use.
    pub(crate) fn plan(&mut self, log: &Log, used: u32, table: &Table) {
        let mut left = log.used();
        let count = self.logged.iter().take_while(|transaction| {
            let is_due = left > used;
            left = left.saturating_sub(transaction.blocks);
            is_due
        });
        let count = count.count() as u64;
        if count == 0 {
            return;
        }
        let last = self.first + count - 1;
        let mut blocks = table.up_to(last);
        blocks.reverse();
        self.plan = Some(Plan { last, blocks });
    }

    /// Checkpoints one batch of the plan; behind the last one the tail moves.
    ///
    /// # Errors
    /// Those of the device; the blocks stay in the table.
    pub(crate) fn step(&mut self, log: &mut Log, table: &Table) -> Result<()> {
        let Some(plan) = &mut self.plan else {
            return Ok(());
        };
        let batch = BATCH_BYTES / log.disk().block_bytes();
        let rest = plan.blocks.len().saturating_sub(batch);
        let due = plan.blocks.drain(rest..).rev();
        // Those that were changed or revoked since have left, or passed to a later transaction.
        let last = plan.last;
        let due: Vec<_> = due
            .filter_map(|block| Some((block, table.get(block)?)))
            .filter(|(_, uncheckpointed)| uncheckpointed.ordinal <= last)
            .collect();
        let is_last = rest == 0;
        let writes = due
            .iter()
            .map(|(block, uncheckpointed)| (*block, &*uncheckpointed.contents));
        let (blocks, used_blocks) = (due.len(), log.used());
        traced!(
            DEBUG,
            "checkpoint",
            (blocks, left_blocks = rest, used_blocks),
            log.disk().write_back(writes)
        )?;
        for (block, _) in due {
            let before = table.remove(block);
            self.found_home(before);
        }
        if is_last {
            self.plan = None;
            debug_assert!(self.is_consistent(log, table), "books of the log");
            self.move_tail(log)?;
        }
        Ok(())
    }

    /// Moves the tail past the oldest transactions that are completely checkpointed.
    fn move_tail(&mut self, log: &mut Log) -> Result<()> {
        let mut freed = 0;
        while let Some(oldest) = self
            .logged
            .front()
            .filter(|oldest| oldest.uncheckpointed == 0)
        {
            freed += oldest.blocks;
            self.logged.pop_front();
            self.first += 1;
        }
        if freed == 0 {
            return Ok(());
        }
        log.disk().flush()?;
        let tail = self.logged.front().map(|oldest| oldest.position);
        log.set_tail(tail.unwrap_or(log.head()), log.used() - freed)
    }

    /// Whether the books agree with the table and the log.
    fn is_consistent(&self, log: &Log, table: &Table) -> bool {
        let uncheckpointed: u32 = self.logged.iter().map(|logged| logged.uncheckpointed).sum();
        let used: u32 = self.logged.iter().map(|logged| logged.blocks).sum();
        uncheckpointed as usize == table.up_to(Ordinal::MAX).len() && used == log.used()
    }
}
