//! Directory listings: records of names, with or without attributes.

use std::ops::ControlFlow;
use std::time::Duration;

use zerocopy::{Immutable, IntoBytes};

use super::attributes::EntryOut;
use crate::operations::{DirectorySink, Listed, LookupEntry, Result};

/// A record; the name follows, with zeros up to a multiple of [`RECORD_ALIGNMENT`].
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Dirent {
    pub ino: u64,
    pub off: u64,
    pub namelen: u32,
    pub typ: u32,
}

const RECORD_ALIGNMENT: usize = 8;

/// The content of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The name.
    Names,
    /// The name and the attributes, valid for this duration; each record counts as a lookup.
    Entries(Duration),
}

/// A buffer of records.
#[derive(Debug)]
pub(crate) struct Records<'a> {
    memory: &'a mut [u8],
    used: usize,
    detail: Detail,
}

impl<'a> Records<'a> {
    pub fn new(memory: &'a mut [u8], detail: Detail) -> Self {
        Self {
            memory,
            used: 0,
            detail,
        }
    }

    /// Length of the records, in bytes.
    pub fn used(&self) -> usize {
        self.used
    }
}

impl DirectorySink for Records<'_> {
    fn take(
        &mut self,
        listed: &Listed<'_>,
        look_up: &mut dyn FnMut() -> Result<LookupEntry>,
    ) -> ControlFlow<()> {
        let entry_len = match self.detail {
            Detail::Names => 0,
            Detail::Entries(_) => size_of::<EntryOut>(),
        };
        let name_end = entry_len + size_of::<Dirent>() + listed.name.len();
        let len = name_end.next_multiple_of(RECORD_ALIGNMENT);
        let Some(record) = self.memory[self.used..].get_mut(..len) else {
            return ControlFlow::Break(());
        };
        if let Detail::Entries(validity) = self.detail {
            // A node of 0 means a name without attributes; the kernel looks it up when necessary.
            let entry = match listed.name {
                b"." | b".." => EntryOut::default(),
                _ => look_up().map_or(EntryOut::default(), |entry| EntryOut::new(&entry, validity)),
            };
            record[..entry_len].copy_from_slice(entry.as_bytes());
        }
        let dirent = Dirent {
            ino: listed.inode,
            off: listed.cookie,
            namelen: listed.name.len() as u32,
            typ: (listed.file_type >> 12) & 0xf,
        };
        let name_start = entry_len + size_of::<Dirent>();
        record[entry_len..name_start].copy_from_slice(dirent.as_bytes());
        record[name_start..name_end].copy_from_slice(listed.name);
        record[name_end..].fill(0);
        self.used += len;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::operations::{Attributes, NodeId};

    const LISTED: Listed<'_> = Listed {
        name: b"abc",
        inode: 7,
        file_type: 0o100000,
        cookie: 9,
    };

    #[test]
    fn name_that_does_not_fit_is_not_taken_and_not_looked_up() {
        let mut memory = [0xee; 2 * 160 - 1];
        let mut records = Records::new(&mut memory, Detail::Entries(Duration::from_secs(5)));
        let mut lookups = 0;
        let mut look_up = || {
            lookups += 1;
            Ok(LookupEntry {
                node: NodeId(3),
                generation: 0,
                attributes: Attributes::default(),
            })
        };
        assert!(records.take(&LISTED, &mut look_up).is_continue());
        assert!(records.take(&LISTED, &mut look_up).is_break());
        assert_eq!(records.used(), 160);
        assert_eq!(lookups, 1);
        assert_eq!(memory[..8], 3_u64.to_ne_bytes());
        assert_eq!(memory[16..24], 5_u64.to_ne_bytes());
        assert_eq!(memory[128..136], 7_u64.to_ne_bytes());
        assert_eq!(memory[136..144], 9_u64.to_ne_bytes());
        assert_eq!(memory[144..148], 3_u32.to_ne_bytes());
        assert_eq!(memory[148..152], 8_u32.to_ne_bytes());
        assert_eq!(&memory[152..160], b"abc\0\0\0\0\0");
        assert_eq!(memory[160], 0xee);
    }

    #[test]
    fn dots_and_names_whose_lookup_fails_have_no_node() {
        let mut memory = [0xee; 3 * 160];
        let mut records = Records::new(&mut memory, Detail::Entries(Duration::ZERO));
        let dot = Listed {
            name: b".",
            ..LISTED
        };
        let never = &mut || panic!("looked up");
        assert!(records.take(&dot, never).is_continue());
        assert!(records.take(&LISTED, &mut || Err(Errno::IO)).is_continue());
        assert_eq!(memory[..8], [0; 8]);
        assert_eq!(memory[160..168], [0; 8]);
    }

    #[test]
    fn plain_record_is_never_looked_up() {
        let mut memory = [0xee; 32];
        let mut records = Records::new(&mut memory, Detail::Names);
        let never = &mut || panic!("looked up");
        assert!(records.take(&LISTED, never).is_continue());
        assert!(records.take(&LISTED, never).is_break());
        assert_eq!(records.used(), 32);
        assert_eq!(&memory[24..], b"abc\0\0\0\0\0");
    }
}
