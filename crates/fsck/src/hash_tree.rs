//! The hash tree of a directory: which block may hold which hashes.
//!
//! Model: a walk from the root gives every block of the directory its role: the root, a node, or
//! records whose hashes are in a range. An odd hash marks a block that continues the names of the
//! previous hash, which then belongs to both.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use extant_ondisk::ext4::directory::{
    BlockKind, HashSeed, HashVersion, IndexNode, block_kind, name_hash,
};
use extant_ondisk::ext4::{Incompat, InodeNumber, InodeSeed};
use extant_space::Result;

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::mapping::{Run, find_block};

/// Kind of a block of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `.`, `..` and the root.
    Root,
    /// A node below the root.
    Node,
    /// Entries, with hashes of the range if there is a tree.
    Records(Option<HashRange>),
}

/// Hashes, both ends included; empty where `first` is past `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HashRange {
    first: u32,
    last: u32,
}

impl HashRange {
    const ALL: Self = Self {
        first: 0,
        last: u32::MAX,
    };

    pub(crate) fn contains(&self, hash: &u32) -> bool {
        RangeInclusive::new(self.first, self.last).contains(hash)
    }
}

/// The roles of all blocks that the tree names.
pub(crate) struct HashTree {
    version: HashVersion,
    seed: HashSeed,
    roles: HashMap<u64, Role>,
}

impl HashTree {
    pub(crate) fn role(&self, logical: u64) -> Option<Role> {
        self.roles.get(&logical).copied()
    }

    pub(crate) fn hash(&self, name: &[u8]) -> u32 {
        name_hash(name, self.version, self.seed).major
    }
}

/// Constants of a walk through a tree.
struct Walk<'a> {
    number: InodeNumber,
    runs: &'a [Run],
    seed: Option<InodeSeed>,
}

impl Check<'_> {
    /// Reads the tree of a directory; `None` when its root is wrong.
    pub(crate) fn read_hash_tree(
        &mut self,
        number: InodeNumber,
        runs: &[Run],
        seed: Option<InodeSeed>,
    ) -> Result<Option<HashTree>> {
        let Some(block) = find_block(runs, 0) else {
            return Ok(None);
        };
        let superblock = self.volume.superblock();
        let levels_max = if superblock.features().incompat.contains(Incompat::LARGEDIR) {
            2
        } else {
            1
        };
        let format = self.volume.directory_format();
        let bytes = self.volume.block(block)?;
        let root = match IndexNode::parse_root(&bytes, &format, levels_max, seed) {
            Ok(root) => root,
            Err(error) => {
                let place = Location::inode(number).in_block(block);
                self.findings.add(FindingKind::HashTree, place, error);
                return Ok(None);
            }
        };
        let mut tree = HashTree {
            version: root.hash_kind().with_sign_of(superblock.flags()),
            seed: superblock.hash_seed(),
            roles: HashMap::from([(0, Role::Root)]),
        };
        let walk = Walk { number, runs, seed };
        let place = Location::inode(number).in_block(block);
        self.visit_hash_node(
            &walk,
            &root,
            root.levels(),
            HashRange::ALL,
            place,
            &mut tree,
        )?;
        Ok(Some(tree))
    }

    /// Visits the children of a node, `levels` levels above the blocks with records.
    fn visit_hash_node(
        &mut self,
        walk: &Walk<'_>,
        node: &IndexNode<'_>,
        levels: u8,
        range: HashRange,
        place: Location,
        tree: &mut HashTree,
    ) -> Result<()> {
        for index in 0..node.len() {
            let entry = node.entry(index);
            let range = match range_of(node, index, range) {
                Ok(range) => range,
                Err(words) => {
                    self.findings
                        .add(FindingKind::HashTree, place.clone(), words);
                    range
                }
            };
            let logical = entry.block.0.into();
            let Some(block) = find_block(walk.runs, logical) else {
                let words = format_args!("entry {index} names block {logical}, which is not there");
                self.findings
                    .add(FindingKind::HashTree, place.clone(), words);
                continue;
            };
            let role = if levels == 0 {
                Role::Records(Some(range))
            } else {
                Role::Node
            };
            // It also ends the walk in a tree with loops.
            if tree.roles.contains_key(&logical) {
                let words = format_args!("entry {index} names block {logical} a second time");
                self.findings
                    .add(FindingKind::HashTree, place.clone(), words);
                continue;
            }
            tree.roles.insert(logical, role);
            if role != Role::Node {
                continue;
            }
            let bytes = self.volume.block(block)?;
            let place = Location::inode(walk.number).in_block(block);
            let format = self.volume.directory_format();
            if block_kind(&bytes, entry.block, &format) != BlockKind::Node {
                let words = "not like an empty block to readers without tree support";
                self.findings
                    .add(FindingKind::HashTree, place.clone(), words);
            }
            match IndexNode::parse_node(&bytes, &format, walk.seed) {
                Ok(child) => self.visit_hash_node(walk, &child, levels - 1, range, place, tree)?,
                Err(error) => self.findings.add(FindingKind::HashTree, place, error),
            }
        }
        Ok(())
    }
}

/// The hashes below entry `index` of a node that covers `whole`.
fn range_of(node: &IndexNode<'_>, index: usize, whole: HashRange) -> Result<HashRange, String> {
    let first = match index {
        0 => whole.first,
        _ => node.entry(index).hash & !1,
    };
    if !whole.contains(&first) {
        return Err(format!(
            "entry {index} has hash {first:#x}, outside of its node"
        ));
    }
    let last = if index + 1 < node.len() {
        match node.entry(index + 1).hash {
            goes_on if goes_on & 1 == 1 => goes_on & !1,
            next => next.saturating_sub(1),
        }
    } else {
        whole.last
    };
    Ok(HashRange { first, last })
}
