//! Entries and values of one area: read, validated, laid out again. Also the area in the inode.

use std::ops::Range;

use extant_space::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::hash::{self, NameBytes};
use super::{
    Attribute, Attributes, MAGIC, NameIndex, RawXattrEntry, RawXattrInodeHeader, XattrName,
    XattrValue,
};
use crate::ext4::{Inode, InodeNumber, Layout};
use crate::fault::corrupt;
use crate::narrow::{fit8, fit16, fit32};

const ENTRY_BYTES: usize = size_of::<RawXattrEntry>();
const INODE_HEADER_BYTES: usize = size_of::<RawXattrInodeHeader>();
/// Zeros after the last entry.
const END_BYTES: usize = 4;

/// Whether entries have hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hashes {
    /// All of them, as in a block.
    All,
    /// Only those whose value is in an inode, as in an inode.
    OfInodes,
}

impl<'a> Attributes<'a> {
    /// The attributes inside the inode with the given bytes; none where there is no room or
    /// no magic number.
    ///
    /// # Errors
    /// `Corrupt` with the entry and its error.
    ///
    /// # Panics
    /// When `bytes` are fewer than the layout's inodes have.
    pub fn parse_inode(bytes: &'a [u8], inode: &Inode, layout: &Layout) -> Result<Self> {
        let area = &bytes[inode_area(inode, layout)];
        match RawXattrInodeHeader::ref_from_prefix(area) {
            Ok((header, _)) if header.h_magic.get() == MAGIC => {
                let name = "attributes in the inode";
                Self::parse(name, area, INODE_HEADER_BYTES, INODE_HEADER_BYTES)
            }
            _ => Ok(Self::default()),
        }
    }

    /// Bytes that the list takes inside an inode, 0 for none.
    pub fn inode_bytes(&self) -> usize {
        if self.is_empty() {
            0
        } else {
            INODE_HEADER_BYTES + self.listed_bytes()
        }
    }

    /// Bytes for attributes inside an inode.
    pub fn inode_room(inode: &Inode, layout: &Layout) -> usize {
        inode_area(inode, layout).len()
    }

    /// Writes the list into the bytes of the inode, which must be sealed after that.
    ///
    /// # Errors
    /// `NoSpace` when they do not fit. Nothing has changed then.
    ///
    /// # Panics
    /// When `bytes` are fewer than the layout's inodes have.
    pub fn write_inode(&self, bytes: &mut [u8], inode: &Inode, layout: &Layout) -> Result<()> {
        let area = &mut bytes[inode_area(inode, layout)];
        if self.inode_bytes() > area.len() {
            return Err(no_space(self.inode_bytes(), area.len()));
        }
        area.fill(0);
        if !self.is_empty() {
            let magic = RawXattrInodeHeader {
                h_magic: MAGIC.into(),
            };
            area[..INODE_HEADER_BYTES].copy_from_slice(magic.as_bytes());
            self.lay_out(
                area,
                INODE_HEADER_BYTES,
                INODE_HEADER_BYTES,
                Hashes::OfInodes,
            );
        }
        Ok(())
    }

