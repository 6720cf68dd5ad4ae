//! The shared state of an open file system: cache, groups, inodes, allocator, and the changes of
//! the running transaction.
//!
//! The journal calls back into it when it freezes a transaction (`state/freeze.rs`).

mod assign;
mod assigned;
mod counters;
mod freeze;
mod statistics;
mod superblock;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use extant_blockdev::{Device, StoppableDevice};
use extant_mballoc::Allocator;
use extant_ondisk::ext4::{Layout, Seed, Superblock};

use crate::cache::{Block, BlockCache};
use crate::groups::Groups;
use crate::inode::InodeTable;
use crate::options::Options;
use crate::orphan_list::Orphans;
use crate::time::Clock;
use crate::transaction::{Running, TransactionId};

pub use crate::cache::CacheStatistics;
pub(crate) use assigned::AssignedBlocks;
pub use counters::Counters;
pub(crate) use freeze::allocator_id;
pub use statistics::Statistics;
pub(crate) use superblock::{note_on_device, read_superblock};

/// The shared state.
pub(crate) struct FsState {
    pub(crate) device: Arc<dyn Device>,
    /// The same, if anything may be written.
    pub(crate) stoppable: Option<Arc<StoppableDevice<Arc<dyn Device>>>>,
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    pub(crate) clock: Clock,
    /// Whether there is a journal.
    pub(crate) has_log: bool,
    pub(crate) seed: Option<Seed>,
    pub(crate) superblock: Mutex<Superblock>,
    /// Its state as last written to the device or the journal.
    pub(crate) superblock_given: Mutex<Superblock>,
    /// The block that contains it, pinned so that a freeze need not read it.
    pub(crate) superblock_block: Arc<Block>,
    pub(crate) cache: Arc<BlockCache>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) inodes: InodeTable,
    pub(crate) allocator: Allocator,
    pub(crate) assigned: AssignedBlocks,
    pub(crate) running: Running,
    pub(crate) orphans: Orphans,
    /// Held by renames between two directories: the ancestors of a directory must not change.
    pub(crate) rename_lock: Mutex<()>,
    /// Changes are refused: something was wrong, and the file system is set to stop then.
    pub(crate) stopped: AtomicBool,
    pub(crate) closed: AtomicBool,
    /// It was [shut down](crate::Filesystem::shut_down): the journal was stopped on purpose, which
    /// is not recorded as an error. Set before `closed`.
    pub(crate) shut_down: AtomicBool,
    /// Blocks that files can never have; counted when first asked for.
    pub(crate) overhead: OnceLock<u64>,
    /// Blocks of transactions that were frozen and have not committed: they must stay in the cache.
    pub(crate) frozen: Mutex<Vec<(TransactionId, Vec<Arc<Block>>)>>,
}
