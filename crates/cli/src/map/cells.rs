//! A file map at the resolution of a picture.
//!
//! The file is cut into a fixed number of cells of equal length, and every
//! extent is spread over the cells it touches. The memory is that of the cells,
//! whatever the number of extents.

use extant_space::{ByteRange, Extent};

use super::cell::Cell;

/// Whether an extent begins a new fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joint {
    /// It is contiguous with the one before, or the first.
    Continues,
    /// It is elsewhere on the device.
    Breaks,
}

/// A file in cells.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cells {
    span_bytes: u64,
    cells: Vec<Cell>,
}

impl Cells {
    /// `count` cells, or one for every byte where the file has fewer bytes.
    pub(super) fn new(span_bytes: u64, count: usize) -> Self {
        let count = usize::try_from(span_bytes).map_or(count, |bytes| bytes.min(count));
        Self {
            span_bytes,
            cells: vec![Cell::default(); count],
        }
    }

    /// Spreads an extent over its cells; the part after the span is ignored.
    pub(super) fn add(&mut self, extent: &Extent, joint: Joint) {
        let span = ByteRange::new(0, self.span_bytes);
        let Some(mut rest) = extent.clip(span) else {
            return;
        };
        let first = self.index_of(rest.logical.start());
        if joint == Joint::Breaks {
            let cell = &mut self.cells[first];
            cell.boundaries = cell.boundaries.saturating_add(1);
        }
        for at in first..self.cells.len() {
            let end = self.start_of(at + 1);
            let Some(part) = rest.clip(ByteRange::new(0, end)) else {
                return;
            };
            self.cells[at].add(&part);
            match rest.clip(ByteRange::new(end, self.span_bytes)) {
                Some(next) => rest = next,
                None => return,
            }
        }
    }

    /// Bytes that the cells stand for.
    pub(super) fn span_bytes(&self) -> u64 {
        self.span_bytes
    }

    /// The cells, in the order of the file.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &Cell> {
        self.cells.iter()
    }

    /// The same as `count` cells: cells are joined, or shown more than once.
    pub(super) fn resampled(&self, count: usize) -> Vec<Cell> {
        let have = self.cells.len();
        if have == 0 {
            return Vec::new();
        }
        (0..count)
            .map(|at| {
                let first = at * have / count;
                let end = ((at + 1) * have / count).max(first + 1);
                let mut cell = self.cells[first].clone();
                for other in &self.cells[first + 1..end] {
                    cell.absorb(other);
                }
                // A boundary is one line, however wide its cell is drawn.
                if at > 0 && (at - 1) * have / count == first {
                    cell.boundaries = 0;
                }
                cell
            })
            .collect()
    }

    fn index_of(&self, offset: u64) -> usize {
        let guess = u128::from(offset) * self.cells.len() as u128 / u128::from(self.span_bytes);
        let guess = guess as usize;
        // Cell borders are rounded down, so the guess may be one short.
        if guess + 1 < self.cells.len() && self.start_of(guess + 1) <= offset {
            guess + 1
        } else {
            guess
        }
    }

    fn start_of(&self, at: usize) -> u64 {
        (u128::from(self.span_bytes) * at as u128 / self.cells.len() as u128) as u64
    }
}

#[cfg(test)]
mod tests {
    use extant_space::{ExtentFlags, ExtentState};

    use super::*;
    use crate::map::cell::{Mixture, PLACES_MAX};
    use crate::map::fill::Fill;

    fn extent(start: u64, end: u64, physical: u64, state: ExtentState) -> Extent {
        Extent {
            logical: ByteRange::new(start, end),
            physical: (state != ExtentState::Hole).then_some(physical),
            state,
            flags: ExtentFlags::empty(),
        }
    }

    #[test]
    fn every_byte_lands_in_one_cell() {
        for span in [1u64, 7, 100, 4096, 1_000_003] {
            for count in [1, 3, 64, 860] {
                let mut cells = Cells::new(span, count);
                let mut at = 0;
                let mut step = 1;
                while at < span {
                    let end = (at + step).min(span);
                    cells.add(&extent(at, end, at, ExtentState::Written), Joint::Continues);
                    (at, step) = (end, step * 3 % 1000 + 1);
                }
                let total: u64 = cells.iter().map(Cell::total_bytes).sum();
                assert_eq!(total, span, "span {span}, {count} cells");
                let (most, least) = (span.div_ceil(count as u64), span / count as u64);
                assert!(
                    cells
                        .iter()
                        .all(|cell| (least.max(1)..=most).contains(&cell.total_bytes())),
                    "span {span}, {count} cells"
                );
            }
        }
    }

    #[test]
    fn cell_of_two_states_is_mixed_from_an_eighth_on() {
        let mut cells = Cells::new(2048, 2);
        cells.add(&extent(0, 896, 0, ExtentState::Written), Joint::Continues);
        cells.add(&extent(896, 1920, 0, ExtentState::Hole), Joint::Continues);
        cells.add(
            &extent(1920, 2048, 0, ExtentState::Unwritten),
            Joint::Continues,
        );
        let found: Vec<_> = cells.iter().map(Cell::dominant).collect();
        assert_eq!(
            found,
            [
                (Fill::Written, Mixture::Mixed),
                (Fill::Hole, Mixture::Mixed)
            ]
        );
    }

    #[test]
    fn places_of_a_crowded_cell_stay_at_their_ends() {
        let mut cells = Cells::new(1 << 20, 1);
        for i in 0..100u64 {
            let base = if i % 2 == 0 { 0 } else { 1 << 40 };
            let part = extent(
                i * 4096,
                (i + 1) * 4096,
                base + i * 8192,
                ExtentState::Written,
            );
            cells.add(&part, Joint::Breaks);
        }
        let cell = cells.iter().next().unwrap();
        assert_eq!(cell.boundaries, 100);
        assert!(cell.places().count() <= PLACES_MAX);
        // Nothing is drawn between the two groups.
        assert!(cell.places().all(|place| place.len() < 1 << 20));
    }

    #[test]
    fn extents_past_the_span_are_left_out() {
        let mut cells = Cells::new(4096, 4);
        cells.add(
            &extent(0, 1 << 50, 0, ExtentState::Written),
            Joint::Continues,
        );
        cells.add(
            &extent(1 << 50, 1 << 51, 0, ExtentState::Hole),
            Joint::Breaks,
        );
        assert_eq!(cells.iter().map(Cell::total_bytes).sum::<u64>(), 4096);
        let mut empty = Cells::new(0, 4);
        empty.add(&extent(0, 4096, 0, ExtentState::Written), Joint::Breaks);
        assert_eq!(empty.iter().len(), 0);
        assert!(empty.resampled(10).is_empty());
    }

    #[test]
    fn resampling_keeps_order_and_draws_a_boundary_once() {
        let mut cells = Cells::new(2, 860);
        assert_eq!(cells.iter().len(), 2);
        cells.add(&extent(0, 1, 10, ExtentState::Written), Joint::Continues);
        cells.add(&extent(1, 2, 90, ExtentState::Unwritten), Joint::Breaks);
        let wide = cells.resampled(10);
        assert_eq!(wide.iter().map(|cell| cell.boundaries).sum::<u32>(), 1);
        assert_eq!(wide[4].dominant().0, Fill::Written);
        assert_eq!(wide[5].boundaries, 1);
        assert_eq!(cells.resampled(1)[0].total_bytes(), 2);
    }
}
