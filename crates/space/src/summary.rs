//! Statistics of extent maps: bytes per state, extents, fragments, fragmentation.
//!
//! A summary is fed one extent after the other and keeps none of them, so a
//! map of any length fits. Summaries of several files merge into one.
//!
//! Two counts of pieces, because the tools of the field have two:
//! - *extents* are the extents of the map without holes (`e4defrag`'s "now");
//! - *fragments* are runs on the device, as `filefrag` counts its "extents
//!   found": an extent continues a run if it starts at its end, or behind it by
//!   the length of the hole between them. The states do not matter.
//!
//! The score is that of `e4defrag -c` (e2fsprogs, misc/e4defrag.c), in single
//! precision as there. The best possible number of extents is one for every
//! run the allocator could give out at all, which on ext4 is a flex group. The
//! excess over it, as a percentage of the allocated blocks, counts eight points
//! per percent up to ten percent, and from there 80 points plus a fifth of the
//! percentage. For many files, excess and blocks are summed first.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::{Extent, ExtentFlags, ExtentState};

/// Groups that `mke2fs` joins to one flex group.
const GROUPS_PER_FLEX: u64 = 16;

/// Scores from here on ask for defragmentation.
const SCORE_BOUND: f32 = 55.0;

/// Figures of the map of a file, or of many files.
#[derive(Clone, Debug, PartialEq)]
pub struct MapSummary {
    block_bytes: u64,
    run_blocks_max: u64,
    files: u64,
    state_bytes: [u64; ExtentState::ALL.len()],
    shared_bytes: u64,
    encoded_bytes: u64,
    delayed_bytes: u64,
    extant_bytes: u64,
    extents: u64,
    fragments: u64,
    largest_extent_bytes: u64,
    blocks: u64,
    best_extents: u64,
    /// The file that is being added, `None` after a merge.
    file: Option<CurrentFile>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CurrentFile {
    blocks: u64,
    /// The last extent that was not a hole.
    last: Option<Extent>,
}

impl Default for MapSummary {
    /// Blocks of 4 KiB, as most file systems have.
    fn default() -> Self {
        Self::for_block_size(4096)
    }
}

impl MapSummary {
    /// The summary of no extents, scored for a file system with blocks of
    /// `block_bytes` in which no run is longer than `run_blocks_max` blocks: the
    /// blocks of a group, or of a flex group. 0 says that there is no such bound.
    ///
    /// # Panics
    /// When `block_bytes` is 0.
    pub fn new(block_bytes: u64, run_blocks_max: u64) -> Self {
        assert!(block_bytes > 0, "blocks of no bytes");
        Self {
            block_bytes,
            run_blocks_max,
            files: 0,
            state_bytes: [0; ExtentState::ALL.len()],
            shared_bytes: 0,
            encoded_bytes: 0,
            delayed_bytes: 0,
            extant_bytes: 0,
            extents: 0,
            fragments: 0,
            largest_extent_bytes: 0,
            blocks: 0,
            best_extents: 0,
            file: None,
        }
    }

    /// As [`new`](Self::new), with the groups that `mke2fs` creates for such blocks: as many blocks
    /// as one block has bits, 16 groups to a flex group.
    pub fn for_block_size(block_bytes: u64) -> Self {
        Self::new(block_bytes, block_bytes * 8 * GROUPS_PER_FLEX)
    }

    /// Adds the next extent of the file, in the order of the file.
    ///
    /// After a [`merge`](Self::merge) it is the first extent of another file.
    pub fn add(&mut self, extent: &Extent) {
        let length = extent.logical.len();
        if self.file.is_none() {
            self.files += 1;
        }
        let mut file = self.file.unwrap_or_default();
        add_to(&mut self.state_bytes[extent.state as usize], length);
        if extent.state != ExtentState::Hole {
            for (flag, bytes) in [
                (ExtentFlags::SHARED, &mut self.shared_bytes),
                (ExtentFlags::ENCODED, &mut self.encoded_bytes),
                (ExtentFlags::DELAYED, &mut self.delayed_bytes),
            ] {
                if extent.flags.contains(flag) {
                    add_to(bytes, length);
                }
            }
            if extent.is_extant() {
                add_to(&mut self.extant_bytes, length);
            }
            self.extents += 1;
            self.largest_extent_bytes = self.largest_extent_bytes.max(length);
            if !file.last.is_some_and(|last| same_fragment(&last, extent)) {
                self.fragments += 1;
            }
            file.last = Some(*extent);

            let blocks = length / self.block_bytes;
            self.best_extents -= self.best_of(file.blocks);
            add_to(&mut file.blocks, blocks);
            add_to(&mut self.blocks, blocks);
            self.best_extents += self.best_of(file.blocks);
        }
        self.file = Some(file);
    }

