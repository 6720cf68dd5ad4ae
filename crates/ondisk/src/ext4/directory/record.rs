//! Records, read one after another.

use extant_space::{Error, Result};
use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use super::{DirectoryFormat, TypeField};
use crate::ext4::InodeNumber;
use crate::ext4::inode::FileType;
use crate::fault::corrupt;
use crate::structure::on_disk;

on_disk! {
    /// `struct ext4_dir_entry_2` without the name.
    pub struct RawDirEntry: 8 {
        0x0 inode: U32,
        0x4 rec_len: U16,
        0x6 name_len: u8,
        0x7 file_type: u8,
    }
}

/// Bytes of the longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of the shortest encrypted name: a block of the cipher.
pub const ENCRYPTED_NAME_BYTES_MIN: usize = 16;
pub(super) const HEADER_BYTES: usize = size_of::<RawDirEntry>();
/// A record with the shortest name; a free one is not shorter.
const RECORD_BYTES_MIN: usize = record_bytes(1);

/// A record in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Offset of its record in the block.
    pub offset: usize,
    /// The inode it names.
    pub inode: InodeNumber,
    /// Its name, `.` and `..` among them.
    pub name: &'a [u8],
    /// Type of the named file, if the record has it.
    pub file_type: Option<FileType>,
    /// The byte of the type, 0 if records have none.
    pub type_code: u8,
}

/// Bytes that a record takes at least for a name of `name_bytes`.
pub const fn record_bytes(name_bytes: usize) -> usize {
    (HEADER_BYTES + name_bytes).next_multiple_of(4)
}

/// The records in use of a block with records, in order.
///
/// # Panics
/// When `block` is not a whole block.
pub fn entries<'a>(block: &'a [u8], format: &DirectoryFormat) -> Entries<'a> {
    Entries {
        records: Records::new(block, format),
        form: NameForm::Plain,
    }
}

/// The same for a block of an encrypted directory: names are any bytes, and at least
/// [`ENCRYPTED_NAME_BYTES_MIN`] of them, but for `.` and `..`.
///
/// # Panics
/// When `block` is not a whole block.
pub fn encrypted_entries<'a>(block: &'a [u8], format: &DirectoryFormat) -> Entries<'a> {
    Entries {
        records: Records::new(block, format),
        form: NameForm::Encrypted,
    }
}

/// The entry with the given name; `None` if there is none. For other records only the lengths are
/// checked.
///
/// # Errors
/// `Corrupt` if a record before it has an impossible end, or the entry is invalid.
///
/// # Panics
/// If `block` is not a whole block.
pub fn find<'a>(
    block: &'a [u8],
    format: &DirectoryFormat,
    name: &[u8],
) -> Result<Option<Entry<'a>>> {
    for record in Records::new(block, format) {
        let record = record?;
        // Names of a directory often begin alike, and end differently.
        if record.name.last() == name.last()
            && record.name == name
            && let Some(entry) = record.entry(format)?
        {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Iterator of [`entries`]; it ends after the first error.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    records: Records<'a>,
    form: NameForm,
}

/// The bytes that a name may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameForm {
    /// Any bytes but `/` and zero.
    Plain,
    /// Any bytes.
    Encrypted,
}

impl NameForm {
    fn allows(self, name: &[u8]) -> bool {
        match self {
            Self::Plain => !name.is_empty() && is_plain(name),
            Self::Encrypted => {
                name.len() >= ENCRYPTED_NAME_BYTES_MIN || matches!(name, b"." | b"..")
            }
        }
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let record = self.records.next()?;
            match record.and_then(|record| record.entry_with(&self.records.format, self.form)) {
                Ok(Some(entry)) => return Some(Ok(entry)),
                Ok(None) => continue,
                Err(error) => {
                    self.records.at = self.records.end;
                    return Some(Err(error));
                }
            }
        }
    }
}

/// A record, in use or not. It is inside the block; its contents are unvalidated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) offset: usize,
    pub(super) bytes: usize,
    inode: Option<InodeNumber>,
    /// Nothing when it is free.
    name: &'a [u8],
    type_code: u8,
}

impl<'a> Record<'a> {
    pub(super) fn is_free(&self) -> bool {
        self.inode.is_none()
    }

    /// Bytes that its entry needs.
    pub(super) fn used_bytes(&self) -> usize {
        if self.is_free() {
            0
        } else {
            record_bytes(self.name.len())
        }
    }

