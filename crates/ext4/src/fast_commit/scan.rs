//! Finds complete fast commits, and the device blocks that they assign to files.
//!
//! A power cut leaves invalid records: the first invalid one ends the valid part.

use std::ops::Range;

use extant_jbd2::Sequence;
use extant_ondisk::ext4::Layout;
use extant_ondisk::ext4::fast_commit::{Change, CommitSum, Record, Tag, Verdict, records};
use extant_space::Result;

/// Fast commits that are whole, at least one.
pub(crate) struct Commits {
    /// Blocks up to the last tail that counts.
    blocks: usize,
    /// Disjoint runs of device blocks that records assign to files, in order.
    given: Vec<Range<u64>>,
}

impl Commits {
    /// Finds those on transaction `next`, the one that the journal would commit next; `None` when
    /// there are none.
    ///
    /// # Errors
    /// `Unsupported` when they ask for features; those of reading `blocks`.
    pub(crate) fn find(
        blocks: impl Iterator<Item = Result<Vec<u8>>>,
        next: Sequence,
        layout: &Layout,
    ) -> Result<Option<Self>> {
        let mut sum = CommitSum::new();
        let mut given = Vec::new();
        let (mut whole_blocks, mut whole_given) = (0, 0);
        for (index, block) in blocks.enumerate() {
            let block = block?;
            let mut all = records(&block, layout).map_while(Result::ok).peekable();
            let head = match all.peek() {
                Some(first) => first.head()?,
                None => None,
            };
            if index == 0 && head != Some(next) {
                break;
            }
            let mut verdict = None;
            for record in all {
                given.extend(given_by(&record, layout));
                verdict = sum.take(&record, next);
                if record.tag() == Tag::Tail {
                    break;
                }
            }
            match verdict {
                Some(Verdict::Torn) => break,
                Some(Verdict::Whole) => {
                    (whole_blocks, whole_given) = (index + 1, given.len());
                }
                None => {}
            }
        }
        given.truncate(whole_given);
        Ok((whole_blocks > 0).then(|| Self {
            blocks: whole_blocks,
            given: merged(given),
        }))
    }

    /// Number of journal blocks that they occupy.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Whether a record assigns the block to a file.
    pub(super) fn give(&self, block: u64) -> bool {
        let after = self.given.partition_point(|range| range.start <= block);
        after > 0 && block < self.given[after - 1].end
    }
}

/// Blocks of the device that a record assigns to a file. The replay validates it.
fn given_by(record: &Record<'_>, layout: &Layout) -> Option<Range<u64>> {
    match record.change(layout) {
        Ok(Some(Change::AddRange { extent, .. })) => {
            let start = extent.physical.0;
            Some(start..start + u64::from(extent.blocks))
        }
        _ => None,
    }
}

fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
