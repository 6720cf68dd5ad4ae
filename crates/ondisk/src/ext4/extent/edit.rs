//! Changing the entries of a node.
//!
//! Only moves of bytes: the engine decides the places of entries and the splits and merges of
//! nodes. The creator of an [`ExtentNodeMut`] has parsed the node, or makes a new one.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{ENTRY_BYTES, IndexEntry, LeafEntry, MAGIC, RawExtentHeader, capacity, node};
use crate::ext4::InodeSeed;
use crate::narrow::fit16;

/// The bytes of a node, to be changed.
#[derive(Debug)]
pub struct ExtentNodeMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> ExtentNodeMut<'a> {
    /// A node that was parsed.
    ///
    /// # Panics
    /// When it cannot have been.
    #[inline]
    pub fn new(bytes: &'a mut [u8]) -> Self {
        let node = Self { bytes };
        let header = node.header();
        assert_eq!(header.eh_magic.get(), MAGIC, "a node that was not parsed");
        assert!(header.eh_max.get() <= capacity(node.bytes.len()));
        assert!(header.eh_entries.get() <= header.eh_max.get());
        node
    }

    /// Makes `bytes`, all of them, a node without entries.
    pub fn init(bytes: &'a mut [u8], depth: u16) -> Self {
        bytes.fill(0);
        let mut header = RawExtentHeader::new_zeroed();
        header.eh_magic.set(MAGIC);
        header.eh_max.set(capacity(bytes.len()));
        header.eh_depth.set(depth);
        bytes[..ENTRY_BYTES].copy_from_slice(header.as_bytes());
        Self { bytes }
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.header().eh_entries.get().into()
    }

    /// Whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether no entry fits any more.
    pub fn is_full(&self) -> bool {
        self.len() == usize::from(self.header().eh_max.get())
    }

    /// Sets the depth, when a root grows or shrinks by a level.
    pub fn set_depth(&mut self, depth: u16) {
        self.header_mut().eh_depth.set(depth);
    }

    /// Replaces the extent at `index`.
    ///
    /// # Panics
    /// In a node above the leaves, past the last entry, and when it cannot be stored.
    #[inline]
    pub fn set_leaf(&mut self, index: usize, entry: &LeafEntry) {
        assert_eq!(self.depth(), 0);
        self.set(index, entry.encode().as_bytes());
    }

    /// Replaces the reference at `index`.
    ///
    /// # Panics
    /// In a leaf, past the last entry, and when it cannot be stored.
    #[inline]
    pub fn set_index(&mut self, index: usize, entry: &IndexEntry) {
        assert!(self.depth() > 0);
        self.set(index, entry.encode().as_bytes());
    }

    /// Inserts an extent before entry `index`.
    ///
    /// # Panics
    /// When the node is full, and as [`set_leaf`](Self::set_leaf).
    #[inline]
    pub fn insert_leaf(&mut self, index: usize, entry: &LeafEntry) {
        self.make_room(index);
        self.set_leaf(index, entry);
    }

    /// Inserts a reference before entry `index`.
    ///
    /// # Panics
    /// When the node is full, and as [`set_index`](Self::set_index).
    #[inline]
    pub fn insert_index(&mut self, index: usize, entry: &IndexEntry) {
        self.make_room(index);
        self.set_index(index, entry);
    }

    /// Removes the entries of `range`.
    ///
    /// # Panics
    /// When there are not that many.
    pub fn remove(&mut self, range: std::ops::Range<usize>) {
        let count = self.len();
        assert!(range.start <= range.end && range.end <= count);
        let end = offset(count);
        self.bytes
            .copy_within(offset(range.end)..end, offset(range.start));
        self.set_len(count - range.len());
    }

    /// Moves the entries from `index` on to the end of `other`, which has the same depth.
    ///
    /// # Panics
    /// When they do not fit there, or depths differ.
    pub fn move_tail(&mut self, index: usize, other: &mut ExtentNodeMut<'_>) {
        assert_eq!(self.depth(), other.depth());
        let (count, before) = (self.len(), other.len());
        let moved = count
            .checked_sub(index)
            .expect("an index among the entries");
        assert!(before + moved <= usize::from(other.header().eh_max.get()));
        other.bytes[offset(before)..offset(before + moved)]
            .copy_from_slice(&self.bytes[offset(index)..offset(count)]);
        other.set_len(before + moved);
        self.set_len(index);
    }

    /// Writes the sum at the end of a block; not for a root, which the inode's sum covers.
    pub fn seal(&mut self, seed: Option<InodeSeed>) {
        let Some(seed) = seed else { return };
        let tail = node::tail_offset(self.bytes);
        let (_, sum) = node::sums(self.bytes, seed);
        self.bytes[tail..tail + 4].copy_from_slice(&sum.to_le_bytes());
    }

    fn depth(&self) -> u16 {
        self.header().eh_depth.get()
    }

    fn header(&self) -> &RawExtentHeader {
        let (header, _) = RawExtentHeader::ref_from_prefix(self.bytes).expect("12 bytes");
        header
    }

    fn header_mut(&mut self) -> &mut RawExtentHeader {
        let (header, _) = RawExtentHeader::mut_from_prefix(self.bytes).expect("12 bytes");
        header
    }

    fn set_len(&mut self, count: usize) {
        self.header_mut().eh_entries.set(fit16(count));
    }

    fn set(&mut self, index: usize, entry: &[u8]) {
        assert!(index < self.len());
        self.bytes[offset(index)..offset(index + 1)].copy_from_slice(entry);
    }

    fn make_room(&mut self, index: usize) {
        let count = self.len();
        assert!(
            index <= count && !self.is_full(),
            "entry {index} of {count}"
        );
        self.bytes
            .copy_within(offset(index)..offset(count), offset(index + 1));
        self.set_len(count + 1);
    }
}

/// Offset of entry `index`.
fn offset(index: usize) -> usize {
    (index + 1) * ENTRY_BYTES
}

#[cfg(test)]
mod tests;
