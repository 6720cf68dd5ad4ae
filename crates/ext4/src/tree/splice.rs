//! The one change that all others are made of: some entries of a leaf are replaced by others.
//!
//! The consequence for the parent is one of four [`Outcome`]s, and applying it to the parent is
//! again a replacement of entries: the splice climbs until a parent needs no change.
//!
//! A full node is split where the entries are inserted: at its end, so that a file written from
//! start to end has full nodes; before its start, so that one written from end to start has them
//! too; else in the middle. A full root moves into a block as a whole, and the tree becomes one
//! level deeper.
//!
//! Order: new blocks first, because that can fail; then changes from the leaf up; then unreferenced
//! blocks are freed.

use std::ops::Range;

use extant_ondisk::ext4::extent::{
    DEPTH_MAX, ENTRY_BYTES, ExtentNodeMut, IndexEntry, LeafEntry, ROOT_BYTES, capacity,
};
use extant_ondisk::ext4::{LogicalBlock, PhysicalBlock};
use extant_space::{Error, ErrorKind, Result};
use smallvec::SmallVec;

use super::entry::{self, NodeEntry};
use super::path::{Level, Path};
use super::{NodesMut, TreeMut, corrupt};

/// Entries that a splice adds at most: a middle of another kind in an extent.
pub(super) const GROWTH_MAX: usize = 2;
/// Entries that fit the root.
pub(super) const ROOT_ENTRIES: usize = ROOT_BYTES / ENTRY_BYTES - 1;

/// The result for a node, for its parent.
enum Outcome {
    /// Nothing that it would see.
    Same,
    /// It begins elsewhere.
    Begins(LogicalBlock),
    /// It begins there, and the entries without room in it are in a node on its right.
    Split(LogicalBlock, IndexEntry),
    /// It is empty.
    Gone,
}

type Blocks = SmallVec<[PhysicalBlock; 6]>;

