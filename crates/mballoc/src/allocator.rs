//! The public interface of the allocator.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{ControlFlow, Range};

use extant_space::{Error, ErrorKind, Result};

use crate::counters::Count;
use crate::options::{Options, Policy, Windows};
use crate::owner::{Free, Owner};
use crate::pending::DiscardGuard;
use crate::shared::{CorruptGroup, Shared};
use crate::sync::{Arc, after_panics};
use crate::{BitmapSource, Block, BlockRange, Geometry, GroupNumber, Statistics, TransactionId};

/// The free space of a file system: allocates blocks to owners and frees them.
///
/// Does no I/O: the bitmaps of the file system are read through a [`BitmapSource`] when a group is
/// first needed, and the caller writes them. All methods may be called concurrently.
pub struct Allocator {
    pub(crate) shared: Arc<Shared>,
}

impl Allocator {
    /// An allocator over `geometry`. Reads no bitmap yet.
    ///
    /// # Errors
    /// - `InvalidArgument` for an invalid geometry, or windows whose smallest size exceeds the
    ///   largest;
    /// - `Corrupt` when the source reports more free blocks for a group than it has.
    pub fn open(
        geometry: Geometry,
        options: Options,
        source: impl BitmapSource + 'static,
    ) -> Result<Self> {
        let shared = Shared::new(geometry, options, Box::new(source))?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// A handle for the file `number`, which already has `blocks` blocks.
    pub fn owner(&self, number: u64, blocks: u64) -> Owner {
        Owner::new(&self.shared, number, blocks)
    }

    /// Frees blocks whose owner has no handle. Errors as [`Owner::free`].
    pub fn free(&self, range: BlockRange, when: Free) -> Result<()> {
        match when {
            Free::Now => self.shared.free_now(range)?,
            Free::AfterCommit(transaction) => self.shared.free_after(range, transaction)?,
        }
        let blocks = range.count().into();
        self.shared.counters.add(Count::FreedBlocks, blocks);
        Ok(())
    }

    /// The blocks that `transaction` freed, when it has committed. They can be allocated again once
    /// the result is dropped; until then the caller may discard them.
    pub fn committed(&self, transaction: TransactionId) -> InFlightDiscard<'_> {
        InFlightDiscard {
            shared: &self.shared,
            ranges: self.shared.commit_pending(transaction),
            _guard: None,
        }
    }

    /// Takes free runs of at least `minimum` blocks between two blocks of one group out of the free
    /// space, so that the caller can discard them: at most `runs_max`, in order, without blocks in
    /// windows. Dropping the result makes them free again.
    ///
    /// An allocation that finds no space meanwhile waits. Only one such discard is in flight; a
    /// second caller waits here. A group without a run of that length is skipped without reading
    /// its bitmap.
    pub fn take_for_discard(
        &self,
        group: GroupNumber,
        between: Range<Block>,
        minimum: NonZeroU32,
        runs_max: usize,
    ) -> InFlightDiscard<'_> {
        let shared = &*self.shared;
        let guard = shared.pending.begin_discard();
        let ranges = if group.0 < shared.groups() {
            shared.take_for_discard(&guard, group, between, minimum.get(), runs_max)
        } else {
            Vec::new()
        };
        InFlightDiscard {
            shared,
            ranges,
            _guard: Some(guard),
        }
    }

    /// Blocks that can be allocated now, with those in windows and the reserve. While windows are
    /// opened or freed, moving blocks may be counted twice or not at all.
    pub fn free_blocks(&self) -> u64 {
        self.shared.free.sum() + self.window_blocks()
    }

    /// The free blocks in windows.
    pub fn window_blocks(&self) -> u64 {
        self.shared.counters.window_blocks()
    }

    /// Blocks that will be free after a commit or a discard.
    pub fn pending_blocks(&self) -> u64 {
        self.shared.pending.blocks()
    }

    /// Visits the free runs in order, without those in windows, until `visit` breaks. Reads every
    /// bitmap.
    pub fn for_each_free(&self, mut visit: impl FnMut(BlockRange) -> ControlFlow<()>) {
        self.shared.for_each_free(&mut visit);
    }

    /// Reads the bitmap of a group now, if it has not been read. A caller that changes bitmaps
    /// itself calls this first: a bitmap that is read later has to match the group's descriptor.
    ///
    /// # Errors
    /// The kind of the error that put the group out of use: `Corrupt`, or that of the device.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn load(&self, group: GroupNumber) -> Result<()> {
        if self.shared.wait_group(group.0).load().is_some() {
            return Ok(());
        }
        let corrupt = self.shared.corrupt_groups();
        let (kind, reason) = match corrupt.into_iter().find(|it| it.group == group) {
            Some(corrupt) => (corrupt.kind, format!(": {}", corrupt.reason)),
            None => (ErrorKind::Corrupt, String::new()),
        };
        Err(Error::new(kind)
            .detail(format!("group {group} is out of use{reason}"))
            .advice("check the file system"))
    }

    /// Reclaims the windows of all owners; returns the number of freed blocks.
    pub fn release_windows(&self) -> u64 {
        self.shared.reclaim_windows()
    }

    /// The counters.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.sum()
    }

    /// Switches the policy for requests from now on.
    pub fn set_policy(&self, policy: Policy) {
        self.shared.set_policy(policy);
    }

    /// The policy.
    pub fn policy(&self) -> Policy {
        self.shared.policy()
    }

    /// Whether growing files get new windows from now on. Existing ones are freed where they do
    /// not.
    pub fn set_windows(&self, windows: Windows) {
        self.shared.set_windows(windows);
        if windows == Windows::Closed {
            self.shared.reclaim_windows();
        }
    }

    /// Whether growing files get new windows.
    pub fn windows(&self) -> Windows {
        self.shared.windows()
    }

    /// Number of stream goals.
    pub fn stream_goals(&self) -> usize {
        self.shared.goals.count()
    }

    /// The current geometry.
    pub fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    /// Groups whose bitmap is corrupt or could not be read.
    pub fn corrupt_groups(&self) -> Vec<CorruptGroup> {
        self.shared.corrupt_groups()
    }
}

impl fmt::Debug for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocator")
            .field("geometry", &self.geometry())
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

/// Free blocks that cannot be allocated before this is dropped, so that they can be discarded.
#[must_use = "dropping it makes the blocks free"]
pub struct InFlightDiscard<'a> {
    shared: &'a Shared,
    ranges: Vec<BlockRange>,
    /// For a discard of free blocks; dropped after the blocks are released.
    _guard: Option<DiscardGuard<'a>>,
}

impl InFlightDiscard<'_> {
    /// The blocks, by group.
    pub fn ranges(&self) -> &[BlockRange] {
        &self.ranges
    }
}

impl Drop for InFlightDiscard<'_> {
    fn drop(&mut self) {
        after_panics(|| self.shared.release_pending(&self.ranges));
    }
}
