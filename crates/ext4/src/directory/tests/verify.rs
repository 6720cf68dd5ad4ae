//! Verification of a whole directory by the invariants, independent of the code under test.

use std::collections::BTreeSet;

use extant_ondisk::ext4::directory::{
    HASH_END, HashVersion, IndexNode, entries, name_hash, verify,
};
use extant_ondisk::ext4::{InodeNumber, LogicalBlock};

use super::super::{Directory, DirectoryContext, Shape};
use super::{Memory, Names};

/// The shape of a valid directory.
#[derive(Debug, Default)]
pub(super) struct Verified {
    /// All names but `.` and `..`.
    pub(super) names: Names,
    /// Levels of nodes below the root; none without a tree.
    pub(super) levels: Option<u8>,
    /// Leaves that continue the hash of the one before.
    pub(super) continued: usize,
}

/// Everything about a directory.
///
/// # Panics
/// When it is not valid.
pub(super) fn verified(directory: &Directory<Memory>) -> Verified {
    let mut walk = Walk {
        context: &directory.context,
        memory: &directory.blocks,
        seen: BTreeSet::new(),
        result: Verified::default(),
        version: None,
    };
    assert_eq!(directory.blocks.shape, directory.context.flagged);
    match directory.context.flagged {
        Shape::Linear => walk.linear(),
        Shape::Tree => walk.tree(),
    }
    let blocks = directory.blocks.blocks.len() as u32;
    assert_eq!(
        walk.seen.len() as u32,
        blocks,
        "blocks that nothing leads to"
    );
    walk.result
}

struct Walk<'a> {
    context: &'a DirectoryContext,
    memory: &'a Memory,
    seen: BTreeSet<u32>,
    result: Verified,
    /// Set in a tree.
    version: Option<HashVersion>,
}

impl Walk<'_> {
    fn linear(&mut self) {
        for index in 0..self.memory.blocks.len() as u32 {
            self.records(index, 0, HASH_END);
        }
    }

    fn tree(&mut self) {
        let (format, rules) = (&self.context.format, self.context.tree.unwrap());
        self.seen.insert(0);
        let block = self.memory.blocks[0].clone();
        let (levels_max, seed) = (rules.levels_max, self.context.seed);
        let root = IndexNode::parse_root(&block, format, levels_max, seed).unwrap();
        self.version = Some(HashVersion {
            kind: root.hash_kind(),
            sign: rules.hash.sign,
        });
        self.result.levels = Some(root.levels());
        self.below(&root, root.levels(), 0, HASH_END);
    }

    /// The subtree of `node`. Its names have hashes from `low` (odd: continuation) to below `high`.
    fn below(&mut self, node: &IndexNode<'_>, levels: u8, low: u32, high: u32) {
        for (at, entry) in node.entries().enumerate() {
            let low = if at == 0 { low } else { entry.hash };
            let high = if at + 1 < node.len() {
                node.entry(at + 1).hash
            } else {
                high
            };
            assert!(low <= high, "hash {low:#x} before {high:#x}");
            if levels == 0 {
                self.result.continued += usize::from(low % 2 == 1);
                self.records(entry.block.0, low, high);
                continue;
            }
            assert!(self.seen.insert(entry.block.0));
            let block = self.memory.blocks[entry.block.0 as usize].clone();
            let (format, seed) = (&self.context.format, self.context.seed);
            let child = IndexNode::parse_node(&block, format, seed).unwrap();
            self.below(&child, levels - 1, low, high);
        }
    }

    fn records(&mut self, index: u32, low: u32, high: u32) {
        assert!(self.seen.insert(index), "block {index} twice");
        let (format, seed) = (&self.context.format, self.context.seed);
        let block = &self.memory.blocks[LogicalBlock(index).0 as usize];
        verify(block, format, seed).unwrap();
        for (number, entry) in entries(block, format).enumerate() {
            let entry = entry.unwrap();
            if self.version.is_none() && index == 0 && number < 2 {
                assert_eq!(entry.name, [&b"."[..], b".."][number]);
                continue;
            }
            let before = self.result.names.insert(entry.name.to_vec(), entry.inode);
            assert_eq!(
                before,
                None::<InodeNumber>,
                "{} twice",
                entry.name.escape_ascii()
            );
            if let Some(version) = self.version {
                let hash = name_hash(entry.name, version, self.context.tree.unwrap().seed).major;
                // An odd bound belongs to the even hash below, on both sides.
                let range = low & !1..=high.saturating_sub(1) & !1;
                assert!(
                    range.contains(&hash),
                    "hash {hash:#x} in {low:#x} to {high:#x}"
                );
            }
        }
    }
}
