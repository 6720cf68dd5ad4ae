//! Walking the hash tree, from the root to a leaf and on to the next one.
//!
//! Model: a [`Path`] holds the nodes from the root to the lowest, with the selected entry of each;
//! that of the lowest node leads to a leaf. To advance, the next entry of the lowest node that has
//! one is selected, and first entries below it.
//!
//! Invariants, whatever the nodes contain:
//! - the blocks of a path are different, and its leaf is none of them;
//! - a path does not advance to more leaves than the directory has blocks.
//!
//! The order of the hashes in a node is validated when it is read from the disk, and not again: in
//! a file system damaged so that a leaf is also a node, it may be violated.

use std::sync::Arc;

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::directory::{
    DxEntry, Entry, HASH_END, HashVersion, IndexNode, IndexShape, NameHash, name_hash,
};
use extant_space::Result;
use smallvec::SmallVec;

use super::{Directory, DirectoryBlocks, EntryPosition, FIRST, TreeRules};

/// The highest hash that a name can have.
pub(super) const HASH_MAX: u32 = HASH_END - 2;
/// Set in the hash of an entry: names with the even hash below are in the leaf before too.
pub(super) const CONTINUED: u32 = 1;

/// The root, with the parameters of the whole tree.
pub(super) struct Root {
    block: Arc<[u8]>,
    /// Levels of nodes below.
    pub(super) levels: u8,
    version: HashVersion,
    rules: TreeRules,
}

impl Root {
    /// Sort key of the tree.
    pub(super) fn hash(&self, name: &[u8]) -> NameHash {
        name_hash(name, self.version, self.rules.seed)
    }

    /// The function of [`hash`](Self::hash).
    pub(super) fn version(&self) -> HashVersion {
        self.version
    }
}

/// A node of a path, and the entry that was taken.
#[derive(Clone)]
pub(super) struct Frame {
    pub(super) index: LogicalBlock,
    pub(super) shape: IndexShape,
    pub(super) block: Arc<[u8]>,
    pub(super) at: usize,
    entry: DxEntry,
    entries: usize,
    capacity: usize,
}

impl Frame {
    /// Whether no entry fits any more.
    pub(super) fn is_full(&self) -> bool {
        self.entries == self.capacity
    }

    /// Number of entries.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }
}

/// The way to a leaf, the root first.
#[derive(Clone)]
pub(super) struct Path {
    pub(super) frames: SmallVec<[Frame; 3]>,
    leaves_left: u32,
}

impl Path {
    /// The leaf.
    pub(super) fn leaf(&self) -> LogicalBlock {
        self.lowest().entry.block
    }

    /// The node above the leaf.
    pub(super) fn lowest(&self) -> &Frame {
        self.frames.last().expect("a path begins with the root")
    }

    /// The hash from which on names are in the leaf.
    pub(super) fn hash(&self) -> u32 {
        low_hash(&self.frames)
    }
}

/// The hash from which on names are below the lowest of `frames`, in the entry it took.
fn low_hash(frames: &[Frame]) -> u32 {
    // A first entry has no hash of its own.
    let says = frames.iter().rev().find(|frame| frame.at > 0);
    says.map_or(0, |frame| frame.entry.hash)
}

impl<B: DirectoryBlocks> Directory<B> {
    /// Finds `name` in the leaf of `path`, which is `leaf`, and in those that continue its hash.
    pub(super) fn find_from(
        &self,
        path: &Path,
        leaf: &[u8],
        name: &[u8],
        hash: NameHash,
    ) -> Result<Option<EntryPosition>> {
        let continued = Some(hash.major | CONTINUED);
        let place = self.find_among(path.leaf(), leaf, name)?;
        if place.is_some() || self.next_hash(path)? != continued {
            return Ok(place);
        }
        let mut path = path.clone();
        loop {
            self.go_on(&mut path)?;
            let place = self.find_in(path.leaf(), name)?;
            if place.is_some() || self.next_hash(&path)? != continued {
                return Ok(place);
            }
        }
    }

    pub(super) fn root(&self) -> Result<Root> {
        let rules = self.rules();
        let block = self.node(FIRST, IndexShape::Root)?;
        let node = self.reread(FIRST, IndexShape::Root, &block)?;
        let version = HashVersion {
            kind: node.hash_kind(),
            sign: rules.hash.sign,
        };
        let levels = node.levels();
        Ok(Root {
            block,
            levels,
            version,
            rules,
        })
    }

