//! Growth of a tree: planted in a full linear directory, leaves and nodes split, a level added.
//!
//! Model: each function here is one step. It first reads all blocks, then appends one block, fills
//! it, makes the tree refer to it, and last removes the moved entries from the old block. If no
//! block can be appended, nothing has changed.
//!
//! The split points are those of the kernel: leaves in the middle by bytes, nodes by number of
//! entries.

use extant_ondisk::ext4::LogicalBlock;
use extant_ondisk::ext4::directory::{
    self as disk, BlockKind, DxEntry, Entry, IndexNodeMut, IndexShape, record_bytes,
};
use extant_space::{Error, ErrorKind, Result};

use super::blocks::changed_meanwhile;
use super::tree::{CONTINUED, Frame, Path, Root};
use super::{Directory, DirectoryBlocksMut, FIRST, Shape};

/// Nodes have 28 bits for the number of a block.
const TREE_BLOCKS_MAX: u32 = 1 << 28;

impl<B: DirectoryBlocksMut> Directory<B> {
    /// Gives a linear directory of one block a tree, with one leaf.
    pub(super) fn plant(&mut self) -> Result<()> {
        let (format, kind) = (self.context.format, self.rules().hash.kind);
        let block = self.leaf(FIRST)?;
        let entries = self.entries_of(FIRST, &block)?;
        let [own, parent, names @ ..] = entries.as_slice() else {
            return Err(self.corrupt(FIRST, "fewer than two entries"));
        };
        if (own.name, parent.name) != (b".", b"..") {
            return Err(self.corrupt(FIRST, "does not begin with . and .."));
        }
        let leaf = self.packed(names);
        let mut root = vec![0; block.len()];
        let below = LogicalBlock(1);
        IndexNodeMut::init_root(&mut root, &format, own.inode, parent.inode, kind, below);

        let appended = self.append_to_tree()?;
        assert_eq!(appended, below, "a directory of one block got its second");
        self.replace(below, BlockKind::Records, &leaf)?;
        self.replace(FIRST, BlockKind::Root, &root)?;
        self.context.flagged = Shape::Tree;
        self.blocks.set_shape(Shape::Tree);
        Ok(())
    }

    /// Moves the entries of a leaf together, so that its room is in one place.
    pub(super) fn pack_leaf(&mut self, index: LogicalBlock, leaf: &[u8]) -> Result<()> {
        let entries = self.entries_of(index, leaf)?;
        let packed = self.packed(&entries);
        self.replace(index, BlockKind::Records, &packed)
    }

