//! Growing and shrinking.

use std::ops::Range;

use extant_mballoc::{Block, GroupNumber};
use extant_space::ErrorKind;

use super::{Cell, World, kind};

/// Blocks that a disk does not grow past: comparing takes time.
const BLOCKS_MAX: u64 = 12_000;

impl World<'_> {
    pub(super) fn cells_on_disk(&self, blocks: Range<Block>) -> Vec<Cell> {
        let cell = |block| {
            if self.pattern.is_used(Block(block)) {
                Cell::Owned(0)
            } else {
                Cell::Free
            }
        };
        (blocks.start.0..blocks.end.0).map(cell).collect()
    }

    pub(super) fn grow(&mut self, blocks: u64) {
        let old = self.geometry;
        let new = extant_mballoc::Geometry {
            end: Block(old.end.0 + blocks),
            ..old
        };
        if new.blocks() > BLOCKS_MAX {
            return;
        }
        let pattern = self.pattern;
        let added = old.groups()..new.groups();
        self.disk
            .format(added, &new, |block| pattern.is_used(block));
        self.allocator.grow(new.end).unwrap();
        // Blocks added to the last group are free, whatever the disk contains.
        let next = new.start_of(GroupNumber(old.groups())).min(new.end);
        let rest = (next.0 - old.end.0) as usize;
        self.cells.extend(std::iter::repeat_n(Cell::Free, rest));
        let added = self.cells_on_disk(next..new.end);
        self.cells.extend(added);
        self.geometry = new;
    }

    /// To a place in thousandths of the disk, or from 1000 on of the free space at its end.
    pub(super) fn shrink(&mut self, place: u64) {
        let first = self.geometry.first.0;
        let used = self.cells.iter().rposition(|cell| *cell != Cell::Free);
        let used_end = first + used.map_or(0, |at| at as u64 + 1);
        let end = match place.checked_sub(1000) {
            None => self.thousandths(place),
            Some(part) => Block(used_end + (self.geometry.end.0 - used_end) * part / 1000),
        };
        let end = end.max(Block(first + 1));
        let shrunk = self.allocator.shrink(end);
        if end >= self.geometry.end {
            assert_eq!(kind(shrunk), Some(ErrorKind::InvalidArgument));
        } else if end.0 < used_end {
            assert_eq!(
                kind(shrunk),
                Some(ErrorKind::InUse),
                "to {end}, used to {used_end}"
            );
            assert_eq!(self.windows(), []);
        } else {
            shrunk.unwrap();
            assert_eq!(self.windows(), []);
            self.cells.truncate((end.0 - first) as usize);
            self.geometry.end = end;
        }
    }
}
