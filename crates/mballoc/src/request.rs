//! Requests to the allocator.

use bitflags::bitflags;
use extant_space::{Error, ErrorKind, Result};

use crate::Block;

/// A transaction of the journal, by its sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId(pub u32);

bitflags! {
    /// Purpose and permissions of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct RequestFlags: u32 {
        /// Blocks of metadata: no window is kept behind them.
        const METADATA = 1 << 0;
        /// Part of a stream: if the goal is in use, the search continues at the owner's stream
        /// goal. Without this flag it continues from the goal, or begins at group 0.
        const STREAM = 1 << 1;
        /// Allocate the requested blocks only, without a window behind them.
        const NO_NORMALISE = 1 << 2;
        /// Blocks from the reserve of the file system may be taken.
        const USE_RESERVE = 1 << 3;
    }
}

/// Where the result has to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alignment {
    /// Anywhere.
    Any,
    /// At a multiple of this number of blocks (a stripe), if possible.
    Preferred(u32),
    /// At a multiple of this number of blocks, or the request fails.
    Required(u32),
}

/// The preferred position of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Anywhere; see [`RequestFlags::STREAM`].
    Anywhere,
    /// As near behind this block as possible.
    Near(Block),
    /// At this block, which follows the blocks of the file: a few blocks there are better than more
    /// elsewhere.
    Follow(Block),
}

/// A request for consecutive blocks. The result may be shorter than wanted, never than the minimum.
#[derive(Clone, Debug)]
pub struct Request {
    /// The preferred position of the result.
    pub goal: Goal,
    /// Blocks wanted, at least 1. A result never reaches past the end of a group.
    pub wanted: u32,
    /// Fewest blocks of use, 1 to `wanted`.
    pub minimum: u32,
    /// Where the result has to begin.
    pub alignment: Alignment,
    /// No block from this on (files that address blocks by 32 bits).
    pub limit: Option<Block>,
    /// Purpose of the blocks.
    pub flags: RequestFlags,
    /// The transaction that will name the blocks, for reuse inside it.
    pub transaction: Option<TransactionId>,
}

impl Request {
    /// A request for `wanted` blocks of data anywhere, or fewer.
    pub fn data(wanted: u32) -> Self {
        Self {
            goal: Goal::Anywhere,
            wanted,
            minimum: 1,
            alignment: Alignment::Any,
            limit: None,
            flags: RequestFlags::STREAM,
            transaction: None,
        }
    }

    /// The same, at `goal`, which is right behind the file's last block.
    pub fn follow(mut self, goal: Block) -> Self {
        self.goal = Goal::Follow(goal);
        self
    }

    pub(crate) fn validate(&self, blocks_per_group: u32) -> Result<()> {
        let error = |detail: String| {
            let error = Error::new(ErrorKind::InvalidArgument).detail(detail);
            Err(error.during("allocate"))
        };
        if self.minimum == 0 || self.minimum > self.wanted {
            return error(format!(
                "at least {} of {} blocks",
                self.minimum, self.wanted
            ));
        }
        if self.minimum > blocks_per_group {
            return error(format!(
                "at least {} blocks in a row, where a group has {blocks_per_group}",
                self.minimum
            ));
        }
        match self.alignment {
            Alignment::Preferred(0) | Alignment::Required(0) => error("aligned to 0 blocks".into()),
            _ => Ok(()),
        }
    }
}
