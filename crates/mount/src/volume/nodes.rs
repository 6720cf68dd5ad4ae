//! The nodes known to the kernel.
//!
//! Model: an entry holds the inode and counts the kernel's references (lookups); the kernel returns
//! them in one or several FORGET requests. With the last one the entry is dropped, and the inode if
//! it has no name.
//!
//! Invariants:
//! - one entry per number: the number of a held inode is not reused;
//! - a reference is added under the lock of the shard, so an entry with references is in the table.
//!
//! The table is sharded by number, and a lookup locks one shard shared: requests about different
//! files write no common cache line. An entry is dropped outside the locks, because that may free a
//! file.

use std::collections::HashMap;
use std::collections::hash_map;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use extant_ext4::{File, FileType, Filesystem, InodeNumber, Node, Timestamp};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::io::Errno;

use extant_fuse::operations::{NodeId, Result};

const SHARDS: usize = 64;
/// The first inode that is not reserved.
const FIRST_INODE: u32 = 11;

/// Nodes by number.
pub(super) struct NodeTable {
    shards: Box<[Shard]>,
    root: Arc<NodeEntry>,
}

/// Aligned, so that shards do not share cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Shard(RwLock<HashMap<u64, Arc<NodeEntry>, BuildHasherDefault<NumberHasher>>>);

/// A node to which the kernel has references.
pub(super) struct NodeEntry {
    content: Content,
    references: AtomicU64,
    /// Number of handles open for writing.
    writers: AtomicU32,
    /// The kernel's cache may hold data of the file.
    is_cached: AtomicBool,
    capability: AtomicU8,
    /// The kernel's modification time, while that of the inode is newer: a direct write or an ioctl
    /// has changed data, of which a writeback cache does not take the time.
    stale_modified: Mutex<Option<Timestamp>>,
    /// Whether there is one, without the lock.
    has_stale_modified: AtomicBool,
    /// A size that was set by an ioctl and not reported to the kernel yet, or [`NO_SIZE`].
    unreported_size: AtomicU64,
}

/// No file is that long.
const NO_SIZE: u64 = u64::MAX;

enum Content {
    File(File),
    Other(Node),
}

/// Whether a file has `security.capability`, if known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Capability {
    Unknown,
    None,
    Some,
}

impl NodeTable {
    pub(super) fn new(root: Node) -> extant_space::Result<Self> {
        Ok(Self {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            root: Arc::new(NodeEntry::new(root)?),
        })
    }

    /// The node with this id.
    ///
    /// # Errors
    /// `STALE` if it has no references.
    pub(super) fn get(&self, id: NodeId) -> Result<Arc<NodeEntry>> {
        if id == NodeId::ROOT {
            return Ok(Arc::clone(&self.root));
        }
        let shard = read(self.shard(id));
        shard.get(&id.0).cloned().ok_or(Errno::STALE)
    }

    /// As [`get`](Self::get), also for a forgotten node, which the kernel may know from a file
    /// handle.
    ///
    /// # Errors
    /// `STALE` if the inode is free or reserved.
    pub(super) fn get_or_open(
        &self,
        id: NodeId,
        filesystem: &Filesystem,
    ) -> Result<Arc<NodeEntry>> {
        if let Ok(entry) = self.get(id) {
            return Ok(entry);
        }
        let number = u32::try_from(id.0).map_err(|_| Errno::STALE)?;
        // Reserved inodes, such as the journal's, are no files.
        if number < FIRST_INODE {
            return Err(Errno::STALE);
        }
        let node = filesystem.node(InodeNumber(number));
        let entry = node.and_then(NodeEntry::new).map_err(|_| Errno::STALE)?;
        Ok(Arc::new(entry))
    }

    /// Adds a reference to `node`.
    pub(super) fn add_reference(
        &self,
        node: Node,
    ) -> extant_space::Result<(NodeId, Arc<NodeEntry>)> {
        let id = number(&node);
        if id == NodeId::ROOT {
            return Ok((id, Arc::clone(&self.root)));
        }
        if let Some(entry) = read(self.shard(id)).get(&id.0) {
            entry.references.fetch_add(1, Ordering::Relaxed);
            let entry = Arc::clone(entry);
            return Ok((id, entry));
        }
        let new = Arc::new(NodeEntry::new(node)?);
        let mut shard = write(self.shard(id));
        let entry = match shard.entry(id.0) {
            hash_map::Entry::Occupied(there) => Arc::clone(there.get()),
            hash_map::Entry::Vacant(place) => Arc::clone(place.insert(Arc::clone(&new))),
        };
        entry.references.fetch_add(1, Ordering::Relaxed);
        drop(shard);
        Ok((id, entry))
    }

    /// Removes `count` references to a node.
    pub(super) fn forget(&self, id: NodeId, count: u64) {
        if id == NodeId::ROOT {
            return;
        }
        let gone = {
            let mut shard = write(self.shard(id));
            let Some(entry) = shard.get(&id.0) else {
                return;
            };
            let before = entry.references.load(Ordering::Relaxed);
            let left = before.saturating_sub(count);
            entry.references.store(left, Ordering::Relaxed);
            match left {
                0 => shard.remove(&id.0),
                _ => None,
            }
        };
        drop(gone);
    }

