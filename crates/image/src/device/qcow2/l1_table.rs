//! The L1 table, completely in memory: at most 32 MiB, by the validation of the header.

use std::collections::BTreeSet;

use extant_space::Result;

use super::cluster_cache::DirtyRange;
use super::file::MetadataFile;
use crate::format::{Header, L1Entry};

pub(super) struct L1Table {
    /// Entries in file format; zero-padded to a whole chunk.
    entries: Vec<u64>,
    offset: u64,
    piece_bytes: u64,
    /// Numbers of pieces.
    dirty: BTreeSet<u64>,
}

impl L1Table {
    pub(super) fn load(file: &MetadataFile, header: &Header, piece_bytes: u64) -> Result<Self> {
        let bytes = u64::from(header.l1_entries) * 8;
        let mut table = vec![0; bytes.next_multiple_of(piece_bytes) as usize];
        file.read(header.l1_offset, &mut table)?;
        let (entries, _) = table.as_chunks();
        Ok(Self {
            entries: entries.iter().copied().map(u64::from_be_bytes).collect(),
            offset: header.l1_offset,
            piece_bytes,
            dirty: BTreeSet::new(),
        })
    }

    pub(super) fn get(&self, index: u64) -> L1Entry {
        L1Entry(self.entries[index as usize])
    }

    pub(super) fn set(&mut self, index: u64, entry: L1Entry) {
        self.entries[index as usize] = entry.raw();
        self.dirty.insert(index * 8 / self.piece_bytes);
    }

    /// Places of the L2 tables.
    pub(super) fn places(&self) -> impl Iterator<Item = u64> {
        let entries = self.entries.iter();
        let places = entries.map(|raw| L1Entry(*raw).offset());
        places.filter(|offset| *offset != 0)
    }

    pub(super) fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// A copy of all that is dirty; clean from now on.
    pub(super) fn take_dirty(&mut self) -> Vec<DirtyRange> {
        let entries = (self.piece_bytes / 8) as usize;
        let piece = |number: u64| {
            let first = number as usize * entries;
            let raw = self.entries[first..first + entries].iter();
            DirtyRange {
                offset: self.offset + number * self.piece_bytes,
                bytes: raw.flat_map(|raw| raw.to_be_bytes()).collect(),
            }
        };
        std::mem::take(&mut self.dirty)
            .into_iter()
            .map(piece)
            .collect()
    }

    /// Marks taken pieces as not written.
    pub(super) fn put_back(&mut self, pieces: &[DirtyRange]) {
        let numbers = pieces
            .iter()
            .map(|piece| (piece.offset - self.offset) / self.piece_bytes);
        self.dirty.extend(numbers);
    }
}
