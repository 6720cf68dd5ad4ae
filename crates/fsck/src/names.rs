//! Names that a directory has twice.
//!
//! Model: of every name a hash of 64 bits and its place are kept, for one directory at a time;
//! where hashes are the same, the names are read again.

use std::hash::{DefaultHasher, Hasher};

use extant_ondisk::ext4::directory::{Entry, RawDirEntry};
use extant_ondisk::ext4::{InodeNumber, PhysicalBlock};
use extant_space::Result;

use crate::checker::Check;
use crate::findings::{FindingKind, Location};
use crate::mapping::{Run, find_block};

/// An abbreviated name, for finding it again: 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KnownName {
    hash: u64,
    block: u32,
    /// Offset of the record, which begins in the first 64 KiB of its block: all there is.
    offset: u16,
    length: u8,
}

impl KnownName {
    /// That of an entry of block `logical` of its directory.
    pub(crate) fn of(entry: &Entry<'_>, logical: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(entry.name);
        Self {
            hash: hasher.finish(),
            block: logical as u32,
            offset: entry.offset as u16,
            length: entry.name.len() as u8,
        }
    }
}

impl Check<'_> {
    /// Finds duplicate names.
    pub(crate) fn check_names(
        &mut self,
        number: InodeNumber,
        runs: &[Run],
        mut names: Vec<KnownName>,
    ) -> Result<()> {
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0].hash == pair[1].hash) {
            let first = self.read_name(runs, &pair[0])?;
            let second = self.read_name(runs, &pair[1])?;
            if let (Some((_, first)), Some((block, name))) = (first, second)
                && first == name
            {
                let place = Location::inode(number).in_block(block).at_entry(&name);
                let words = "a name that the directory has already";
                self.findings.add(FindingKind::DuplicateName, place, words);
            }
        }
        Ok(())
    }

    /// Reads a name again, with its block.
    fn read_name(
        &self,
        runs: &[Run],
        known: &KnownName,
    ) -> Result<Option<(PhysicalBlock, Vec<u8>)>> {
        let Some(block) = find_block(runs, known.block.into()) else {
            return Ok(None);
        };
        let start = usize::from(known.offset) + size_of::<RawDirEntry>();
        let name = self
            .volume
            .part(block, start..start + usize::from(known.length))?;
        Ok(Some((block, name)))
    }
}