    /// Removes all references.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *write(shard));
            drop(gone);
        }
    }

    /// Files of which the kernel may hold dirty data.
    pub(super) fn with_writers(&self) -> Vec<NodeId> {
        self.such(NodeEntry::may_be_dirty)
    }

    /// Files of which the kernel may hold data.
    pub(super) fn cached(&self) -> Vec<NodeId> {
        self.such(|entry| entry.is_cached() || entry.may_be_dirty())
    }

    fn such(&self, is_such: impl Fn(&NodeEntry) -> bool) -> Vec<NodeId> {
        let of_shard = |shard| {
            let nodes = read(shard);
            let found = nodes.iter().filter(|(_, entry)| is_such(entry));
            found.map(|(&id, _)| NodeId(id)).collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of_shard).collect()
    }

    /// Number of nodes, without the root.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| read(shard).len()).sum()
    }

    fn shard(&self, id: NodeId) -> &Shard {
        &self.shards[id.0 as usize % SHARDS]
    }
}

impl NodeEntry {
    fn new(node: Node) -> extant_space::Result<Self> {
        let content = match node.file_type() {
            FileType::Regular => Content::File(node.file()?),
            _ => Content::Other(node),
        };
        Ok(Self {
            content,
            references: AtomicU64::new(0),
            writers: AtomicU32::new(0),
            is_cached: AtomicBool::new(false),
            capability: AtomicU8::new(Capability::Unknown as u8),
            stale_modified: Mutex::new(None),
            has_stale_modified: AtomicBool::new(false),
            unreported_size: AtomicU64::new(NO_SIZE),
        })
    }

    pub(super) fn node(&self) -> &Node {
        match &self.content {
            Content::File(file) => file.node(),
            Content::Other(node) => node,
        }
    }

    /// Its data.
    ///
    /// # Errors
    /// `ISDIR` for a directory, `INVAL` for other files without data.
    pub(super) fn file(&self) -> Result<&File> {
        match &self.content {
            Content::File(file) => Ok(file),
            Content::Other(node) if node.file_type() == FileType::Directory => Err(Errno::ISDIR),
            Content::Other(_) => Err(Errno::INVAL),
        }
    }

    pub(super) fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::Relaxed);
    }

    /// After the last one, the file's allocation windows are released.
    pub(super) fn remove_writer(&self) {
        let counted_down = |writers: u32| writers.checked_sub(1);
        // An unmatched close is ignored.
        let before = self
            .writers
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, counted_down);
        if before == Ok(1) {
            self.node().release_windows();
        }
    }

    /// Whether the kernel may hold dirty data, in its writeback cache or a shared mapping, which
    /// it may until the last handle open for writing is released.
    pub(super) fn may_be_dirty(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// Records that the kernel will cache data, before the data is read or written. Of a concurrent
    /// direct write and read for the cache, either the read returns the new data, or the write sees
    /// that data is cached.
    pub(super) fn note_cached(&self) {
        if !self.is_cached.load(Ordering::Relaxed) {
            self.is_cached.store(true, Ordering::SeqCst);
        }
    }

    /// Whether the kernel's cache may hold data, which it may until the kernel forgets the node.
    pub(super) fn is_cached(&self) -> bool {
        self.is_cached.load(Ordering::SeqCst)
    }

    /// Before a change of data of which the kernel does not take the time.
    pub(super) fn note_unseen_change(&self) {
        if !self.has_stale_modified.load(Ordering::Relaxed) {
            let mut stale = self.stale_modified.lock();
            stale.get_or_insert_with(|| self.node().attributes().modified);
            self.has_stale_modified.store(true, Ordering::Relaxed);
        }
    }

    /// The kernel's modification time, if that of the inode is newer.
    pub(super) fn stale_modified(&self) -> Option<Timestamp> {
        *self.stale_modified.lock()
    }

    /// Records the kernel's modification time; `None` if that of the inode is the same.
    pub(super) fn set_stale_modified(&self, modified: Option<Timestamp>) {
        let mut stale = self.stale_modified.lock();
        *stale = modified;
        self.has_stale_modified
            .store(modified.is_some(), Ordering::Relaxed);
    }

    /// Records the size set by an ioctl, which the caller is to pass to the kernel.
    pub(super) fn note_unreported_size(&self, size: u64) {
        self.unreported_size.store(size, Ordering::Relaxed);
    }

    /// Whether a change to this size only reports the recorded one to the kernel. Clears it.
    pub(super) fn take_unreported_size(&self, size: u64) -> bool {
        self.unreported_size.swap(NO_SIZE, Ordering::Relaxed) == size
    }

    pub(super) fn capability(&self) -> Capability {
        match self.capability.load(Ordering::Relaxed) {
            value if value == Capability::None as u8 => Capability::None,
            value if value == Capability::Some as u8 => Capability::Some,
            _ => Capability::Unknown,
        }
    }

    pub(super) fn note_capability(&self, capability: Capability) {
        self.capability.store(capability as u8, Ordering::Relaxed);
    }
}

/// The kernel's number for a node.
pub(super) fn number(node: &Node) -> NodeId {
    match node.number() {
        InodeNumber::ROOT => NodeId::ROOT,
        number => NodeId(number.0.into()),
    }
}

/// Spreads inode numbers, which are allocated in sequence.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

type Nodes = HashMap<u64, Arc<NodeEntry>, BuildHasherDefault<NumberHasher>>;

fn read(shard: &Shard) -> RwLockReadGuard<'_, Nodes> {
    shard.0.read()
}

fn write(shard: &Shard) -> RwLockWriteGuard<'_, Nodes> {
    shard.0.write()
}
