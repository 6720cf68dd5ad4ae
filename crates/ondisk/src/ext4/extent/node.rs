//! Reading a node and judging it by the invariants of the tree.

use std::ops::Range;

use extant_space::Result;
use zerocopy::FromBytes;

use super::{
    DEPTH_MAX, ENTRY_BYTES, IndexEntry, LOGICAL_END, LeafEntry, MAGIC, ROOT_BYTES, RawExtent,
    RawExtentHeader, RawExtentIndex, capacity,
};
use crate::ext4::{InodeSeed, Layout, LogicalBlock, PhysicalBlock};
use crate::fault::{check_range, check_sum, corrupt};

/// Properties of a node that its parent determines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its block.
    pub block: PhysicalBlock,
    /// Its depth.
    pub depth: u16,
    /// The logical blocks that it may speak about; its first entry begins with the first.
    pub logical: Range<u64>,
}

/// A validated node.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    header: &'a RawExtentHeader,
    entries: &'a [u8],
    /// Upper bound of the end of the last entry.
    end: u64,
}

impl<'a> ExtentNode<'a> {
    /// The root in the inode's `i_block`.
    ///
    /// # Errors
    /// `Corrupt` with the entry and its error.
    pub fn parse_root(bytes: &'a [u8; ROOT_BYTES], layout: &Layout) -> Result<Self> {
        Self::parse("extent tree root", bytes, 0..LOGICAL_END, None, layout)
    }

    /// The node in a block, whose place its parent gave ([`child`](Self::child)).
    ///
    /// # Errors
    /// `Corrupt` with block, entry and error, also for a wrong checksum.
    pub fn parse_block(
        bytes: &'a [u8],
        place: &NodePlace,
        layout: &Layout,
        seed: Option<InodeSeed>,
    ) -> Result<Self> {
        let name = format!("extent node in block {}", place.block);
        let bounds = place.logical.clone();
        let node = Self::parse(&name, bytes, bounds, Some(place.depth), layout)?;
        if let Some(first) = node
            .first_logical()
            .filter(|&first| first != place.logical.start)
        {
            let expected = place.logical.start;
            let problem = format_args!("entry 0 begins at block {first}, not at {expected}");
            return Err(corrupt(&name, problem));
        }
        if let Some(seed) = seed {
            let (stored, computed) = sums(bytes, seed);
            check_sum(&name, stored, computed)?;
        }
        Ok(node)
    }

    /// A node whose bytes were validated before ([`parse_block`](Self::parse_block)), perhaps at
    /// another place.
    ///
    /// Checks header, first and last entry, not all entries and no checksum, so that the cost of a
    /// search stays logarithmic. A caller that cannot exclude that the bytes were validated as
    /// another structure, which requires a malicious image, checks the entries that it uses.
    ///
    /// # Errors
    /// `Corrupt` if the node cannot be the one that its parent means.
    #[inline]
    pub fn trusted(bytes: &'a [u8], place: &NodePlace) -> Result<Self> {
        let header = RawExtentHeader::ref_from_prefix(bytes).ok();
        header
            .filter(|(header, _)| header.eh_magic.get() == MAGIC)
            .filter(|(header, _)| (1..=capacity(bytes.len())).contains(&header.eh_max.get()))
            .filter(|(header, _)| header.eh_entries.get() <= header.eh_max.get())
            .map(|_| Self::again(bytes, place))
            .filter(|node| node.belongs_at(place))
            .ok_or_else(|| {
                corrupt(
                    format_args!("extent node in block {}", place.block),
                    format_args!(
                        "not one of depth {} for blocks {} to {}; something else uses the block as well",
                        place.depth, place.logical.start, place.logical.end
                    ),
                )
            })
    }

    /// A node that one of the others has accepted at this place.
    ///
    /// # Panics
    /// When none can have.
    #[inline]
    pub fn again(bytes: &'a [u8], place: &NodePlace) -> Self {
        let (header, entries) = RawExtentHeader::ref_from_prefix(bytes).expect("12 bytes");
        Self {
            header,
            entries: &entries[..usize::from(header.eh_entries.get()) * ENTRY_BYTES],
            end: place.logical.end,
        }
    }

    #[inline]
    fn belongs_at(&self, place: &NodePlace) -> bool {
        if self.depth() != place.depth {
            return false;
        }
        let Some(last) = self.len().checked_sub(1) else {
            return place.depth == 0;
        };
        let end = match place.depth {
            0 => self.leaf(last).logical_end(),
            _ => u64::from(self.index(last).logical.0) + 1,
        };
        self.first_logical() == Some(place.logical.start) && end <= place.logical.end
    }

    /// `depth` is the one that the parent asks for; a root has any.
    fn parse(
        name: &str,
        bytes: &'a [u8],
        bounds: Range<u64>,
        depth: Option<u16>,
        layout: &Layout,
    ) -> Result<Self> {
        let (header, entries) = RawExtentHeader::ref_from_prefix(bytes)
            .map_err(|_| corrupt(name, format_args!("only {} bytes", bytes.len())))?;
        let magic = header.eh_magic.get();
        if magic != MAGIC {
            return Err(corrupt(
                name,
                format_args!("eh_magic is {magic:#06x}, not {MAGIC:#06x}"),
            ));
        }
        let most = capacity(bytes.len());
        check_range(name, "eh_max", header.eh_max.get().into(), 1..=most.into())?;
        let count = header.eh_entries.get();
        check_range(
            name,
            "eh_entries",
            count.into(),
            0..=header.eh_max.get().into(),
        )?;
        check_range(
            name,
            "eh_depth",
            header.eh_depth.get().into(),
            0..=DEPTH_MAX.into(),
        )?;
        let found = header.eh_depth.get();
        if let Some(depth) = depth.filter(|&depth| depth != found) {
            return Err(corrupt(
                name,
                format_args!("eh_depth is {found}, not {depth}"),
            ));
        }
        if count == 0 && found > 0 {
            return Err(corrupt(name, "no entries above the leaves"));
        }
        let entries = &entries[..usize::from(count) * ENTRY_BYTES];
        let node = Self {
            header,
            entries,
            end: bounds.end,
        };
        node.check_entries(name, bounds, layout)?;
        Ok(node)
    }

