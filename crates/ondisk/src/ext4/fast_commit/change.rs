//! Changes that records describe.

use extant_space::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::record::Record;
use super::{RawAddRange, RawDelRange, RawDentryInfo, RawFcInode, Tag};
use crate::ext4::directory::is_plain;
use crate::ext4::extent::{LOGICAL_END, LeafEntry};
use crate::ext4::{InodeNumber, Layout, LogicalBlock};
use crate::fault::corrupt;

/// Change of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// The inode was made under it.
    Create,
    /// The inode got it besides others.
    Link,
    /// The inode lost it.
    Unlink,
}

/// A change of the file system since the last commit of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// These blocks of the file are mapped, in this state.
    AddRange {
        /// The file.
        inode: InodeNumber,
        /// The blocks.
        extent: LeafEntry,
    },
    /// These blocks of the file are unmapped.
    DelRange {
        /// The file.
        inode: InodeNumber,
        /// The first.
        start: LogicalBlock,
        /// How many, at least 1.
        blocks: u32,
    },
    /// A name in a directory.
    Name {
        /// The change of the name.
        change: NameChange,
        /// The directory.
        parent: InodeNumber,
        /// Inode that the name refers to, or referred to.
        inode: InodeNumber,
        /// 1 to 255 bytes.
        name: &'a [u8],
    },
    /// The fields of an inode.
    Inode {
        /// The inode.
        inode: InodeNumber,
        /// Its first bytes as in the inode table, 128 or more. The map of its blocks in them is
        /// not to be trusted, ranges are; and its sum is not kept right.
        bytes: &'a [u8],
    },
}

impl<'a> Record<'a> {
    /// The change it stands for; `None` of a head, a tail and padding.
    ///
    /// # Errors
    /// `Corrupt` when it speaks of inodes or blocks that do not exist, or of no name.
    pub fn change(&self, layout: &Layout) -> Result<Option<Change<'a>>> {
        let name_change = match self.tag() {
            Tag::AddRange => return self.add_range(layout).map(Some),
            Tag::DelRange => return self.del_range(layout).map(Some),
            Tag::Inode => return self.inode(layout).map(Some),
            Tag::Head | Tag::Pad | Tag::Tail => return Ok(None),
            Tag::Creat => NameChange::Create,
            Tag::Link => NameChange::Link,
            Tag::Unlink => NameChange::Unlink,
        };
        self.name(name_change, layout).map(Some)
    }

    fn add_range(&self, layout: &Layout) -> Result<Change<'a>> {
        let raw = RawAddRange::ref_from_bytes(self.value()).expect("of its tag's length");
        let inode = self.number(raw.fc_ino.get(), layout)?;
        let extent = LeafEntry::decode(&raw.fc_ex);
        let blocks = extent.blocks.into();
        if blocks == 0 || extent.logical_end() > LOGICAL_END {
            let start = extent.logical;
            return Err(self.wrong(format_args!("{blocks} blocks from {start} of a file")));
        }
        if !layout.holds(extent.physical, blocks) {
            let start = extent.physical;
            return Err(self.wrong(format_args!(
                "{blocks} blocks from {start}, outside the file system"
            )));
        }
        Ok(Change::AddRange { inode, extent })
    }

    fn del_range(&self, layout: &Layout) -> Result<Change<'a>> {
        let raw = RawDelRange::ref_from_bytes(self.value()).expect("of its tag's length");
        let inode = self.number(raw.fc_ino.get(), layout)?;
        let (start, blocks) = (raw.fc_lblk.get(), raw.fc_len.get());
        // Cutting a file takes all blocks up to the last number that there is.
        if blocks == 0 || u64::from(start) + u64::from(blocks) > LOGICAL_END + 1 {
            return Err(self.wrong(format_args!("{blocks} blocks from {start} of a file")));
        }
        Ok(Change::DelRange {
            inode,
            start: LogicalBlock(start),
            blocks,
        })
    }

    fn name(&self, change: NameChange, layout: &Layout) -> Result<Change<'a>> {
        let (raw, name) =
            RawDentryInfo::ref_from_prefix(self.value()).expect("of its tag's length");
        if !is_plain(name) || name == b"." || name == b".." {
            return Err(self.wrong(format_args!("\"{}\" is no name", name.escape_ascii())));
        }
        Ok(Change::Name {
            change,
            parent: self.number(raw.fc_parent_ino.get(), layout)?,
            inode: self.number(raw.fc_ino.get(), layout)?,
            name,
        })
    }

    fn inode(&self, layout: &Layout) -> Result<Change<'a>> {
        let (raw, bytes) = RawFcInode::ref_from_prefix(self.value()).expect("of its tag's length");
        let inode = self.number(raw.fc_ino.get(), layout)?;
        Ok(Change::Inode { inode, bytes })
    }

    fn number(&self, number: u32, layout: &Layout) -> Result<InodeNumber> {
        let most = layout.inodes();
        InodeNumber::new(number)
            .filter(|number| number.0 <= most)
            .ok_or_else(|| self.wrong(format_args!("names inode {number}, of {most}")))
    }

    fn wrong(&self, problem: std::fmt::Arguments<'_>) -> Error {
        corrupt(format_args!("fast commit {:?}", self.tag()), problem)
    }
}

impl Change<'_> {
    pub(super) fn tag(&self) -> Tag {
        match self {
            Self::AddRange { .. } => Tag::AddRange,
            Self::DelRange { .. } => Tag::DelRange,
            Self::Inode { .. } => Tag::Inode,
            Self::Name { change, .. } => match change {
                NameChange::Create => Tag::Creat,
                NameChange::Link => Tag::Link,
                NameChange::Unlink => Tag::Unlink,
            },
        }
    }

    /// The value of its record, in two parts.
    pub(super) fn value(&self) -> (Vec<u8>, &[u8]) {
        match *self {
            Self::AddRange { inode, extent } => {
                let raw = RawAddRange {
                    fc_ino: inode.0.into(),
                    fc_ex: extent.encode(),
                };
                (raw.as_bytes().into(), &[])
            }
            Self::DelRange {
                inode,
                start,
                blocks,
            } => {
                let raw = RawDelRange {
                    fc_ino: inode.0.into(),
                    fc_lblk: start.0.into(),
                    fc_len: blocks.into(),
                };
                (raw.as_bytes().into(), &[])
            }
            Self::Name {
                parent,
                inode,
                name,
                ..
            } => {
                let raw = RawDentryInfo {
                    fc_parent_ino: parent.0.into(),
                    fc_ino: inode.0.into(),
                };
                (raw.as_bytes().into(), name)
            }
            Self::Inode { inode, bytes } => {
                let raw = RawFcInode {
                    fc_ino: inode.0.into(),
                };
                (raw.as_bytes().into(), bytes)
            }
        }
    }
}
