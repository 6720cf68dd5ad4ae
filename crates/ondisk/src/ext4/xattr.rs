//! Extended attributes: names with values, in the inode and in a separate block.
//!
//! Model: both places hold a list of entries that grows from the front and values that grow from
//! the back. In the inode the list begins with a magic number after the fields; in a block, which
//! several inodes may share, with a header that has a reference count and hashes. The prefix of a
//! name is a number ([`NameIndex`]). With `ea_inode`, a large value is the contents of another
//! inode, which is recognised and kept.
//!
//! [`Attributes`] is such a list, read and validated. It borrows from the bytes; it is changed, and
//! written back as a whole.
//!
//! Invariants of a parsed list: names and values are in their area and do not overlap. Additionally
//! for a written list: entries of a block are sorted, and padding is zero.
//!
//! Format: docs/formats/ext4.md, "Extended attributes".

mod area;
mod block;
mod hash;
mod name;

use std::borrow::Cow;

use zerocopy::little_endian::{U16, U32};

pub use block::{XattrBlock, set_references};
pub use name::{NameIndex, XattrName};

use super::InodeNumber;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_xattr_ibody_header`: before the entries of an inode.
    pub struct RawXattrInodeHeader: 4 {
        0x0 h_magic: U32,
    }

    /// `struct ext4_xattr_header`: before the entries of a block.
    pub struct RawXattrHeader: 32 {
        0x00 h_magic: U32,
        0x04 h_refcount: U32,
        0x08 h_blocks: U32,
        0x0C h_hash: U32,
        0x10 h_checksum: U32,
        0x14 h_reserved: [U32; 3],
    }

    /// `struct ext4_xattr_entry` without the name.
    pub struct RawXattrEntry: 16 {
        0x0 e_name_len: u8,
        0x1 e_name_index: u8,
        0x2 e_value_offs: U16,
        0x4 e_value_inum: U32,
        0x8 e_value_size: U32,
        0xC e_hash: U32,
    }
}

/// `h_magic` of both headers.
pub const MAGIC: u32 = 0xEA02_0000;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrValue<'a> {
    /// Its bytes.
    Bytes(Cow<'a, [u8]>),
    /// It is the contents of an inode (`ea_inode`).
    Inode {
        /// That inode.
        inode: InodeNumber,
        /// Bytes of the value.
        bytes: u32,
    },
}

/// A name with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The name.
    pub name: XattrName<'a>,
    /// The value.
    pub value: XattrValue<'a>,
    /// `e_hash` as it was read; 0 in new structures.
    hash: u32,
}

/// The attributes of one place, in their order there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a> {
    list: Vec<Attribute<'a>>,
}

impl<'a> Attributes<'a> {
    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Attribute<'a>> {
        self.list.iter()
    }

    /// Whether there are none: the place is then not needed.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The value of the attribute `name`.
    pub fn get(&self, name: &XattrName<'_>) -> Option<&XattrValue<'a>> {
        self.list
            .iter()
            .find(|attribute| attribute.name == *name)
            .map(|attribute| &attribute.value)
    }

    /// Sets the value of the attribute `name`; an existing one keeps its position.
    pub fn set(&mut self, name: XattrName<'a>, value: impl Into<Cow<'a, [u8]>>) {
        let attribute = Attribute {
            name,
            value: XattrValue::Bytes(value.into()),
            hash: 0,
        };
        let known = self
            .list
            .iter_mut()
            .find(|known| known.name == attribute.name);
        match known {
            Some(known) => *known = attribute,
            None => self.list.push(attribute),
        }
    }

    /// Removes the attribute `name`; whether it existed.
    pub fn remove(&mut self, name: &XattrName<'_>) -> bool {
        let before = self.list.len();
        self.list.retain(|attribute| attribute.name != *name);
        self.list.len() < before
    }

    /// The same list, which borrows nothing.
    pub fn into_owned(self) -> Attributes<'static> {
        let own = |attribute: Attribute<'_>| Attribute {
            name: attribute.name.into_owned(),
            value: match attribute.value {
                XattrValue::Bytes(bytes) => XattrValue::Bytes(bytes.into_owned().into()),
                XattrValue::Inode { inode, bytes } => XattrValue::Inode { inode, bytes },
            },
            hash: attribute.hash,
        };
        Attributes {
            list: self.list.into_iter().map(own).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