    /// Adds the figures of other files.
    pub fn merge(&mut self, other: &Self) {
        for (bytes, more) in self.state_bytes.iter_mut().zip(other.state_bytes) {
            add_to(bytes, more);
        }
        for (bytes, more) in [
            (&mut self.shared_bytes, other.shared_bytes),
            (&mut self.encoded_bytes, other.encoded_bytes),
            (&mut self.delayed_bytes, other.delayed_bytes),
            (&mut self.extant_bytes, other.extant_bytes),
            (&mut self.blocks, other.blocks),
        ] {
            add_to(bytes, more);
        }
        self.files += other.files;
        self.extents += other.extents;
        self.fragments += other.fragments;
        self.best_extents += other.best_extents;
        self.largest_extent_bytes = self.largest_extent_bytes.max(other.largest_extent_bytes);
        self.file = None;
    }

    /// Files whose maps were added; one with an empty map is not among them.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Bytes in `state`.
    pub fn bytes(&self, state: ExtentState) -> u64 {
        self.state_bytes[state as usize]
    }

    /// Bytes with a place on the device or waiting for one: all but holes.
    pub fn allocated_bytes(&self) -> u64 {
        self.bytes(ExtentState::Unwritten)
            .saturating_add(self.bytes(ExtentState::Written))
    }

    /// Bytes that other files use as well.
    pub fn shared_bytes(&self) -> u64 {
        self.shared_bytes
    }

    /// Bytes that are compressed, inline or encrypted.
    pub fn encoded_bytes(&self) -> u64 {
        self.encoded_bytes
    }

    /// Bytes that wait in memory for their place.
    pub fn delayed_bytes(&self) -> u64 {
        self.delayed_bytes
    }

    /// Bytes whose overwrite changes no metadata ([`Extent::is_extant`]).
    pub fn extant_bytes(&self) -> u64 {
        self.extant_bytes
    }

    /// Extents as the map reports them, holes left out.
    pub fn extents(&self) -> u64 {
        self.extents
    }

    /// Runs on the device.
    pub fn fragments(&self) -> u64 {
        self.fragments
    }

    /// Mean length of the extents, 0 when there are none.
    pub fn mean_extent_bytes(&self) -> u64 {
        self.allocated_bytes()
            .checked_div(self.extents)
            .unwrap_or(0)
    }

    /// Length of the largest extent, 0 when there is none.
    pub fn largest_extent_bytes(&self) -> u64 {
        self.largest_extent_bytes
    }

    /// Fewest extents the same blocks could be in, file by file.
    pub fn best_extents(&self) -> u64 {
        self.best_extents
    }

    /// Fragmentation from 0 to 100 as `e4defrag -c` defines it (it prints whole
    /// numbers); `None` where nothing is allocated. Small files reach high
    /// scores with few extents: the score compares extents with blocks.
    pub fn fragmentation_score(&self) -> Option<f32> {
        if self.blocks == 0 {
            return None;
        }
        let excess = self.extents.saturating_sub(self.best_extents);
        let percent = excess as f32 * 100.0 / self.blocks as f32;
        Some(if percent > 10.0 {
            80.0 + 20.0 * percent / 100.0
        } else {
            8.0 * percent
        })
    }

    /// The verdict on the score, in `e4defrag`'s three steps. The score counts extents; a file with
    /// the minimal number of fragments is "no problem" with any score.
    pub fn fragmentation(&self) -> Option<&'static str> {
        let score = self.fragmentation_score()?;
        Some(if self.fragments <= self.best_extents {
            "no problem"
        } else if score > SCORE_BOUND {
            "needs defragmentation"
        } else if score.round_ties_even() > 30.0 {
            "a little fragmented"
        } else {
            "no problem"
        })
    }

    /// Fewest extents of a file of `blocks`; 0 for none.
    fn best_of(&self, blocks: u64) -> u64 {
        match self.run_blocks_max {
            0 => blocks.min(1),
            run => blocks.div_ceil(run),
        }
    }
}

impl<'a> Extend<&'a Extent> for MapSummary {
    fn extend<I: IntoIterator<Item = &'a Extent>>(&mut self, extents: I) {
        extents.into_iter().for_each(|extent| self.add(extent));
    }
}

impl<'a> FromIterator<&'a Extent> for MapSummary {
    fn from_iter<I: IntoIterator<Item = &'a Extent>>(extents: I) -> Self {
        let mut summary = Self::default();
        summary.extend(extents);
        summary
    }
}

