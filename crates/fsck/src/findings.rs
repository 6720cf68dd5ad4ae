//! Findings: kind, location, message.
//!
//! Model: every finding is counted by its kind, and the first ones are kept with their text, so
//! that a badly damaged image needs no more memory than the limit.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use extant_ondisk::ext4::{GroupNumber, InodeNumber, PhysicalBlock};
use serde::{Serialize, Serializer};

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FindingKind {
    /// The superblock is invalid. Nothing else was checked.
    Superblock,
    /// A copy of the superblock is damaged, or describes another file system.
    Backup,
    /// The superblock counts free blocks or inodes wrongly.
    Totals,
    /// A structure needs a feature that is not enabled.
    Feature,
    /// A group descriptor contradicts itself or its checksum.
    Descriptor,
    /// A group descriptor has wrong counts.
    GroupCounts,
    /// The checksum of a block bitmap, or of an inode bitmap.
    BitmapChecksum,
    /// A bit past the end of a bitmap is clear.
    BitmapPadding,
    /// A block is used and not marked, or marked and not used.
    BlockBitmap,
    /// An inode is used and not marked, or marked and not used.
    InodeBitmap,
    /// A block belongs to two owners.
    SharedBlock,
    /// A field of an inode, or its checksum.
    Inode,
    /// An inode that is reserved for the file system, or is one of its own files.
    ReservedInode,
    /// The size of a file does not fit its blocks.
    Size,
    /// `i_blocks` differs from the blocks of the file.
    BlockCount,
    /// The extent tree, or the indirect blocks, of a file.
    Mapping,
    /// Extended attributes.
    Attributes,
    /// An attribute block, or the inode of a value, is counted wrongly.
    AttributeReferences,
    /// The list or the file of orphans.
    Orphan,
    /// The journal's inode or superblock.
    Journal,
    /// The inode that keeps room for the descriptor table.
    ResizeInode,
    /// The block of multiple-mount protection.
    Mmp,
    /// A block of a directory, or its checksum.
    DirectoryBlock,
    /// `.` or `..`.
    OwnEntries,
    /// An entry names an invalid inode.
    Entry,
    /// An entry has another type than its inode.
    EntryType,
    /// A name that its directory cannot have.
    Name,
    /// A name exists twice.
    DuplicateName,
    /// The hash tree of a directory.
    HashTree,
    /// A directory has a second name.
    DirectoryTwice,
    /// A file or directory cannot be reached from the root.
    Unreachable,
    /// An inode counts its links wrongly.
    Links,
}

/// Location of an error. Unknown parts are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Location {
    /// The group.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "group_number"
    )]
    pub group: Option<GroupNumber>,
    /// The inode.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "inode_number"
    )]
    pub inode: Option<InodeNumber>,
    /// The block on the device.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "block_number"
    )]
    pub block: Option<PhysicalBlock>,
    /// The name of a directory's entry; unprintable characters are escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<String>,
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its kind.
    pub kind: FindingKind,
    /// Where.
    pub place: Location,
    /// The description, without the location.
    pub words: String,
}

/// All that is wrong, in the order in which it was found.
#[derive(Debug)]
pub(crate) struct Findings {
    kept: Vec<Finding>,
    kept_max: usize,
    by_kind: BTreeMap<FindingKind, u64>,
}

impl Location {
    /// A group.
    pub fn group(group: GroupNumber) -> Self {
        Self {
            group: Some(group),
            ..Self::default()
        }
    }

    /// An inode.
    pub fn inode(inode: InodeNumber) -> Self {
        Self {
            inode: Some(inode),
            ..Self::default()
        }
    }

    /// A block.
    pub fn block(block: PhysicalBlock) -> Self {
        Self {
            block: Some(block),
            ..Self::default()
        }
    }

    /// The same, in a block.
    pub fn in_block(self, block: impl Into<Option<PhysicalBlock>>) -> Self {
        Self {
            block: block.into(),
            ..self
        }
    }

    /// The same, at an entry of a directory.
    pub fn at_entry(self, name: &[u8]) -> Self {
        Self {
            entry: Some(name.escape_ascii().to_string()),
            ..self
        }
    }
}

impl Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.group.map(|group| format!("group {group}")),
            self.inode.map(|inode| format!("inode {inode}")),
            self.block.map(|block| format!("block {block}")),
            self.entry.as_ref().map(|name| format!("entry \"{name}\"")),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

impl Display for Finding {
    /// `inode 12, block 34: description`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.place != Location::default() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.words)
    }
}

impl Findings {
    /// None yet; `kept_max` will be kept with their text.
    pub(crate) fn new(kept_max: usize) -> Self {
        Self {
            kept: Vec::new(),
            kept_max,
            by_kind: BTreeMap::new(),
        }
    }

    /// Takes one more.
    pub(crate) fn add(&mut self, kind: FindingKind, place: Location, words: impl Display) {
        *self.by_kind.entry(kind).or_default() += 1;
        if self.kept.len() < self.kept_max {
            let words = words.to_string();
            // Errors of a structure may name it themselves.
            let words = match words.strip_prefix(&format!("{place}: ")) {
                Some(rest) => rest.to_owned(),
                None => words,
            };
            self.kept.push(Finding { kind, place, words });
        }
    }

    pub(crate) fn into_parts(self) -> (Vec<Finding>, BTreeMap<FindingKind, u64>) {
        (self.kept, self.by_kind)
    }
}

fn group_number<S: Serializer>(value: &Option<GroupNumber>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|group| group.0).serialize(to)
}

fn inode_number<S: Serializer>(value: &Option<InodeNumber>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|inode| inode.0).serialize(to)
}

fn block_number<S: Serializer>(value: &Option<PhysicalBlock>, to: S) -> Result<S::Ok, S::Error> {
    value.map(|block| block.0).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_past_the_limit_are_counted_only() {
        let mut findings = Findings::new(2);
        for number in 1..=5 {
            let kind = if number == 5 {
                FindingKind::Size
            } else {
                FindingKind::Links
            };
            findings.add(kind, Location::inode(InodeNumber(number)), "wrong");
        }
        let (kept, by_kind) = findings.into_parts();
        assert_eq!(kept.len(), 2);
        assert_eq!(
            by_kind,
            BTreeMap::from([(FindingKind::Links, 4), (FindingKind::Size, 1)])
        );
    }

    #[test]
    fn line_of_a_finding_names_the_place_first() {
        let finding = Finding {
            kind: FindingKind::Entry,
            place: Location::inode(InodeNumber(12))
                .in_block(PhysicalBlock(34))
                .at_entry(b"a\n"),
            words: "names an unused inode".into(),
        };
        let line = "inode 12, block 34, entry \"a\\n\": names an unused inode";
        assert_eq!(finding.to_string(), line);
    }
}
