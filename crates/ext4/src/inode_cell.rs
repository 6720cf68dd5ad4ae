//! Inodes in memory.
//!
//! Model: a cell holds the contents of the inode's slot at the next commit. It is changed inside a
//! transaction, under the cell's lock, and encoded into its block when the transaction is frozen.
//!
//! Two locks, as in the kernel:
//! - `operation` orders operations on the file as a whole: writers of data, truncations, names in a
//!   directory. It is taken before a transaction is begun, and may be held while one is waited for
//!   and while data is read or written;
//! - `state` guards memory. It is taken inside a transaction (for reading also without one) and
//!   held for memory and metadata only: a freeze waits for it.
//!
//! Invariants:
//! - a changed cell is in the list of the running transaction, once;
//! - there is one cell per number while it has a user.
//!
//! Lock order: operation (of a directory before that of its entries, else lower numbers first),
//! transaction, state, allocator, group, block.

mod touched_ranges;

use std::ops::Range;
use std::sync::{Arc, OnceLock, RwLock};

use extant_jbd2::{Epoch, TransactionId};
use extant_mballoc::Owner;
use extant_ondisk::ext4::extent::{LeafEntry, ROOT_BYTES};
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Inode, InodeNumber, InodeSeed, Layout, Seed};
use extant_space::{Error, ErrorKind, Result};

use crate::cache::{Block, BlockCache, Changing};
use crate::sync::read;

pub(crate) use touched_ranges::TouchedRanges;

/// Most links of an inode.
pub(crate) const LINKS_MAX: u16 = 65_000;

/// The last extent of a file, in the root of its tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastExtent {
    pub(crate) index: usize,
    pub(crate) extent: LeafEntry,
}

/// Blocks that an inode has been given in the running transaction, behind one that was set in its
/// bitmap in the same transaction; theirs are clear. A freeze sets them
/// ([`InodeCell::set_deferred_bits`]).
#[derive(Clone, Debug)]
pub(crate) struct DeferredBits {
    pub(crate) blocks: Range<u64>,
    /// End of their group, which has joined the transaction.
    pub(crate) group_end: u64,
}

/// One inode.
pub(crate) struct InodeCell {
    pub(crate) number: InodeNumber,
    pub(crate) operation: RwLock<()>,
    pub(crate) state: RwLock<InodeState>,
    /// Its owner in the allocator; made when the inode first needs blocks.
    owner: OnceLock<Owner>,
    /// Location of its slot.
    pub(crate) place: SlotPlace,
}

/// Location of an inode in its table.
#[derive(Clone)]
pub(crate) struct SlotPlace {
    /// Held, so that a freeze need not read it.
    pub(crate) block: Arc<Block>,
    pub(crate) byte: usize,
}

/// The present state of an inode.
pub(crate) struct InodeState {
    /// As that of its cell.
    pub(crate) number: InodeNumber,
    pub(crate) inode: Inode,
    /// Seed of the checksums of its structures. It follows from the number and the generation,
    /// which never change.
    pub(crate) seed: Option<InodeSeed>,
    /// End of the file, for appends; other changes of the tree are made through
    /// [`tree_area`](Self::tree_area).
    pub(crate) end: Option<LastExtent>,
    /// The whole slot as it was read: unknown fields, and the attributes after the fields.
    pub(crate) slot: Box<[u8]>,
    /// The last transaction that changed anything.
    pub(crate) changed_in: Option<TransactionId>,
    /// The epoch with which the last change becomes durable.
    pub(crate) changed: Option<Epoch>,
    /// The same for the last change of size or blocks: a sync of data waits for it.
    pub(crate) data_changed_in: Option<Epoch>,
    /// Its blocks that are not set in their bitmap yet.
    pub(crate) deferred: Option<DeferredBits>,
    /// The ranges whose blocks changed since the last commit, for a fast commit.
    pub(crate) touched: TouchedRanges,
    /// The time of the last access was changed without a transaction; it is kept with the next
    /// change, or when the last handle is closed.
    pub(crate) has_late_access: bool,
    /// Handles that are open; the last one frees a file without a name.
    pub(crate) handles: u32,
}

/// Flags of inodes whose data differs from the content of their blocks.
const FOREIGN_DATA: InodeFlags = InodeFlags::ENCRYPT.union(InodeFlags::INLINE_DATA);

