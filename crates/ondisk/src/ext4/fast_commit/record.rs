//! The sequence of records in a block, before their contents are parsed.

use extant_space::{Error, Result};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    RawAddRange, RawDelRange, RawDentryInfo, RawFcInode, RawFcTail, RawHead, RawTagLength, Tag,
};
use crate::ext4::directory::NAME_BYTES_MAX;
use crate::ext4::{Inode, Layout};
use crate::fault::{corrupt, unsupported};
use crate::jbd2::Sequence;

pub(super) const TAG_BYTES: usize = size_of::<RawTagLength>();
const NAME: &str = "fast commit";

/// A record whose length its tag allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    tag: Tag,
    /// Tag, length and value.
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Tag of the record.
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// The transaction that a head names; `None` of other records.
    ///
    /// # Errors
    /// `Unsupported` for a head that asks for features.
    pub fn head(&self) -> Result<Option<Sequence>> {
        if self.tag != Tag::Head {
            return Ok(None);
        }
        let head = RawHead::ref_from_bytes(self.value()).expect("of a head's length");
        match head.fc_features.get() {
            0 => Ok(Some(Sequence(head.fc_tid.get()))),
            features => Err(unsupported(
                NAME,
                format_args!("fc_features is {features:#x}"),
            )),
        }
    }

    pub(super) fn tail(&self) -> Option<&'a RawFcTail> {
        (self.tag == Tag::Tail).then(|| {
            let (tail, _) = RawFcTail::ref_from_prefix(self.value()).expect("of a tail's length");
            tail
        })
    }

    /// The bytes that the commit's sum covers: of a tail, those before the sum.
    pub(super) fn summed(&self) -> &'a [u8] {
        match self.tail() {
            Some(tail) => &self.bytes[..TAG_BYTES + tail.fc_tid.as_bytes().len()],
            None => self.bytes,
        }
    }

    pub(super) fn value(&self) -> &'a [u8] {
        &self.bytes[TAG_BYTES..]
    }
}

/// The records of a block of the journal's last part.
pub fn records<'a>(block: &'a [u8], layout: &Layout) -> Records<'a> {
    Records {
        block,
        at: 0,
        inode_bytes: layout.inode_bytes().into(),
    }
}

/// Iterator of [`records`]; it ends after the first error, and where no tag fits any more.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    block: &'a [u8],
    at: usize,
    inode_bytes: usize,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.block[self.at..];
        let (header, after) = RawTagLength::ref_from_prefix(rest).ok()?;
        let record = self.read(header, rest, after.len());
        self.at = match &record {
            Ok(record) => self.at + record.bytes.len(),
            Err(_) => self.block.len(),
        };
        Some(record)
    }
}

impl<'a> Records<'a> {
    fn read(&self, header: &RawTagLength, rest: &'a [u8], room: usize) -> Result<Record<'a>> {
        let at = self.at;
        let wrong = |problem: std::fmt::Arguments<'_>| -> Error {
            corrupt(NAME, format_args!("record at byte {at}: {problem}"))
        };
        let number = header.fc_tag.get();
        let tag = Tag::from_raw(number).ok_or_else(|| wrong(format_args!("fc_tag is {number}")))?;
        let length = usize::from(header.fc_len.get());
        if length > room {
            return Err(wrong(format_args!(
                "fc_len is {length}, {room} bytes are left"
            )));
        }
        let (least, most) = self.lengths(tag);
        if !(least..=most).contains(&length) {
            return Err(wrong(format_args!(
                "fc_len is {length}, outside {least} to {most}"
            )));
        }
        Ok(Record {
            tag,
            bytes: &rest[..TAG_BYTES + length],
        })
    }

    /// How long the value of a tag may be.
    fn lengths(&self, tag: Tag) -> (usize, usize) {
        let block = self.block.len();
        let name = size_of::<RawDentryInfo>();
        let inode = size_of::<RawFcInode>();
        match tag {
            Tag::AddRange => (size_of::<RawAddRange>(), size_of::<RawAddRange>()),
            Tag::DelRange => (size_of::<RawDelRange>(), size_of::<RawDelRange>()),
            Tag::Creat | Tag::Link | Tag::Unlink => (name + 1, name + NAME_BYTES_MAX),
            Tag::Inode => (
                inode + usize::from(Inode::BASE_BYTES),
                inode + self.inode_bytes,
            ),
            Tag::Pad => (0, block),
            Tag::Tail => (size_of::<RawFcTail>(), block),
            Tag::Head => (size_of::<RawHead>(), size_of::<RawHead>()),
        }
    }
}
