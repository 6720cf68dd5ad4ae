//! The allocator as its user sees it.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::{ControlFlow, Range};

use extant_space::{Error, ErrorKind, Result};

use crate::counters::Count;
use crate::options::{Options, Policy};
use crate::owner::{Free, Owner};
use crate::pending::Withholding;
use crate::shared::{OutOfUse, Shared};
use crate::sync::{Arc, after_panics};
use crate::{BitmapSource, Block, BlockRange, Geometry, GroupNumber, Statistics, TransactionId};

/// The free space of a file system: finds blocks for owners and takes them back.
///
/// Does no I/O: the file system's own bitmaps are read through a [`BitmapSource`] when a group is
/// first needed, and writing them is the caller's part. All methods may be called from several
/// threads.
pub struct Allocator {
    pub(crate) shared: Arc<Shared>,
}

impl Allocator {
    /// An allocator over `geometry`, which reads no bitmap yet.
    ///
    /// # Errors
    /// `InvalidArgument` for a geometry that no file system has, and windows whose smallest is
    /// larger than their largest; `Corrupt` when the source says of a group that more blocks are
    /// free than it has.
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

    /// A handle for the file `number`, which has `blocks` blocks already.
    pub fn owner(&self, number: u64, blocks: u64) -> Owner {
        Owner::new(&self.shared, number, blocks)
    }

    /// Frees blocks whose owner has no handle. Errors as [`Owner::free`].
    pub fn free(&self, range: BlockRange, when: Free) -> Result<()> {
        match when {
            Free::Now => self.shared.give(range)?,
            Free::AfterCommit(transaction) => self.shared.give_after(range, transaction)?,
        }
        let blocks = range.count().into();
        self.shared.counters.add(Count::FreedBlocks, blocks);
        Ok(())
    }

    /// What `transaction` freed, now that it has committed. The blocks can be allocated again when
    /// the result is dropped: there is time to discard them.
    pub fn committed(&self, transaction: TransactionId) -> WithheldBlocks<'_> {
        WithheldBlocks {
            shared: &self.shared,
            ranges: self.shared.pending.commit(&self.shared, transaction),
            _withholding: None,
        }
    }

    /// Withholds free runs of at least `minimum` blocks between two blocks of one group, in order
    /// and `runs_max` at most, until the result is dropped, so that they can be discarded. Blocks
    /// in windows are not included.
    ///
    /// A request that finds no space meanwhile waits. One thread at a time withholds blocks; others
    /// wait here. A group without suitable runs is skipped without reading its bitmap.
    pub fn withhold(
        &self,
        group: GroupNumber,
        between: Range<Block>,
        minimum: NonZeroU32,
        runs_max: usize,
    ) -> WithheldBlocks<'_> {
        let shared = &*self.shared;
        let withholding = shared.pending.withhold();
        let ranges = match group.0 < shared.groups() {
            true => withholding.take(shared, group.0, between, minimum.get(), runs_max),
            false => Vec::new(),
        };
        WithheldBlocks {
            shared,
            ranges,
            _withholding: Some(withholding),
        }
    }

    /// Blocks that can be allocated now, including those in windows and the reserve. While windows
    /// are opened or released, moving blocks may be counted twice or not at all.
    pub fn free_blocks(&self) -> u64 {
        self.shared.free.sum() + self.window_blocks()
    }

    /// Of the free blocks, those in windows.
    pub fn window_blocks(&self) -> u64 {
        self.shared.counters.window_blocks()
    }

    /// Blocks that will be free after a commit, or that are withheld.
    pub fn pending_blocks(&self) -> u64 {
        self.shared.pending.blocks()
    }

    /// Visits the free runs in order, without those in windows, until `visit` breaks. Reads every
    /// bitmap.
    pub fn for_each_free(&self, mut visit: impl FnMut(BlockRange) -> ControlFlow<()>) {
        self.shared.for_each_free(&mut visit);
    }

    /// Reads the bitmap of a group, if it was not read. A caller that changes bitmaps itself does
    /// that before: a bitmap read later must match the group's descriptor.
    ///
    /// # Errors
    /// `Corrupt` if the group is marked as corrupt.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn load(&self, group: GroupNumber) -> Result<()> {
        match self.shared.wait_group(group.0).load() {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::Corrupt)
                .detail(format!("group {group} is out of use"))
                .advice("check the file system")),
        }
    }

    /// Takes the windows back from all owners; how many blocks that were.
    pub fn release_windows(&self) -> u64 {
        self.shared.owners.reclaim(&self.shared)
    }

    /// What was done so far.
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

    /// Number of stream goals.
    pub fn stream_goals(&self) -> usize {
        self.shared.goals.count()
    }

    /// The blocks, as of now.
    pub fn geometry(&self) -> Geometry {
        self.shared.geometry()
    }

    /// Groups whose bitmap was refused or could not be read.
    pub fn out_of_use(&self) -> Vec<OutOfUse> {
        self.shared.out_of_use()
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

/// Free blocks that cannot be allocated before this is dropped.
#[must_use = "dropping it makes the blocks free"]
pub struct WithheldBlocks<'a> {
    shared: &'a Shared,
    ranges: Vec<BlockRange>,
    /// Of free blocks that others may wait for; ends after the blocks are back.
    _withholding: Option<Withholding<'a>>,
}

impl WithheldBlocks<'_> {
    /// The blocks, by group.
    pub fn ranges(&self) -> &[BlockRange] {
        &self.ranges
    }
}

impl Drop for WithheldBlocks<'_> {
    fn drop(&mut self) {
        after_panics(|| self.shared.pending.release(self.shared, &self.ranges));
    }
}