    fn check_entries(&self, name: &str, bounds: Range<u64>, layout: &Layout) -> Result<()> {
        let mut least = bounds.start;
        for index in 0..self.len() {
            let (logical, end, physical, blocks) = if self.depth() == 0 {
                let leaf = self.leaf(index);
                if leaf.blocks == 0 {
                    return Err(corrupt(name, format_args!("entry {index} has length 0")));
                }
                let start = u64::from(leaf.logical.0);
                (start, leaf.logical_end(), leaf.physical, leaf.blocks.into())
            } else {
                let reference = self.index(index);
                let start = u64::from(reference.logical.0);
                (start, start + 1, reference.child, 1)
            };
            if logical < least || end > bounds.end {
                return Err(corrupt(
                    name,
                    format_args!(
                        "entry {index} covers blocks {logical} to {end}, outside {least} to {}",
                        bounds.end
                    ),
                ));
            }
            if physical.0 == 0 || !layout.holds(physical, blocks) {
                return Err(corrupt(
                    name,
                    format_args!("entry {index} names block {physical}, outside the file system"),
                ));
            }
            least = end;
        }
        Ok(())
    }

    /// Levels below: 0 in a node with extents.
    #[inline]
    pub fn depth(&self) -> u16 {
        self.header.eh_depth.get()
    }

    /// Number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.header.eh_entries.get().into()
    }

    /// Whether there is no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries that fit.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.header.eh_max.get().into()
    }

    /// Entry `index` of a node of depth 0.
    ///
    /// # Panics
    /// In a node above, and past the last entry.
    #[inline]
    pub fn leaf(&self, index: usize) -> LeafEntry {
        assert_eq!(self.depth(), 0, "an extent in a node above the leaves");
        let raw = RawExtent::ref_from_bytes(self.entry(index)).expect("12 bytes");
        LeafEntry::decode(raw)
    }

    /// Entry `index` of a node above the leaves.
    ///
    /// # Panics
    /// In a leaf, and past the last entry.
    #[inline]
    pub fn index(&self, index: usize) -> IndexEntry {
        assert!(self.depth() > 0, "a reference in a leaf");
        let raw = RawExtentIndex::ref_from_bytes(self.entry(index)).expect("12 bytes");
        IndexEntry::decode(raw)
    }

    /// All extents of a leaf.
    ///
    /// # Panics
    /// In a node above.
    pub fn leaves(&self) -> impl ExactSizeIterator<Item = LeafEntry> {
        let node = *self;
        (0..self.len()).map(move |index| node.leaf(index))
    }

    /// All references of a node above the leaves.
    ///
    /// # Panics
    /// In a leaf.
    pub fn indexes(&self) -> impl ExactSizeIterator<Item = IndexEntry> {
        let node = *self;
        (0..self.len()).map(move |index| node.index(index))
    }

    /// The last entry that begins at or before `logical`: the one that holds the block, if
    /// any does.
    #[inline]
    pub fn find(&self, logical: LogicalBlock) -> Option<usize> {
        let (entries, _) = self.entries.as_chunks::<ENTRY_BYTES>();
        // Both kinds of entries begin with their first logical block.
        let first =
            |entry: &[u8; ENTRY_BYTES]| u32::from_le_bytes(entry[..4].try_into().expect("4 bytes"));
        entries
            .partition_point(|entry| first(entry) <= logical.0)
            .checked_sub(1)
    }

    /// Block of the node of reference `index`.
    ///
    /// # Panics
    /// In a leaf, and past the last entry.
    #[inline]
    pub fn child(&self, index: usize) -> NodePlace {
        let entry = self.index(index);
        let end = if index + 1 < self.len() {
            self.index(index + 1).logical.0.into()
        } else {
            self.end
        };
        NodePlace {
            block: entry.child,
            depth: self.depth() - 1,
            logical: entry.logical.0.into()..end,
        }
    }

    #[inline]
    fn first_logical(&self) -> Option<u64> {
        let first = self.entries.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*first).into())
    }

    #[inline]
    fn entry(&self, index: usize) -> &'a [u8] {
        &self.entries[index * ENTRY_BYTES..][..ENTRY_BYTES]
    }
}

/// The stored and the computed sum of a block whose `eh_max` fits it.
///
/// The tail follows the last entry that there is room for; every block size leaves 4 bytes.
pub(super) fn sums(block: &[u8], seed: InodeSeed) -> (u32, u32) {
    let tail = tail_offset(block);
    let stored = block[tail..tail + 4].try_into().expect("4 bytes");
    (u32::from_le_bytes(stored), seed.sum(&block[..tail]).value())
}

pub(super) fn tail_offset(block: &[u8]) -> usize {
    let most = u16::from_le_bytes([block[4], block[5]]);
    ENTRY_BYTES * (usize::from(most) + 1)
}