    /// Bytes of entries, their end and values.
    pub(super) fn listed_bytes(&self) -> usize {
        let of_one = |attribute: &Attribute<'_>| {
            let value = match &attribute.value {
                XattrValue::Bytes(bytes) => bytes.len().next_multiple_of(4),
                XattrValue::Inode { .. } => 0,
            };
            entry_bytes(attribute.name.rest.len()) + value
        };
        self.list.iter().map(of_one).sum::<usize>() + END_BYTES
    }

    /// Reads the entries of `area` from `first` on, with values counted from `base`.
    pub(super) fn parse(
        place: &str,
        area: &'a [u8],
        first: usize,
        base: usize,
    ) -> Result<Attributes<'a>> {
        let mut list = Vec::new();
        let mut values: Vec<Range<usize>> = Vec::new();
        let mut at = first;
        loop {
            let number = list.len();
            let wrong = |problem: std::fmt::Arguments<'_>| -> Error {
                corrupt(place, format_args!("entry {number}: {problem}"))
            };
            let end = area.get(at..at + END_BYTES);
            let end = end.ok_or_else(|| wrong(format_args!("no end of the list")))?;
            if end == [0; END_BYTES] {
                at += END_BYTES;
                break;
            }
            let (raw, rest) = RawXattrEntry::ref_from_prefix(&area[at..])
                .map_err(|_| wrong(format_args!("no room for an entry")))?;
            let length = usize::from(raw.e_name_len);
            let name = rest.get(..length);
            let name = name.ok_or_else(|| wrong(format_args!("e_name_len is {length}")))?;
            if name.contains(&0) {
                return Err(wrong(format_args!("a zero in the name")));
            }
            // Written again with an empty value, it would be the end of the list.
            if name.is_empty() && raw.e_name_index == 0 {
                return Err(wrong(format_args!("no name")));
            }
            let value = read_value(raw, area, base).map_err(|problem| {
                wrong(format_args!(
                    "{problem} of {} bytes",
                    raw.e_value_size.get()
                ))
            })?;
            if let (XattrValue::Bytes(bytes), offset) = (&value, raw.e_value_offs.get()) {
                let start = base + usize::from(offset);
                if !bytes.is_empty() {
                    values.push(start..start + bytes.len().next_multiple_of(4));
                }
            }
            list.push(Attribute {
                name: XattrName {
                    index: NameIndex(raw.e_name_index),
                    rest: name.into(),
                },
                value,
                hash: raw.e_hash.get(),
            });
            at += entry_bytes(length);
        }
        check_values(place, &mut values, at, area.len())?;
        Ok(Self { list })
    }

    /// Writes the list into `area` and zeros the rest: entries from `first` on, values from the
    /// end. There is room.
    pub(super) fn lay_out(&self, area: &mut [u8], first: usize, base: usize, hashes: Hashes) {
        let (mut at, mut values) = (first, area.len());
        for attribute in &self.list {
            let name = &attribute.name.rest;
            let mut raw = RawXattrEntry {
                e_name_len: fit8(name.len()),
                e_name_index: attribute.name.index.0,
                e_value_offs: 0.into(),
                e_value_inum: 0.into(),
                e_value_size: 0.into(),
                e_hash: attribute.entry_hash(hashes).into(),
            };
            match &attribute.value {
                XattrValue::Bytes(bytes) => {
                    raw.e_value_size.set(fit32(bytes.len()));
                    if !bytes.is_empty() {
                        values -= bytes.len().next_multiple_of(4);
                        raw.e_value_offs.set(fit16(values - base));
                        area[values..values + bytes.len()].copy_from_slice(bytes);
                    }
                }
                XattrValue::Inode { inode, bytes } => {
                    raw.e_value_inum.set(inode.0);
                    raw.e_value_size.set(*bytes);
                }
            }
            area[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
            area[at + ENTRY_BYTES..][..name.len()].copy_from_slice(name);
            at += entry_bytes(name.len());
        }
        assert!(at + END_BYTES <= values, "attributes were measured before");
    }

    /// Validates the hashes as e2fsck does: those that are stored must be right.
    ///
    /// # Errors
    /// `Corrupt` with the name whose hash is wrong.
    pub fn check_hashes(&self) -> Result<()> {
        for Attribute { name, value, hash } in &self.list {
            if *hash != 0 && !hash::is_right(*hash, &name.rest, value) {
                let shown = name.full().escape_ascii().to_string();
                let problem = format_args!("e_hash is {hash:#x}");
                return Err(corrupt(format_args!("attribute {shown}"), problem));
            }
        }
        Ok(())
    }
}

impl Attribute<'_> {
    /// Whether `e_hash` is right for a value in an inode, which keeps `value_hash` of the value
    /// in its `i_atime`.
    pub fn is_hash_of_inode(&self, value_hash: u32) -> bool {
        let value = XattrValue::Bytes(value_hash.to_le_bytes().to_vec().into());
        hash::is_right(self.hash, &self.name.rest, &value)
    }

    pub(super) fn entry_hash(&self, hashes: Hashes) -> u32 {
        match (&self.value, hashes) {
            (XattrValue::Inode { .. }, _) => self.hash,
            (XattrValue::Bytes(_), Hashes::OfInodes) => 0,
            (XattrValue::Bytes(bytes), Hashes::All) => {
                hash::of_entry(&self.name.rest, bytes, NameBytes::Unsigned)
            }
        }
    }
}

/// The attribute area of an inode: from the end of its fields to its own.
fn inode_area(inode: &Inode, layout: &Layout) -> Range<usize> {
    let end = usize::from(layout.inode_bytes());
    let start = usize::from(Inode::BASE_BYTES + inode.extra_isize());
    // An inode that uses none of its extra bytes has no fields that say so.
    if inode.extra_isize() == 0 {
        end..end
    } else {
        start.min(end)..end
    }
}

fn read_value<'a>(
    raw: &RawXattrEntry,
    area: &'a [u8],
    base: usize,
) -> Result<XattrValue<'a>, &'static str> {
    let bytes = raw.e_value_size.get();
    if let Some(inode) = InodeNumber::new(raw.e_value_inum.get()) {
        return Ok(XattrValue::Inode { inode, bytes });
    }
    if bytes == 0 {
        return Ok(XattrValue::Bytes(b"".into()));
    }
    let start = base + usize::from(raw.e_value_offs.get());
    let room = area.len().saturating_sub(start);
    if bytes as usize > room || (bytes as usize).next_multiple_of(4) > room {
        return Err("no room for a value");
    }
    Ok(XattrValue::Bytes(
        area[start..start + bytes as usize].into(),
    ))
}

/// Values are after the list, whose end is `list_end`, and do not overlap.
fn check_values(
    place: &str,
    values: &mut [Range<usize>],
    list_end: usize,
    area_end: usize,
) -> Result<()> {
    values.sort_by_key(|value| value.start);
    let mut free = list_end;
    for value in values.iter() {
        if value.start < free || value.end > area_end {
            return Err(corrupt(
                place,
                format_args!(
                    "a value at byte {} overlaps the data before it",
                    value.start
                ),
            ));
        }
        free = value.end;
    }
    Ok(())
}

fn entry_bytes(name_bytes: usize) -> usize {
    (ENTRY_BYTES + name_bytes).next_multiple_of(4)
}

pub(super) fn no_space(needed: usize, room: usize) -> Error {
    Error::new(ErrorKind::NoSpace).detail(format!(
        "attributes of {needed} bytes do not fit {room} bytes"
    ))
}
