//! The lower half of a row: the locations of the file on the device, and the axis of offsets in the
//! file.

use extant_space::ByteSize;

use super::model::{Anchor, FAINT_INK, LINE, PANEL, PLACE, Style};
use super::{CELL_WIDTH, PLOT_LEFT, PLOT_RIGHT, PLOT_WIDTH, Picture, Row};
use crate::map::cell::Cell;
use crate::map::fill::Fill;

impl Picture {
    /// Locations of the file: offsets in the file to the right, on the device upwards.
    pub(super) fn placement(&mut self, cells: &[Cell], row: &Row) {
        let (top, height) = (self.height, row.plot);
        self.rect(PLOT_LEFT, top, PLOT_WIDTH, height, PANEL);
        let low = cells.iter().flat_map(Cell::places).map(|p| p.start()).min();
        let high = cells.iter().flat_map(Cell::places).map(|p| p.end()).max();
        let (Some(low), Some(high)) = (low, high) else {
            let y = top + (height - Style::Small.size()) / 2;
            let has_space = cells
                .iter()
                .any(|cell| cell.bytes(Fill::Hole) < cell.total_bytes());
            let text = if has_space {
                "the map has no locations"
            } else {
                "no space is allocated"
            };
            let text = text.to_owned();
            self.label_at(
                PLOT_LEFT + 16,
                y,
                text,
                Style::Small,
                Anchor::Left,
                FAINT_INK,
            );
            return;
        };
        const INSET: u32 = 6;
        const DOT: u32 = 4;
        let room = u128::from(height - 2 * INSET - DOT);
        let span = u128::from((high - low).max(1));
        let y_of = |place: u64| {
            let up = (u128::from(place - low) * room / span) as u32;
            top + height - INSET - DOT - up
        };
        for (at, cell) in cells.iter().enumerate() {
            for place in cell.places() {
                let (upper, lower) = (y_of(place.end() - 1), y_of(place.start()));
                let x = PLOT_LEFT + at as u32 * CELL_WIDTH;
                self.rect(x, upper, CELL_WIDTH, lower - upper + DOT, PLACE);
            }
        }
        let x = PLOT_LEFT - 14;
        let bottom = top + height - Style::Small.size();
        // Two offsets on a large device look alike; their distance does not.
        let above = format!("+{}", rounded(high - low));
        for (y, text) in [(top, above), (bottom, rounded(low))] {
            self.label_at(x, y, text, Style::Small, Anchor::Right, FAINT_INK);
        }
    }

    /// Offsets in the file, below the placement.
    pub(super) fn axis(&mut self, span_bytes: u64) {
        const LABEL_WIDTH: u32 = 120;
        let top = self.height;
        // At least every eighth of the file, in steps that have short names.
        let step = (span_bytes / 8)
            .max(1)
            .checked_next_power_of_two()
            .unwrap_or(1 << 63);
        let mut offset = 0u64;
        loop {
            let along = u128::from(offset) * u128::from(PLOT_WIDTH) / u128::from(span_bytes);
            let x = PLOT_LEFT + along as u32;
            self.rect(x.min(PLOT_RIGHT - 2), top, 2, 10, LINE);
            let anchor = match offset {
                0 => Anchor::Left,
                _ if x + LABEL_WIDTH / 2 > PLOT_RIGHT => Anchor::Right,
                _ => Anchor::Middle,
            };
            let text = match offset {
                0 => "0".to_owned(),
                _ => ByteSize(offset).to_string(),
            };
            self.label_at(x, top + 14, text, Style::Small, anchor, FAINT_INK);
            match offset.checked_add(step) {
                Some(next) if next <= span_bytes => offset = next,
                _ => break,
            }
        }
    }
}

/// An offset on a device in few characters.
fn rounded(bytes: u64) -> String {
    let power = bytes.max(1).ilog2() / 10;
    let unit = 1u64 << (10 * power);
    if bytes.is_multiple_of(unit) {
        ByteSize(bytes).to_string()
    } else {
        let letter = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power as usize];
        format!("{:.1} {letter}B", bytes as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_short() {
        assert_eq!(rounded(0), "0 B");
        assert_eq!(rounded(4096), "4 KiB");
        assert_eq!(rounded((7 << 40) + 1), "7.0 TiB");
        assert_eq!(rounded(u64::MAX), "16.0 EiB");
    }
}
