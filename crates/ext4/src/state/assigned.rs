//! The blocks assigned on the device since the file system was opened.
//!
//! Repeating the request would change nothing, and costs a call: short-lived files reuse the same
//! blocks. Blocks missing here may be assigned all the same.
//!
//! Model: one bit per block, in groups and chunks of groups that are allocated on demand. The bits
//! need no ordering: a block is recorded by its owner, and cleared by a discard while it has none;
//! between the two it passes through locks of the allocator.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_ondisk::ext4::Layout;

/// Groups of a chunk.
const CHUNK: usize = 1024;
const WORD_BITS: u64 = u64::BITS as u64;

type Words = Box<[AtomicU64]>;
type Chunk = Box<[OnceLock<Words>]>;

/// Blocks that have their place.
pub(crate) struct AssignedBlocks {
    blocks_per_group: u64,
    chunks: Box<[OnceLock<Chunk>]>,
}

impl AssignedBlocks {
    pub(crate) fn new(layout: &Layout) -> Self {
        let blocks_per_group = u64::from(layout.blocks_per_group());
        let groups = layout.blocks().div_ceil(blocks_per_group) as usize;
        Self {
            blocks_per_group,
            chunks: (0..groups.div_ceil(CHUNK))
                .map(|_| OnceLock::new())
                .collect(),
        }
    }

    /// Whether all of them are noted.
    pub(crate) fn has(&self, blocks: &Range<u64>) -> bool {
        self.pieces(blocks).all(|(group, bits)| {
            self.words(group).is_some_and(|words| {
                masks(bits).all(|(word, mask)| words[word].load(Ordering::Relaxed) & mask == mask)
            })
        })
    }

    /// Notes them.
    pub(crate) fn note(&self, blocks: &Range<u64>) {
        for (group, bits) in self.pieces(blocks) {
            let words = self.words_or_new(group);
            masks(bits).for_each(|(word, mask)| {
                words[word].fetch_or(mask, Ordering::Relaxed);
            });
        }
    }

    /// Forgets them.
    pub(crate) fn forget(&self, blocks: &Range<u64>) {
        for (group, bits) in self.pieces(blocks) {
            let Some(words) = self.words(group) else {
                continue;
            };
            masks(bits).for_each(|(word, mask)| {
                words[word].fetch_and(!mask, Ordering::Relaxed);
            });
        }
    }

    /// The blocks of each group, counted from its start.
    fn pieces(&self, blocks: &Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let (Range { start, end }, size) = (blocks.clone(), self.blocks_per_group);
        let groups = start / size..end.div_ceil(size);
        groups.map(move |group| {
            let first = group * size;
            (
                group as usize,
                start.saturating_sub(first)..(end - first).min(size),
            )
        })
    }

    fn words(&self, group: usize) -> Option<&Words> {
        self.chunks[group / CHUNK].get()?[group % CHUNK].get()
    }

    fn words_or_new(&self, group: usize) -> &Words {
        let chunk = self.chunks[group / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| OnceLock::new()).collect());
        chunk[group % CHUNK].get_or_init(|| {
            let words = self.blocks_per_group.div_ceil(WORD_BITS);
            (0..words).map(|_| AtomicU64::new(0)).collect()
        })
    }
}

/// The words that contain the bits, with the mask for each.
fn masks(bits: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let words = bits.start / WORD_BITS..bits.end.div_ceil(WORD_BITS);
    words.map(move |word| {
        let first = word * WORD_BITS;
        let from = bits.start.saturating_sub(first);
        let count = (bits.end - first).min(WORD_BITS) - from;
        (word as usize, (u64::MAX >> (WORD_BITS - count)) << from)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Two and a half chunks, in groups that do not end with a word.
    const GROUP: u64 = 100;
    const BLOCKS: u64 = GROUP * (2 * CHUNK as u64 + 512);

    fn blocks() -> AssignedBlocks {
        AssignedBlocks {
            blocks_per_group: GROUP,
            chunks: (0..3).map(|_| OnceLock::new()).collect(),
        }
    }

    fn range() -> impl Strategy<Value = Range<u64>> {
        // Few places, so that ranges overlap.
        let start = prop_oneof![0..300u64, 102_300..102_600u64, BLOCKS - 300..BLOCKS];
        (start, 1..300u64).prop_map(|(start, count)| start..(start + count).min(BLOCKS))
    }

    proptest! {
        #[test]
        fn it_is_a_set_of_blocks(steps in prop::collection::vec((range(), any::<bool>()), 1..30), asked in range()) {
            let (tested, mut model) = (blocks(), BTreeSet::new());
            for (range, is_noted) in steps {
                if is_noted {
                        tested.note(&range);
                        model.extend(range.clone());
                    } else {
                        tested.forget(&range);
                        model.retain(|block| !range.contains(block));
                    }
                for range in [&range, &asked] {
                    let has = range.clone().all(|block| model.contains(&block));
                    prop_assert_eq!(tested.has(range), has);
                }
            }
        }
    }
}