    /// `.` and `..`, which the root begins with.
    pub(super) fn dots<'r>(&self, root: &'r Root) -> [Entry<'r>; 2] {
        let node = self.reread(FIRST, IndexShape::Root, &root.block);
        let node = node.expect("the same bytes were read before");
        node.dots(&self.context.format)
    }

    /// The way to the first leaf that may have names with `hash`.
    pub(super) fn descend(&self, root: &Root, hash: u32) -> Result<Path> {
        let choose = |node: &IndexNode<'_>| node.find(hash);
        let block = Arc::clone(&root.block);
        let mut path = Path {
            frames: SmallVec::from_iter([self.frame(FIRST, IndexShape::Root, block, choose)?]),
            leaves_left: self.blocks.blocks(),
        };
        for _ in 0..root.levels {
            self.push_child(&mut path, choose)?;
        }
        self.check_leads_down(&path)?;
        Ok(path)
    }

    /// The hash from which on names are in the next leaf; `None` when there is no next one.
    pub(super) fn next_hash(&self, path: &Path) -> Result<Option<u32>> {
        self.high_hash(&path.frames)
    }

    /// The hash from which on names are no longer below the lowest of `frames`, in the entry it
    /// took; `None` when all are.
    fn high_hash(&self, frames: &[Frame]) -> Result<Option<u32>> {
        let mut upward = frames.iter().rev();
        let Some(frame) = upward.find(|frame| frame.at + 1 < frame.entries) else {
            return Ok(None);
        };
        let node = self.reread(frame.index, frame.shape, &frame.block)?;
        Ok(Some(node.entry(frame.at + 1).hash))
    }

    /// Whether names from `hash` on can get their own entry after the one selected in the lowest of
    /// `frames`: not if that would separate names from the hash that leads to them.
    pub(super) fn check_splits(&self, frames: &[Frame], hash: u32) -> Result<()> {
        let (low, high) = (low_hash(frames), self.high_hash(frames)?);
        if low <= hash && high.is_none_or(|high| hash <= high) {
            return Ok(());
        }
        let index = frames.last().expect("the root is there").entry.block;
        let high = high.unwrap_or(HASH_END);
        Err(self.corrupt(
            index,
            format_args!("hash {hash:#x} in a block for those from {low:#x} to {high:#x}"),
        ))
    }

    /// Advances to the next leaf, which exists because [`next_hash`](Self::next_hash) returned one.
    ///
    /// # Errors
    /// The path is invalid then.
    pub(super) fn go_on(&self, path: &mut Path) -> Result<()> {
        let levels = path.frames.len();
        let mut upward = (0..levels).rev();
        let level = upward.find(|&level| {
            let frame = &path.frames[level];
            frame.at + 1 < frame.entries
        });
        let level = level.expect("there is a next leaf");
        path.leaves_left = path.leaves_left.checked_sub(1).ok_or_else(|| {
            self.corrupt(
                path.frames[0].index,
                "the tree names more leaves than there are blocks",
            )
        })?;
        path.frames.truncate(level + 1);
        let frame = &mut path.frames[level];
        let node = self.reread(frame.index, frame.shape, &frame.block)?;
        frame.at += 1;
        frame.entry = node.entry(frame.at);
        while path.frames.len() < levels {
            self.push_child(path, |_| 0)?;
        }
        self.check_leads_down(path)
    }

    fn push_child(
        &self,
        path: &mut Path,
        choose: impl FnOnce(&IndexNode<'_>) -> usize,
    ) -> Result<()> {
        self.check_leads_down(path)?;
        let index = path.leaf();
        let block = self.node(index, IndexShape::Node)?;
        let frame = self.frame(index, IndexShape::Node, block, choose)?;
        path.frames.push(frame);
        Ok(())
    }

    /// A tree that leads back into itself would have one block changed as two.
    fn check_leads_down(&self, path: &Path) -> Result<()> {
        let below = path.leaf();
        if path.frames.iter().any(|frame| frame.index == below) {
            Err(self.corrupt(
                path.lowest().index,
                format_args!("the tree leads back to block {below}"),
            ))
        } else {
            Ok(())
        }
    }

    fn frame(
        &self,
        index: LogicalBlock,
        shape: IndexShape,
        block: Arc<[u8]>,
        choose: impl FnOnce(&IndexNode<'_>) -> usize,
    ) -> Result<Frame> {
        let node = self.reread(index, shape, &block)?;
        let at = choose(&node);
        let (entry, entries, capacity) = (node.entry(at), node.len(), node.capacity());
        Ok(Frame {
            index,
            shape,
            block,
            at,
            entry,
            entries,
            capacity,
        })
    }

    /// A node that was validated when it was read, if it was read as a node.
    pub(super) fn reread<'b>(
        &self,
        index: LogicalBlock,
        shape: IndexShape,
        block: &'b [u8],
    ) -> Result<IndexNode<'b>> {
        let node = self.context.reread(shape, block);
        node.map_err(|error| self.at(index, error))
    }

    pub(super) fn judge_node(&self, shape: IndexShape, block: &[u8]) -> Result<()> {
        let (format, seed) = (&self.context.format, self.context.seed);
        let node = match shape {
            IndexShape::Root => IndexNode::parse_root(block, format, self.rules().levels_max, seed),
            IndexShape::Node => IndexNode::parse_node(block, format, seed),
        };
        node.map(|_| ())
    }

    /// The rules of the file system; there is a tree.
    pub(super) fn rules(&self) -> TreeRules {
        self.context.rules()
    }
}