impl Serialize for MapSummary {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("MapSummary", 15)?;
        fields.serialize_field("files", &self.files)?;
        fields.serialize_field("hole_bytes", &self.bytes(ExtentState::Hole))?;
        fields.serialize_field("unwritten_bytes", &self.bytes(ExtentState::Unwritten))?;
        fields.serialize_field("written_bytes", &self.bytes(ExtentState::Written))?;
        fields.serialize_field("shared_bytes", &self.shared_bytes)?;
        fields.serialize_field("encoded_bytes", &self.encoded_bytes)?;
        fields.serialize_field("delayed_bytes", &self.delayed_bytes)?;
        fields.serialize_field("extant_bytes", &self.extant_bytes)?;
        fields.serialize_field("extents", &self.extents)?;
        fields.serialize_field("fragments", &self.fragments)?;
        fields.serialize_field("mean_extent_bytes", &self.mean_extent_bytes())?;
        fields.serialize_field("largest_extent_bytes", &self.largest_extent_bytes)?;
        fields.serialize_field("best_extents", &self.best_extents)?;
        fields.serialize_field("fragmentation_score", &self.fragmentation_score())?;
        fields.serialize_field("fragmentation", &self.fragmentation())?;
        fields.end()
    }
}

/// `next` is on the device where `filefrag` expects it behind `last`.
fn same_fragment(last: &Extent, next: &Extent) -> bool {
    match (last.physical, next.physical) {
        (Some(place), Some(next_place)) => {
            let gap = next.logical.start().saturating_sub(last.logical.end());
            let dense = place.saturating_add(last.logical.len());
            next_place == dense || next_place == dense.saturating_add(gap)
        }
        // Without physical addresses there is no evidence of a fragment.
        (None, None) => last.logical.end() == next.logical.start(),
        _ => false,
    }
}

