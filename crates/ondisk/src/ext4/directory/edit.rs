//! Changing the records of a block. Every function validates the block first and changes nothing if
//! it is invalid. [`seal`](super::seal) writes the checksum at the end.

use extant_space::Result;
use zerocopy::{FromBytes, IntoBytes};

use super::record::{HEADER_BYTES, Record, Records, encode_length};
use super::{DirectoryFormat, Entry, NAME_BYTES_MAX, RawDirEntry, TypeField, record_bytes};
use crate::ext4::InodeNumber;
use crate::ext4::inode::FileType;
use crate::fault::corrupt;
use crate::narrow::fit8;

/// An entry to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewEntry<'a> {
    /// 1 to 255 bytes; see [`check_name`](super::check_name).
    pub name: &'a [u8],
    /// Inode that the record names.
    pub inode: InodeNumber,
    /// Its file type.
    pub file_type: FileType,
}

impl<'a> NewEntry<'a> {
    fn as_entry(&self) -> Entry<'a> {
        Entry {
            offset: 0,
            inode: self.inode,
            name: self.name,
            file_type: Some(self.file_type),
            type_code: self.file_type.directory_code(),
        }
    }
}

/// Puts `new` into the first record with room; returns its position, or `None` if there is no room.
/// Whether the name exists already is not checked.
///
/// # Errors
/// `Corrupt` if a record is invalid.
///
/// # Panics
/// If `block` is not a whole block or the name too long.
pub fn insert(
    block: &mut [u8],
    format: &DirectoryFormat,
    new: &NewEntry<'_>,
) -> Result<Option<usize>> {
    let Some(place) = first_room(block, format, new.name.len())? else {
        return Ok(None);
    };
    let (offset, used, bytes) = (place.offset, place.used_bytes(), place.bytes);
    if used > 0 {
        set_length(block, offset, used);
    }
    put(block, format, offset + used, bytes - used, &new.as_entry());
    Ok(Some(offset + used))
}

/// Whether [`insert`] would find room for a name of `name_bytes`.
///
/// # Errors
/// `Corrupt` when a record is wrong.
///
/// # Panics
/// When `block` is not a whole block.
pub fn has_room(block: &[u8], format: &DirectoryFormat, name_bytes: usize) -> Result<bool> {
    Ok(first_room(block, format, name_bytes)?.is_some())
}

/// Reads to the end, so that a block is found wrong before it is changed. Only lengths count.
fn first_room<'a>(
    block: &'a [u8],
    format: &DirectoryFormat,
    name_bytes: usize,
) -> Result<Option<Record<'a>>> {
    let needed = record_bytes(name_bytes);
    let mut place = None;
    for record in Records::new(block, format) {
        let record = record?;
        if place.is_none() && record.bytes - record.used_bytes() >= needed {
            place = Some(record);
        }
    }
    Ok(place)
}

/// Removes the entry at `offset`: its record joins the one before, or becomes free when it
/// is the first. The name is erased.
///
/// # Errors
/// `Corrupt` if the length of a record is wrong, or no entry exists there: in a damaged file system
/// the block may be part of something else as well, and change with that.
///
/// # Panics
/// When `block` is not a whole block.
pub fn remove(block: &mut [u8], format: &DirectoryFormat, offset: usize) -> Result<()> {
    let mut before = None;
    let mut found = None;
    for record in Records::new(block, format) {
        let record = record?;
        if record.offset == offset && !record.is_free() {
            found = Some((record.bytes, record.used_bytes()));
        } else if found.is_none() {
            before = Some((record.offset, record.bytes));
        }
    }
    let (bytes, used) = found.ok_or_else(|| {
        corrupt(
            "directory block",
            format_args!("no entry at byte {offset} any more"),
        )
    })?;
    block[offset..offset + used].fill(0);
    match before {
        Some((start, length)) => set_length(block, start, length + bytes),
        None => set_length(block, offset, bytes),
    }
    Ok(())
}

/// Makes the entry at `offset` name another inode.
///
/// # Panics
/// When `block` has no record there; the entry was found before.
pub fn retarget(
    block: &mut [u8],
    format: &DirectoryFormat,
    offset: usize,
    inode: InodeNumber,
    file_type: FileType,
) {
    let (raw, _) = RawDirEntry::mut_from_prefix(&mut block[offset..]).expect("a record");
    raw.inode.set(inode.0);
    if format.types == TypeField::Present {
        raw.file_type = file_type.directory_code();
    }
}

/// Makes a block of records that holds `new` and nothing else, and has its room at the end.
/// `false` when they do not fit; the block is then spoilt.
///
/// # Panics
/// When `block` is not a whole block or a name too long.
#[must_use]
pub fn fill<'a>(
    block: &mut [u8],
    format: &DirectoryFormat,
    new: impl IntoIterator<Item = NewEntry<'a>>,
) -> bool {
    repack(block, format, new.into_iter().map(|new| new.as_entry()))
}

