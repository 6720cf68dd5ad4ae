//! The properties of file system and inode that directory operations need.

use extant_ondisk::ext4::directory::{
    DirectoryFormat, HashSeed, HashVersion, IndexNode, IndexNodeMut, IndexShape, Tail,
};
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Compat, Incompat, Inode, InodeNumber, InodeSeed, Superblock};
use extant_space::{Error, ErrorKind, Result};

use crate::inode_cell::foreign;

/// Layout of the names of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Block after block.
    Linear,
    /// By hash, in leaves below a tree: `INDEX` in the inode's flags.
    Tree,
}

/// Parameters of hash trees (`dir_index`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeRules {
    /// The function of new trees; its sign is that of all trees.
    pub(crate) hash: HashVersion,
    /// The seed of hashes.
    pub(crate) seed: HashSeed,
    /// Maximum levels of nodes below a root: 1, or 2 with `large_dir`.
    pub(crate) levels_max: u8,
}

/// The properties of file system and inode that a directory needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryContext {
    /// Format of the blocks.
    pub(crate) format: DirectoryFormat,
    /// The checksum seed of the directory's inode.
    pub(crate) seed: Option<InodeSeed>,
    /// `None` without `dir_index`.
    pub(crate) tree: Option<TreeRules>,
    /// The shape by the inode's flags.
    pub(crate) flagged: Shape,
    /// Blocks that a directory may have: without `large_dir` its size has 32 bits.
    pub(crate) blocks_max: u32,
}

/// The most that one insertion changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InsertBound {
    /// Blocks of the directory that become different, new ones among them.
    pub(crate) changed_blocks: u32,
    /// New blocks.
    pub(crate) appended_blocks: u32,
}

impl DirectoryContext {
    /// That of the directory `inode`.
    ///
    /// # Errors
    /// `Unsupported` when the file system hashes names by a function that is not known, and when
    /// the names are kept in a way that is not offered.
    pub(crate) fn of(superblock: &Superblock, number: InodeNumber, inode: &Inode) -> Result<Self> {
        let foreign_names = InodeFlags::CASEFOLD | InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA;
        if inode.flags().intersects(foreign_names) {
            return Err(foreign("directory", number, inode.flags()));
        }
        Self::of_own_entries(superblock, number, inode)
    }

    /// The same for `.` and `..` only, which are neither folded nor encrypted, and not hashed.
    ///
    /// # Errors
    /// As [`of`](Self::of), but `casefold` and `encrypt` are accepted.
    pub(crate) fn of_own_entries(
        superblock: &Superblock,
        number: InodeNumber,
        inode: &Inode,
    ) -> Result<Self> {
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Err(foreign("directory", number, inode.flags()));
        }
        let features = superblock.features();
        let format = DirectoryFormat::of(superblock);
        let has_large = features.incompat.contains(Incompat::LARGEDIR);
        let tree = if features.compat.contains(Compat::DIR_INDEX) {
            Some(TreeRules {
                hash: superblock.hash_version()?,
                seed: superblock.hash_seed(),
                levels_max: if has_large { 2 } else { 1 },
            })
        } else {
            None
        };
        Ok(Self {
            format,
            seed: superblock.seed().map(|seed| inode.seed(seed, number)),
            tree,
            flagged: if inode.flags().contains(InodeFlags::INDEX) {
                Shape::Tree
            } else {
                Shape::Linear
            },
            blocks_max: if has_large {
                u32::MAX
            } else {
                u32::MAX / format.block_bytes
            },
        })
    }

    /// The most that one insertion changes.
    ///
    /// A tree with nodes on `levels_max` levels below the root: every full node but the highest is
    /// split, and the leaf is.
    pub(crate) fn insert_bound(&self) -> InsertBound {
        match self.tree {
            Some(TreeRules { levels_max, .. }) => InsertBound {
                changed_blocks: 3 + 2 * u32::from(levels_max),
                appended_blocks: 1 + u32::from(levels_max),
            },
            None => InsertBound {
                changed_blocks: 1,
                appended_blocks: 1,
            },
        }
    }

    /// The shape to use. Without `dir_index` a tree is ignored: its nodes look like free records.
    pub(super) fn shape(&self) -> Shape {
        match self.tree {
            Some(_) => self.flagged,
            None => Shape::Linear,
        }
    }

    /// The rules of the file system; there is a tree.
    pub(super) fn rules(&self) -> TreeRules {
        self.tree
            .expect("a directory has a tree only with dir_index")
    }

    /// A node that was validated when it was read, if it was read as a node.
    pub(super) fn reread<'b>(&self, shape: IndexShape, block: &'b [u8]) -> Result<IndexNode<'b>> {
        match shape {
            IndexShape::Root => {
                IndexNode::reread_root(block, &self.format, self.rules().levels_max)
            }
            IndexShape::Node => IndexNode::reread_node(block, &self.format),
        }
    }

    /// The same, to be changed.
    pub(super) fn reread_mut<'b>(
        &self,
        shape: IndexShape,
        block: &'b mut [u8],
    ) -> Result<IndexNodeMut<'b>> {
        self.reread(shape, block)?;
        Ok(IndexNodeMut::new(block, shape, &self.format))
    }

    /// Nodes and records have their checksums at different offsets, so that a tree with checksums
    /// cannot be taken for records.
    pub(super) fn check(&self) -> Result<()> {
        let is_contradiction = self.flagged != self.shape() && self.format.tail == Tail::Checksum;
        if is_contradiction {
            Err(Error::new(ErrorKind::Corrupt)
                .detail("directory: INDEX is set without dir_index in the file system"))
        } else {
            Ok(())
        }
    }
}
