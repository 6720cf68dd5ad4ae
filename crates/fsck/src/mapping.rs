//! The blocks of a file, by its extent tree or its indirect blocks.
//!
//! Model: a walk passes to a [`Visitor`] every block of the map itself before it is read, every run
//! of data blocks in file order, and every defect. The subtree below a defect is not visited.
//!
//! A walk terminates because trees have at most 6 levels, and because a visitor that claims blocks
//! enters none twice.

use extant_ondisk::ext4::extent::{ExtentKind, ExtentNode, NodePlace};
use extant_ondisk::ext4::inode::InodeFlags;
use extant_ondisk::ext4::{Inode, InodeNumber, InodeSeed, PhysicalBlock, block_map, extent};
use extant_space::{Error, ErrorKind, Result};

use crate::volume::Volume;

/// Direct block numbers in `i_block`.
const DIRECT: u32 = 12;

/// Consecutive blocks of a file that are consecutive on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// First block in the file.
    pub(crate) logical: u64,
    /// First block on the device.
    pub(crate) physical: PhysicalBlock,
    /// The number.
    pub(crate) blocks: u64,
    /// Whether they hold data.
    pub(crate) kind: ExtentKind,
}

/// Treatment of a block of the map.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodeAction {
    /// It is read, and its blocks are visited.
    Enter,
    /// It is passed over.
    Skip,
}

/// Receiver of a walk.
pub(crate) trait Visitor {
    /// A node of the tree, or an indirect block.
    fn node(&mut self, block: PhysicalBlock) -> NodeAction;
    /// Blocks of the file.
    fn run(&mut self, run: Run);
    /// An error, in a block of the map or, with `None`, in the inode.
    fn fault(&mut self, block: Option<PhysicalBlock>, error: Error);
}

/// The mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// By a tree with this many levels below the root.
    Tree {
        /// 0 where extents are in the inode.
        depth: u16,
    },
    /// By block numbers.
    Blocks {
        /// Existence of the single, double and triple indirect block.
        indirect: [bool; 3],
    },
    /// By a tree whose root is wrong.
    Unknown,
}

/// Visits the map of the inode `number`.
///
/// # Errors
/// Only when the device cannot be read.
pub(crate) fn walk(
    volume: &Volume<'_>,
    number: InodeNumber,
    inode: &Inode,
    visitor: &mut impl Visitor,
) -> Result<Shape> {
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return walk_blocks(volume, inode, visitor);
    }
    let seed = volume.seed().map(|seed| inode.seed(seed, number));
    match ExtentNode::parse_root(inode.block_area(), volume.layout()) {
        Ok(root) => {
            judge_capacity(&root, inode.block_area(), None, visitor);
            visit_node(volume, &root, seed, visitor)?;
            Ok(Shape::Tree {
                depth: root.depth(),
            })
        }
        Err(error) => {
            visitor.fault(None, error);
            Ok(Shape::Unknown)
        }
    }
}

fn visit_node(
    volume: &Volume<'_>,
    node: &ExtentNode<'_>,
    seed: Option<InodeSeed>,
    visitor: &mut impl Visitor,
) -> Result<()> {
    if node.depth() == 0 {
        for leaf in node.leaves() {
            visitor.run(Run {
                logical: leaf.logical.0.into(),
                physical: leaf.physical,
                blocks: leaf.blocks.into(),
                kind: leaf.kind,
            });
        }
        return Ok(());
    }
    for index in 0..node.len() {
        let place: NodePlace = node.child(index);
        if visitor.node(place.block) == NodeAction::Skip {
            continue;
        }
        let bytes = volume.block(place.block)?;
        match ExtentNode::parse_block(&bytes, &place, volume.layout(), seed) {
            Ok(child) => {
                judge_capacity(&child, &bytes, Some(place.block), visitor);
                visit_node(volume, &child, seed, visitor)?;
            }
            Err(error) => visitor.fault(Some(place.block), error),
        }
    }
    Ok(())
}

/// A node may say that it has room for a little less than it has: for the maps that e2fsck accepts.
fn judge_capacity(
    node: &ExtentNode<'_>,
    bytes: &[u8],
    block: Option<PhysicalBlock>,
    visitor: &mut impl Visitor,
) {
    let (stored, room) = (node.capacity(), usize::from(extent::capacity(bytes.len())));
    if stored + 2 < room {
        let words = format!("eh_max is {stored}, with room for {room} entries");
        visitor.fault(block, Error::new(ErrorKind::Corrupt).detail(words));
    }
}

fn walk_blocks(volume: &Volume<'_>, inode: &Inode, visitor: &mut impl Visitor) -> Result<Shape> {
    let numbers = inode.block_area();
    let layout = volume.layout();
    for index in 0..DIRECT {
        match block_map::entry(numbers, index, layout) {
            Ok(Some(block)) => visitor.run(single(index.into(), block)),
            Ok(None) => {}
            Err(error) => visitor.fault(None, error),
        }
    }
    let per_block = u64::from(layout.block_bytes() / 4);
    let mut logical = DIRECT.into();
    let mut indirect = [false; 3];
    for level in 1..=3 {
        match block_map::entry(numbers, DIRECT + level - 1, layout) {
            Ok(Some(block)) => {
                indirect[level as usize - 1] = true;
                visit_indirect(volume, block, level, logical, visitor)?;
            }
            Ok(None) => {}
            Err(error) => visitor.fault(None, error),
        }
        logical += per_block.pow(level);
    }
    Ok(Shape::Blocks { indirect })
}

/// Visits an indirect block with `level` levels of blocks below it, of which the first is
/// `logical`.
fn visit_indirect(
    volume: &Volume<'_>,
    block: PhysicalBlock,
    level: u32,
    logical: u64,
    visitor: &mut impl Visitor,
) -> Result<()> {
    if visitor.node(block) == NodeAction::Skip {
        return Ok(());
    }
    let layout = volume.layout();
    let bytes = volume.block(block)?;
    let per_block = layout.block_bytes() / 4;
    let below = u64::from(per_block).pow(level - 1);
    for index in 0..per_block {
        let logical = logical + u64::from(index) * below;
        match block_map::entry(&bytes, index, layout) {
            Ok(Some(child)) if level == 1 => visitor.run(single(logical, child)),
            Ok(Some(child)) => visit_indirect(volume, child, level - 1, logical, visitor)?,
            Ok(None) => {}
            Err(error) => visitor.fault(Some(block), error),
        }
    }
    Ok(())
}

fn single(logical: u64, physical: PhysicalBlock) -> Run {
    Run {
        logical,
        physical,
        blocks: 1,
        kind: ExtentKind::Written,
    }
}

/// The block on the device of block `logical` of a file; `None` in a hole.
pub(crate) fn find_block(runs: &[Run], logical: u64) -> Option<PhysicalBlock> {
    let after = runs.partition_point(|run| run.logical <= logical);
    let run = &runs[after.checked_sub(1)?];
    let offset = logical - run.logical;
    (offset < run.blocks).then_some(PhysicalBlock(run.physical.0 + offset))
}