impl<N: NodesMut> TreeMut<'_, N> {
    /// The path from `root`, a copy of the root, to the leaf for `logical`; every node on it may be
    /// changed.
    pub(super) fn descend<'r>(
        &mut self,
        root: &'r [u8; ROOT_BYTES],
        logical: LogicalBlock,
    ) -> Result<Path<'r>> {
        let nodes = &mut *self.nodes;
        super::path::descend(root, logical, self.format, |block, validate| {
            nodes.hold(block, validate)
        })
    }

    /// Replaces the entries of `range` of the leaf at the end of `path` by `new`, at most
    /// [`GROWTH_MAX`] more than there were.
    ///
    /// # Errors
    /// `NoSpace` when a node cannot be had, `TooLarge` when the tree cannot grow; nothing has
    /// changed then.
    pub(super) fn splice(
        &mut self,
        mut path: Path<'_>,
        range: Range<usize>,
        new: &[LeafEntry],
    ) -> Result<()> {
        assert!(new.len() <= range.len() + GROWTH_MAX);
        if let [root] = &path[..]
            && root.node().len() - range.len() + new.len() <= root.node().capacity()
        {
            // Nothing is above that would see it.
            entry::replace(&mut ExtentNodeMut::new(self.root), range, new);
            return Ok(());
        }
        if range.is_empty() && new.is_empty() && !path.last().is_some_and(is_removable) {
            return Ok(());
        }
        let mut spare = self.reserve(&path, range.len(), new)?;
        let mut gone = Blocks::new();
        let leaf = path.pop().expect("a path has a root");
        let begins = leaf.place.logical.start;
        let left = leaf.node().len() - range.len() + new.len();
        let shrinks = !leaf.is_root()
            && (new.len() < range.len() || left == 0)
            && sparse(left, leaf.node().capacity());
        let mut outcome = self.replace(leaf, range, new, &mut spare, &mut gone)?;
        while let Some(parent) = path.pop() {
            let index = parent.index;
            let child = parent.node().index(index).child;
            let entries: SmallVec<[IndexEntry; 2]> = match outcome {
                Outcome::Same => break,
                Outcome::Begins(logical) => [IndexEntry { logical, child }].into_iter().collect(),
                Outcome::Split(logical, right) => [IndexEntry { logical, child }, right].into(),
                Outcome::Gone => SmallVec::new(),
            };
            outcome = self.replace(parent, index..index + 1, &entries, &mut spare, &mut gone)?;
        }
        assert!(spare.is_empty(), "blocks that were not needed: {spare:?}");
        for block in gone {
            self.nodes.remove(block);
        }
        drop(path);
        if shrinks {
            self.tidy(super::path::last_logical(begins))?;
        }
        Ok(())
    }

    /// Creates the nodes that a splice needs; all of them or none.
    fn reserve(&mut self, path: &Path<'_>, removed: usize, new: &[LeafEntry]) -> Result<Blocks> {
        let mut blocks = Blocks::new();
        let (mut removed, mut added) = (removed, new.len());
        for level in path.iter().rev() {
            let node = level.node();
            if node.len() - removed + added <= node.capacity() {
                break;
            }
            (removed, added) = (1, 2);
            let goal = if level.is_root() {
                new[0].physical
            } else {
                level.place.block
            };
            match self.reserve_for(level, goal) {
                Ok(block) => blocks.insert(0, block),
                Err(error) => {
                    blocks
                        .into_iter()
                        .for_each(|block| self.nodes.remove(block));
                    return Err(error);
                }
            }
        }
        Ok(blocks)
    }

    fn reserve_for(&mut self, full: &Level<'_>, goal: PhysicalBlock) -> Result<PhysicalBlock> {
        if full.is_root() && full.depth() == DEPTH_MAX {
            return Err(too_deep());
        }
        full.check(self.format)?;
        self.nodes.create(goal, None)
    }

    fn replace<E: NodeEntry>(
        &mut self,
        level: Level<'_>,
        range: Range<usize>,
        new: &[E],
        spare: &mut Blocks,
        gone: &mut Blocks,
    ) -> Result<Outcome> {
        let node = level.node();
        let total = node.len() - range.len() + new.len();
        if total > node.capacity() {
            let block = spare.pop().expect("reserved");
            return self.overflow(level, range, new, block);
        }
        if total == 0 && level.is_root() {
            super::init(self.root);
            return Ok(Outcome::Same);
        }
        if total == 0 {
            gone.push(level.place.block);
            return Ok(Outcome::Gone);
        }
        let first = match new.first() {
            _ if range.start > 0 => E::of(&node, 0),
            Some(&entry) => entry,
            None => E::of(&node, range.end),
        };
        let first = first.logical();
        let outcome = if level.is_root() || u64::from(first.0) == level.place.logical.start {
            Outcome::Same
        } else {
            Outcome::Begins(first)
        };
        self.change(level, |node| entry::replace(node, range.clone(), new))?;
        Ok(outcome)
    }

    /// Replaces entries of a node that has no room for the new ones, with the help of a new
    /// `block`.
    fn overflow<E: NodeEntry>(
        &mut self,
        level: Level<'_>,
        range: Range<usize>,
        new: &[E],
        block: PhysicalBlock,
    ) -> Result<Outcome> {
        let node = level.node();
        let (depth, room, before) = (node.depth(), node.capacity(), node.len());
        let at = split_at(before, &range, new.len(), room);
        let unchanged = range.start.min(at);
        let mut entries: Vec<E> = entry::all(&node);
        entries.splice(range, new.iter().copied());
        let reference = |entries: &[E]| IndexEntry {
            logical: entries[0].logical(),
            child: block,
        };
        if level.is_root() {
            self.fill(block, depth, &entries);
            let mut root = ExtentNodeMut::init(self.root, depth + 1);
            root.insert_index(0, &reference(&entries));
            return Ok(Outcome::Same);
        }
        let (left, right) = entries.split_at(at);
        if left.len() != before || unchanged < before {
            self.change(level, |node| {
                node.remove(unchanged..before);
                entry::append(node, &left[unchanged..]);
            })?;
        }
        self.fill(block, depth, right);
        Ok(Outcome::Split(left[0].logical(), reference(right)))
    }

    /// Makes a created block a node with these entries.
    pub(super) fn fill<E: NodeEntry>(&mut self, block: PhysicalBlock, depth: u16, entries: &[E]) {
        let seed = self.format.seed;
        self.nodes.change(block, &mut |bytes| {
            // A new node receives all of the root's entries and those that did not fit there.
            assert!(usize::from(capacity(bytes.len())) >= ROOT_ENTRIES + GROWTH_MAX);
            let mut node = ExtentNodeMut::init(bytes, depth);
            entry::append(&mut node, entries);
            node.seal(seed);
        });
    }

    /// Changes a node that is the same as when it was read. Drops its bytes first, so that the
    /// store need not copy them.
    pub(super) fn change(
        &mut self,
        level: Level<'_>,
        mut change: impl FnMut(&mut ExtentNodeMut<'_>),
    ) -> Result<()> {
        if level.is_root() {
            change(&mut ExtentNodeMut::new(self.root));
            return Ok(());
        }
        let seed = self.format.seed;
        let block = level.place.block;
        let header: [u8; ENTRY_BYTES] = *level.bytes().first_chunk().expect("a header");
        drop(level);
        let mut as_read = false;
        self.nodes.change(block, &mut |bytes| {
            as_read = bytes.starts_with(&header);
            if as_read {
                let mut node = ExtentNodeMut::new(bytes);
                change(&mut node);
                node.seal(seed);
            }
        });
        if as_read {
            Ok(())
        } else {
            Err(corrupt(format!(
                "extent node in block {block}: changed by something else that uses the block as well"
            )))
        }
    }
}

/// Whether a node with this number of entries may be worth merging with another, or into the root.
pub(super) fn sparse(entries: usize, capacity: usize) -> bool {
    entries <= (capacity / 4).max(ROOT_ENTRIES)
}

/// An empty leaf, as only others leave it behind.
fn is_removable(leaf: &Level<'_>) -> bool {
    !leaf.is_root() && leaf.node().is_empty()
}

/// Number of entries that remain in a node of `count` entries and `room`, when those of `range`
/// become `new`.
fn split_at(count: usize, range: &Range<usize>, new: usize, room: usize) -> usize {
    let total = count - range.len() + new;
    match range {
        range if range.end == count => room.min(total - 1),
        range if *range == (0..0) => total - count,
        _ => total / 2,
    }
}

fn too_deep() -> Error {
    Error::new(ErrorKind::TooLarge)
        .detail(format!(
            "extent tree: {DEPTH_MAX} levels are full, the file is in too many pieces"
        ))
        .advice("copy the file")
}