/// The error for flags of an inode that are not supported.
pub(crate) fn foreign(what: &str, number: InodeNumber, flags: InodeFlags) -> Error {
    let feature = match () {
        () if flags.contains(InodeFlags::INLINE_DATA) => "inline_data",
        () if flags.contains(InodeFlags::ENCRYPT) => "encrypt",
        () => "casefold",
    };
    Error::new(ErrorKind::Unsupported).detail(format!(
        "{what} inode {number} needs the feature {feature}, which is not offered"
    ))
}

impl InodeCell {
    /// A cell for an inode whose slot was read, or is to be made.
    pub(crate) fn new(
        number: InodeNumber,
        inode: Inode,
        slot: &[u8],
        place: SlotPlace,
        seed: Option<Seed>,
    ) -> Self {
        Self {
            number,
            operation: RwLock::new(()),
            state: RwLock::new(InodeState {
                number,
                seed: seed.map(|seed| inode.seed(seed, number)),
                end: None,
                inode,
                slot: slot.into(),
                changed_in: None,
                changed: None,
                data_changed_in: None,
                deferred: None,
                touched: TouchedRanges::default(),
                has_late_access: false,
                handles: 0,
            }),
            owner: OnceLock::new(),
            place,
        }
    }

    /// The owner of its blocks; `make` receives the old value.
    pub(crate) fn owner(&self, make: impl FnOnce() -> Owner) -> &Owner {
        self.owner.get_or_init(make)
    }

    /// The owner of its blocks, where it has needed one.
    pub(crate) fn made_owner(&self) -> Option<&Owner> {
        self.owner.get()
    }

    /// Releases blocks reserved for growth.
    pub(crate) fn release_windows(&self) {
        if let Some(owner) = self.owner.get() {
            owner.release_windows();
        }
    }

    /// Writes the inode into its slot, when the transaction is frozen.
    pub(crate) fn freeze(
        &self,
        cache: &BlockCache,
        by: &impl Changing,
        layout: &Layout,
        seed: Option<Seed>,
    ) {
        let state = read(&self.state);
        let mut slot = state.slot.clone();
        state.inode.write(&mut slot, self.number, layout, seed);
        cache.change_held(by, &self.place.block, |bytes| {
            bytes[self.place.byte..][..slot.len()].copy_from_slice(&slot);
        });
    }
}

impl InodeState {
    /// The root of the extent tree, to be changed.
    pub(crate) fn tree_area(&mut self) -> &mut [u8; ROOT_BYTES] {
        self.end = None;
        self.inode.block_area_mut()
    }

    /// The epoch with which the last change becomes durable.
    pub(crate) fn changed(&self) -> Option<Epoch> {
        self.changed
    }

    /// Refuses immutable and append-only inodes.
    pub(crate) fn check_mutable(&self) -> Result<()> {
        self.check_without(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
    }

    /// Refuses an immutable file. An append-only one passes.
    pub(crate) fn check_growable(&self) -> Result<()> {
        self.check_without(InodeFlags::IMMUTABLE)
    }

    /// Refuses data at byte `offset` of an immutable file, or before the end of an append-only
    /// file.
    pub(crate) fn check_writable(&self, offset: u64, layout: &Layout) -> Result<()> {
        if offset < self.inode.size_bytes(layout) {
            self.check_mutable()?;
        } else {
            self.check_growable()?;
        }
        self.check_data_mutable()
    }

    /// Refuses data that is kept in a way which is not offered.
    pub(crate) fn check_data(&self) -> Result<()> {
        if self.inode.flags().intersects(FOREIGN_DATA) {
            Err(foreign("the data of", self.number, self.inode.flags()))
        } else {
            Ok(())
        }
    }

    /// The same for changes of data; a sealed file allows none.
    pub(crate) fn check_data_mutable(&self) -> Result<()> {
        if self.inode.flags().contains(InodeFlags::VERITY) {
            return Err(Error::new(ErrorKind::Immutable)
                .detail(format!("inode {} is sealed with verity", self.number)));
        }
        self.check_data()
    }

    fn check_without(&self, refused: InodeFlags) -> Result<()> {
        if self.inode.flags().intersects(refused) {
            Err(Error::new(ErrorKind::Immutable))
        } else {
            Ok(())
        }
    }
}