    /// Moves the upper half of a leaf's names to a new one, after it in the lowest node, which has
    /// room. Both have room for any name then.
    pub(super) fn split_leaf(&mut self, root: &Root, path: &Path, leaf: &[u8]) -> Result<()> {
        let entries = self.entries_of(path.leaf(), leaf)?;
        let mut hashed: Vec<(u32, Entry<'_>)> = entries
            .into_iter()
            .map(|entry| (root.hash(entry.name).major, entry))
            .collect();
        // A stable sort: names of one hash keep their order.
        hashed.sort_by_key(|(hash, _)| *hash);
        let (hashes, entries): (Vec<_>, Vec<_>) = hashed.into_iter().unzip();
        let middle = middle(&entries, self.context.format.records_end());
        let hash = match hashes[middle] {
            hash if hash == hashes[middle - 1] => hash | CONTINUED,
            hash => hash,
        };
        self.check_splits(&path.frames, hash)?;
        let (lower, upper) = entries.split_at(middle);
        let (lower, upper) = (self.packed(lower), self.packed(upper));

        let appended = self.append_to_tree()?;
        self.replace(appended, BlockKind::Records, &upper)?;
        let entry = DxEntry {
            hash,
            block: appended,
        };
        self.insert_behind(path.lowest(), entry)?;
        self.replace(path.leaf(), BlockKind::Records, &lower)
    }

    /// Makes room in the lowest node, which is full: splits the highest of the full nodes that
    /// reach up from it, or adds a level when even the root is one of them. The path is of no
    /// use then.
    ///
    /// # Errors
    /// `NoSpace` when there are as many levels as may be.
    pub(super) fn split_node(&mut self, path: &Path) -> Result<()> {
        match path.frames.iter().rposition(|frame| !frame.is_full()) {
            Some(level) => self.split_below(&path.frames[..=level], &path.frames[level + 1]),
            None => self.add_level(&path.frames[0]),
        }
    }

    /// Splits `full`, which the last of `above` leads to and has room for.
    fn split_below(&mut self, above: &[Frame], full: &Frame) -> Result<()> {
        let format = self.context.format;
        let (mut lower, mut upper) = (full.block.to_vec(), vec![0; full.block.len()]);
        let mut node = IndexNodeMut::new(&mut lower, full.shape, &format);
        let hash = node.split_into(full.entries() / 2, &mut upper, &format);
        self.check_splits(above, hash)?;
        let parent = above.last().expect("the root is there");

        let appended = self.append_to_tree()?;
        self.replace(appended, BlockKind::Node, &upper)?;
        let entry = DxEntry {
            hash,
            block: appended,
        };
        self.insert_behind(parent, entry)?;
        self.replace(full.index, BlockKind::Node, &lower)
    }

    fn add_level(&mut self, root: &Frame) -> Result<()> {
        let format = self.context.format;
        let (levels, most) = (self.root()?.levels, self.rules().levels_max);
        if levels >= most {
            let error = Error::new(ErrorKind::NoSpace).detail(format!(
                "directory: the hash tree with {levels} levels below its root is full"
            ));
            return Err(match most {
                1 => error.advice("turn on large_dir (tune2fs -O large_dir)"),
                _ => error,
            });
        }
        let (mut above, mut below) = (root.block.to_vec(), vec![0; root.block.len()]);
        let mut node = IndexNodeMut::new(&mut above, IndexShape::Root, &format);
        node.split_into(0, &mut below, &format);
        node.set_levels(levels + 1);

        let appended = self.append_to_tree()?;
        IndexNodeMut::new(&mut above, IndexShape::Root, &format).set_block(0, appended);
        self.replace(appended, BlockKind::Node, &below)?;
        self.replace(FIRST, BlockKind::Root, &above)
    }

    /// Inserts an entry after the selected one of the path.
    fn insert_behind(&mut self, frame: &Frame, entry: DxEntry) -> Result<()> {
        let (context, shape) = (self.context, frame.shape);
        let kind = match shape {
            IndexShape::Root => BlockKind::Root,
            IndexShape::Node => BlockKind::Node,
        };
        self.change(frame.index, kind, |block| {
            let mut node = context.reread_mut(shape, block)?;
            if node.len() != frame.entries() {
                return Err(changed_meanwhile());
            }
            node.insert(frame.at + 1, entry);
            Ok(())
        })
    }

    fn append_to_tree(&mut self) -> Result<LogicalBlock> {
        if self.blocks.blocks() >= TREE_BLOCKS_MAX {
            return Err(Error::new(ErrorKind::NoSpace)
                .detail("directory: a hash tree cannot name more blocks"));
        }
        self.append()
    }

    fn entries_of<'b>(&self, index: LogicalBlock, block: &'b [u8]) -> Result<Vec<Entry<'b>>> {
        let entries: Result<_> = disk::entries(block, &self.context.format).collect();
        entries.map_err(|error| self.at(index, error))
    }

    /// A block with these entries, which were in one block before.
    fn packed(&self, entries: &[Entry<'_>]) -> Vec<u8> {
        let format = &self.context.format;
        let mut block = vec![0; format.block_bytes as usize];
        let fits = disk::repack(&mut block, format, entries.iter().copied());
        assert!(fits, "entries of one block fit a block");
        block
    }
}

/// Split point of a full leaf: the upper part is as near to half of `room` as can be.
///
/// Full means that not even the longest name is missing to more than `room`: at least three
/// quarters of the smallest block are taken, so that neither part is empty and both have room for
/// any name.
fn middle(entries: &[Entry<'_>], room: usize) -> usize {
    let mut upper = 0;
    let fits = |entry: &&Entry<'_>| {
        let bytes = record_bytes(entry.name.len());
        upper += bytes;
        upper - bytes / 2 <= room / 2
    };
    entries.len() - entries.iter().rev().take_while(fits).count()
}
