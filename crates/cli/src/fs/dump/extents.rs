//! One extent tree, in the columns of debugfs's `dump_extents`.

use std::ops::ControlFlow;

use extant_ext4::{FileType, Node, TreeEntry};
use extant_ondisk::ext4::extent::ExtentKind;
use extant_space::{ByteRange, ExtentState, Result, SpaceFile};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Fields {
    inode: u32,
    /// Levels below the root; none without a tree (ext2, ext3).
    depth: Option<u16>,
    entries: Vec<ExtentEntry>,
}

/// An extent, or a reference to a node below. Numbers are of blocks.
#[derive(Debug, Serialize)]
struct ExtentEntry {
    level: u16,
    /// Of the node: none for the root.
    node: Option<u64>,
    /// Index in the node from 1, and the number of entries.
    number: u16,
    of: u16,
    logical: u64,
    /// Of an extent.
    blocks: Option<u64>,
    physical: u64,
    state: Option<ExtentState>,
}

impl Fields {
    pub(super) fn of(node: &Node, block_bytes: u32) -> Result<Self> {
        let mut entries = Vec::new();
        let root = node.for_each_tree_entry(&mut |at, index, entry| {
            let (logical, physical, blocks, state) = match entry {
                TreeEntry::Index(index) => (index.logical, index.child, None, None),
                TreeEntry::Extent(extent) => {
                    let state = match extent.kind {
                        ExtentKind::Written => ExtentState::Written,
                        ExtentKind::Unwritten => ExtentState::Unwritten,
                    };
                    let blocks = Some(extent.blocks.into());
                    (extent.logical, extent.physical, blocks, Some(state))
                }
            };
            entries.push(ExtentEntry {
                level: at.level,
                node: at.block.map(|block| block.0),
                number: index + 1,
                of: at.entries,
                logical: logical.0.into(),
                blocks,
                physical: physical.0,
                state,
            });
            ControlFlow::Continue(())
        })?;
        if root.is_none() && node.file_type() == FileType::Regular {
            entries = runs_of(node, block_bytes.into())?;
        }
        Ok(Self {
            inode: node.number().0,
            depth: root.map(|root| root.depth),
            entries,
        })
    }

    pub(super) fn describe(&self) -> String {
        let mut out = match self.depth {
            Some(depth) => format!(
                "Extent tree of inode {}, {depth} levels below the root\n",
                self.inode
            ),
            None => format!(
                "Inode {} has no extent tree; its runs of blocks\n",
                self.inode
            ),
        };
        out.push_str("Level Entries       Logical        Physical        Blocks  State");
        for entry in &self.entries {
            let (number, of) = (entry.number, entry.of);
            let logical = match entry.blocks {
                Some(blocks) => format!("{}-{}", entry.logical, entry.logical + blocks - 1),
                None => format!("{}-", entry.logical),
            };
            let (physical, blocks) = match entry.blocks {
                Some(blocks) => (
                    format!("{}-{}", entry.physical, entry.physical + blocks - 1),
                    blocks.to_string(),
                ),
                None => (entry.physical.to_string(), String::new()),
            };
            let state = entry.state.map_or("node", |state| state.name());
            out.push_str(&format!(
                "\n{:>2} {number:>5}/{of:>3} {logical:>17} {physical:>19} {blocks:>9}  {state}",
                entry.level
            ));
        }
        out
    }
}

/// The runs of a file that is mapped by blocks.
fn runs_of(node: &Node, block_bytes: u64) -> Result<Vec<ExtentEntry>> {
    let file = node.file()?;
    let extents = file.extents(ByteRange::new(
        0,
        file.size()?.next_multiple_of(block_bytes),
    ))?;
    let placed: Vec<_> = extents
        .iter()
        .filter(|extent| extent.physical.is_some())
        .collect();
    let of = placed.len() as u16;
    let entries = placed.iter().zip(1..).map(|(extent, number)| ExtentEntry {
        level: 0,
        node: None,
        number,
        of,
        logical: extent.logical.start() / block_bytes,
        blocks: Some(extent.logical.len() / block_bytes),
        physical: extent.physical.unwrap_or_default() / block_bytes,
        state: Some(extent.state),
    });
    Ok(entries.collect())
}