    /// Its entry; `None` when it is free.
    pub(super) fn entry(&self, format: &DirectoryFormat) -> Result<Option<Entry<'a>>> {
        self.entry_with(format, NameForm::Plain)
    }

    fn entry_with(&self, format: &DirectoryFormat, form: NameForm) -> Result<Option<Entry<'a>>> {
        let Some(inode) = self.inode else {
            return Ok(None);
        };
        if inode.0 > format.inodes {
            let most = format.inodes;
            return Err(wrong(
                self.offset,
                format_args!("inode is {inode}, of {most}"),
            ));
        }
        if !form.allows(self.name) {
            let shown = self.name.escape_ascii();
            return Err(wrong(self.offset, format_args!("\"{shown}\" is no name")));
        }
        let type_code = match format.types {
            TypeField::Present => self.type_code,
            TypeField::Absent => 0,
        };
        Ok(Some(Entry {
            offset: self.offset,
            inode,
            name: self.name,
            file_type: FileType::from_directory_code(type_code),
            type_code,
        }))
    }
}

/// All records of a block.
#[derive(Clone, Debug)]
pub(super) struct Records<'a> {
    block: &'a [u8],
    format: DirectoryFormat,
    at: usize,
    end: usize,
}

impl<'a> Records<'a> {
    pub(super) fn new(block: &'a [u8], format: &DirectoryFormat) -> Self {
        assert_eq!(block.len(), format.block_bytes as usize);
        Self {
            block,
            format: *format,
            at: 0,
            end: format.records_end(),
        }
    }

    /// Those of a hash tree's root, of which `..` takes in all of the tree and goes to the
    /// end, sum or not.
    pub(super) fn of_root(block: &'a [u8], format: &DirectoryFormat) -> Self {
        Self {
            end: block.len(),
            ..Self::new(block, format)
        }
    }

    // Inlined, a walk keeps its record in registers and takes half the time.
    #[inline(always)]
    fn read(&self) -> Result<Record<'a>> {
        let at = self.at;
        let left = self.end - at;
        let (raw, rest) = RawDirEntry::ref_from_prefix(&self.block[at..self.end])
            .map_err(|_| wrong(at, format_args!("only {left} bytes are left")))?;
        let bytes = decode_length(raw.rec_len.get(), self.format.block_bytes);
        let inode = InodeNumber::new(raw.inode.get());
        // A free record may contain the rest of an old name, which is ignored.
        let name_bytes = inode.map_or(0, |_| usize::from(raw.name_len));
        let least = record_bytes(name_bytes).max(RECORD_BYTES_MIN);
        if !bytes.is_multiple_of(4) || bytes > left || bytes < least {
            return Err(wrong_length(at, bytes, least, left));
        }
        Ok(Record {
            offset: at,
            bytes,
            inode,
            name: &rest[..name_bytes],
            type_code: raw.file_type,
        })
    }
}

#[cold]
fn wrong(at: usize, problem: std::fmt::Arguments<'_>) -> Error {
    corrupt(
        "directory block",
        format_args!("record at byte {at}: {problem}"),
    )
}

#[cold]
fn wrong_length(at: usize, bytes: usize, least: usize, left: usize) -> Error {
    if !bytes.is_multiple_of(4) {
        return wrong(at, format_args!("rec_len is {bytes}, not a multiple of 4"));
    }
    if bytes > left {
        return wrong(
            at,
            format_args!("rec_len is {bytes}, {left} bytes are left"),
        );
    }
    wrong(at, format_args!("rec_len is {bytes}, less than {least}"))
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.end {
            return None;
        }
        let record = self.read();
        self.at = match &record {
            Ok(record) => record.offset + record.bytes,
            Err(_) => self.end,
        };
        Some(record)
    }
}

pub(in crate::ext4) fn is_plain(name: &[u8]) -> bool {
    !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// The meaning of `rec_len`: in blocks of 64 KiB, a record may be longer than 16 bits say.
pub(super) fn decode_length(stored: u16, block_bytes: u32) -> usize {
    const RECORD_BYTES_MAX: u32 = 1 << 16;
    match stored {
        0 | u16::MAX if block_bytes == RECORD_BYTES_MAX => RECORD_BYTES_MAX as usize,
        stored => stored.into(),
    }
}

/// Value of `rec_len` for a record of `bytes`.
///
/// # Panics
/// When it cannot be the length of a record.
pub(super) fn encode_length(bytes: usize) -> u16 {
    assert!(bytes.is_multiple_of(4) && (1..=1 << 16).contains(&bytes));
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