/// The same with entries of other blocks. They keep their file type, also an unknown one. Without
/// entries the block is one free record.
///
/// # Panics
/// If `block` is not a whole block.
#[must_use]
pub fn repack<'a>(
    block: &mut [u8],
    format: &DirectoryFormat,
    kept: impl IntoIterator<Item = Entry<'a>>,
) -> bool {
    assert_eq!(block.len(), format.block_bytes as usize);
    block.fill(0);
    let end = format.records_end();
    let (mut last, mut at) = (0, 0);
    for entry in kept {
        let bytes = record_bytes(entry.name.len());
        if at + bytes > end {
            return false;
        }
        put(block, format, at, bytes, &entry);
        (last, at) = (at, at + bytes);
    }
    set_length(block, last, end - last);
    true
}

/// Makes the first block of a new directory: `.` and `..`.
///
/// # Panics
/// When `block` is not a whole block.
pub fn init_first(
    block: &mut [u8],
    format: &DirectoryFormat,
    own: InodeNumber,
    parent: InodeNumber,
) {
    let entries = [(&b"."[..], own), (b"..", parent)].map(|(name, inode)| NewEntry {
        name,
        inode,
        file_type: FileType::Directory,
    });
    let fits = fill(block, format, entries);
    assert!(fits, "a block holds two names");
}

fn put(block: &mut [u8], format: &DirectoryFormat, offset: usize, bytes: usize, new: &Entry<'_>) {
    assert!((1..=NAME_BYTES_MAX).contains(&new.name.len()));
    let raw = RawDirEntry {
        inode: new.inode.0.into(),
        rec_len: encode_length(bytes).into(),
        name_len: fit8(new.name.len()),
        file_type: match format.types {
            TypeField::Present => new.type_code,
            TypeField::Absent => 0,
        },
    };
    let record = &mut block[offset..offset + bytes];
    record[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
    let (name, padding) = record[HEADER_BYTES..].split_at_mut(new.name.len());
    name.copy_from_slice(new.name);
    // Up to the next multiple of 4, where the next record may begin.
    let padding_bytes = record_bytes(new.name.len()) - HEADER_BYTES - new.name.len();
    padding[..padding_bytes].fill(0);
}

fn set_length(block: &mut [u8], offset: usize, bytes: usize) {
    let (raw, _) = RawDirEntry::mut_from_prefix(&mut block[offset..]).expect("a record");
    raw.rec_len.set(encode_length(bytes));
}

#[cfg(test)]
mod tests {
    use super::super::{Tail, entries};
    use super::*;

    const FORMAT: DirectoryFormat = DirectoryFormat {
        block_bytes: 1024,
        tail: Tail::Checksum,
        types: TypeField::Present,
        inodes: 100,
    };

    fn file(name: &[u8]) -> NewEntry<'_> {
        NewEntry {
            name,
            inode: InodeNumber(12),
            file_type: FileType::Regular,
        }
    }

    #[test]
    fn has_room_predicts_insert() {
        let mut block = vec![0; 1024];
        init_first(&mut block, &FORMAT, InodeNumber(2), InodeNumber(2));
        let mut inserted = 0;
        while has_room(&block, &FORMAT, 200).unwrap() {
            insert(&mut block, &FORMAT, &file(&[b'a' + inserted; 200]))
                .unwrap()
                .unwrap();
            inserted += 1;
        }
        // Of 1012 bytes, 24 are taken by itself and its parent.
        assert_eq!(inserted, 4);
        assert_eq!(
            insert(&mut block, &FORMAT, &file(&[b'x'; 200])).unwrap(),
            None
        );
        assert!(has_room(&block, &FORMAT, 140).unwrap());
    }

    #[test]
    fn repacked_entry_keeps_a_type_that_is_not_known() {
        let mut block = vec![0; 1024];
        assert!(fill(
            &mut block,
            &FORMAT,
            [file(b"gone"), file(b"odd"), file(b"new")]
        ));
        remove(&mut block, &FORMAT, 0).unwrap();
        let at = record_bytes(4);
        block[at + 7] = 0x2A;
        let mut packed = vec![0xAA; 1024];
        let kept: Vec<_> = entries(&block, &FORMAT).map(Result::unwrap).collect();
        assert!(repack(&mut packed, &FORMAT, kept));
        let packed: Vec<_> = entries(&packed, &FORMAT)
            .map(Result::unwrap)
            .map(|entry| (entry.offset, entry.name, entry.type_code))
            .collect();
        assert_eq!(packed, [(0, &b"odd"[..], 0x2A), (12, b"new", 1)]);
    }
}