/// Totals over files saturate instead of wrapping.
fn add_to(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteRange;
    use ExtentState::{Unwritten, Written};

    /// Extents as `filefrag -v` lists them: logical block, physical block, blocks.
    fn extents(state: ExtentState, block: u64, list: &[(u64, u64, u64)]) -> Vec<Extent> {
        list.iter()
            .map(|&(logical, physical, blocks)| Extent {
                logical: ByteRange::at(logical * block, blocks * block).unwrap(),
                physical: Some(physical * block),
                state,
                flags: ExtentFlags::empty(),
            })
            .collect()
    }

    /// (extents, fragments, best extents, score as printed, mean in KiB)
    fn figures(summary: &MapSummary) -> (u64, u64, u64, String, u64) {
        (
            summary.extents(),
            summary.fragments(),
            summary.best_extents(),
            format!("{:.0}", summary.fragmentation_score().unwrap()),
            summary.mean_extent_bytes() / 1024,
        )
    }

    // The files below were made on ext4 (Linux 6.18, e2fsprogs 1.47.0); the figures
    // are those that `e4defrag -c` and `filefrag` print of them.

    /// 512 blocks written one by one, alternating with another file's.
    fn appended_in_turn() -> Vec<Extent> {
        let mut list: Vec<_> = (0..16).map(|i| (i, 33_280 + 2 * i, 1)).collect();
        list.extend([
            (16, 33_168, 16),
            (32, 33_216, 32),
            (64, 33_792, 64),
            (128, 33_920, 128),
            (256, 34_304, 256),
        ]);
        extents(Written, 4096, &list)
    }

    /// 300 blocks allocated one by one, alternating with 64 KiB of another file.
    fn allocated_in_turn() -> Vec<Extent> {
        let mut list = vec![
            (0, 33_312, 1),
            (1, 33_329, 15),
            (16, 33_155, 13),
            (29, 35_120, 1),
            (30, 35_122, 1),
            (31, 35_124, 12),
        ];
        list.extend((0..16).map(|i| (43 + 16 * i, 35_360 + 272 * i, 16)));
        list.push((299, 39_712, 1));
        extents(Unwritten, 4096, &list)
    }

    /// Every other of 64 blocks.
    fn every_other_block() -> Vec<Extent> {
        let mut list: Vec<_> = (0..8).map(|i| (2 * i, 33_344 + i, 1)).collect();
        list.extend((8..16).map(|i| (2 * i, 39_745 + 2 * (i - 8), 1)));
        list.extend((16..32).map(|i| (2 * i, 39_776 + 2 * (i - 16), 1)));
        extents(Written, 4096, &list)
    }

    #[test]
    fn figures_of_real_files_are_those_of_e4defrag_and_filefrag() {
        let appended: MapSummary = appended_in_turn().iter().collect();
        assert_eq!(figures(&appended), (21, 21, 1, "31".into(), 97));
        assert_eq!(appended.fragmentation(), Some("a little fragmented"));

        let allocated: MapSummary = allocated_in_turn().iter().collect();
        assert_eq!(figures(&allocated), (23, 23, 1, "59".into(), 52));
        assert_eq!(allocated.fragmentation(), Some("needs defragmentation"));

        let sparse: MapSummary = every_other_block().iter().collect();
        assert_eq!(figures(&sparse), (32, 3, 1, "99".into(), 4));

        let mut kept = extents(Written, 4096, &[(0, 430_080, 1)]);
        kept.extend(extents(Unwritten, 4096, &[(1, 430_081, 255)]));
        let kept: MapSummary = kept.iter().collect();
        assert_eq!(figures(&kept), (2, 1, 1, "3".into(), 512));
        assert_eq!(kept.fragmentation(), Some("no problem"));
    }

    #[test]
    fn states_that_alternate_in_one_place_are_one_fragment() {
        let mut summary = MapSummary::default();
        for i in 0..10 {
            let state = if i % 2 == 0 { Unwritten } else { Written };
            summary.extend(&extents(state, 4096, &[(i, 40_960 + i, 1)]));
        }
        assert_eq!((summary.extents(), summary.fragments()), (10, 1));
        // e4defrag counts extents; on the device there is nothing to join.
        assert!(summary.fragmentation_score() > Some(SCORE_BOUND));
        assert_eq!(summary.fragmentation(), Some("no problem"));
        assert_eq!(summary.bytes(Written), 5 * 4096);
        assert_eq!(summary.extant_bytes(), 5 * 4096);
        assert_eq!(summary.allocated_bytes(), 10 * 4096);
    }

    #[test]
    fn best_extents_are_bounded_by_the_groups_of_the_file_system() {
        // 100 MiB and 20 MiB on mkfs.ext4 -b 1024 -O ^flex_bg: e4defrag says 17/13 and 3/3.
        let mut large = MapSummary::new(1024, 8192);
        for i in 0..17 {
            let blocks = if i < 16 { 6023 } else { 102_400 - 16 * 6023 };
            large.extend(&extents(Unwritten, 1024, &[(i * 6023, i * 8192, blocks)]));
        }
        assert_eq!(figures(&large), (17, 17, 13, "0".into(), 6023));
        let mut small = MapSummary::new(1024, 8192);
        small.extend(&extents(Unwritten, 1024, &[(0, 0, 20_480)]));
        assert_eq!(small.best_extents(), 3);
        // Fewer than the best is not less than no fragmentation.
        assert_eq!(small.fragmentation_score(), Some(0.0));
        let mut unbounded = MapSummary::new(1024, 0);
        unbounded.extend(&extents(Unwritten, 1024, &[(0, 0, 20_480)]));
        assert_eq!(unbounded.best_extents(), 1);
    }

    #[test]
    fn merge_sums_excess_and_blocks_before_it_scores() {
        // e4defrag -c of a directory adds up the counts of its files.
        let mut total = MapSummary::default();
        for file in [appended_in_turn(), allocated_in_turn(), every_other_block()] {
            total.merge(&file.iter().collect());
        }
        assert_eq!(total.files(), 3);
        assert_eq!((total.extents(), total.best_extents()), (76, 3));
        let percent = 73.0 * 100.0 / (512.0 + 300.0 + 32.0);
        assert_eq!(total.fragmentation_score(), Some(8.0 * percent));
        // The next extent belongs to another file, although it begins where the last one ended.
        total.extend(&extents(Written, 4096, &[(64, 39_808, 1)]));
        assert_eq!((total.files(), total.fragments()), (4, 21 + 23 + 3 + 1));
        assert_eq!(total.best_extents(), 4);
    }

    #[test]
    fn holes_are_neither_extents_nor_fragments() {
        let mut summary = MapSummary::default();
        summary.add(&Extent::hole(ByteRange::new(0, 1 << 40)));
        assert_eq!(summary.bytes(ExtentState::Hole), 1 << 40);
        assert_eq!((summary.files(), summary.extents()), (1, 0));
        assert_eq!(summary.fragmentation_score(), None);
        assert_eq!(summary.mean_extent_bytes(), 0);
    }

    #[test]
    fn flags_are_counted_beside_the_states() {
        let mut summary = MapSummary::default();
        let mut extent = extents(Written, 4096, &[(0, 10, 4)])[0];
        extent.flags = ExtentFlags::SHARED | ExtentFlags::ENCODED;
        summary.add(&extent);
        extent.flags = ExtentFlags::DELAYED;
        extent.physical = None;
        summary.add(&extent);
        assert_eq!(summary.shared_bytes(), 16_384);
        assert_eq!(summary.encoded_bytes(), 16_384);
        assert_eq!(summary.delayed_bytes(), 16_384);
        assert_eq!(summary.extant_bytes(), 0);
        assert_eq!(summary.largest_extent_bytes(), 16_384);
    }
}
