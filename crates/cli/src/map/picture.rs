//! The picture of file maps: rectangles and labels, which the SVG and the PNG
//! writers draw alike.
//!
//! Units are half points: the PNG has one pixel for each, the SVG is shown at
//! half the size, so that both are as large on a screen of double density.
//!
//! Every file is a row: its name and figures, a bar by offset in the file coloured
//! by state, with a line where a fragment begins, and below it the placement: the
//! same offsets to the right, offsets on the device upwards. A file in one
//! piece is one rising line there.

mod model;
mod placement;

use extant_space::{ByteSize, MapSummary};

use super::cell::Cell;
use super::figures::counted;
use super::fill::Fill;
use super::listing::Mapped;
use super::names;

pub(super) use self::model::{Anchor, Color, Label, Rect, Style, color_of};
use self::model::{BACKGROUND, FAINT_INK, INK, PANEL, PLACE, boundary_on};

/// Cells a file needs to be drawn.
pub(super) const CELLS: usize = 860;

/// Maximum number of files in one picture, which keeps it readable and bounds memory.
pub(super) const FILES_MAX: usize = 48;

/// With more files than these, rows are lower and have no axis.
const ROOMY_FILES_MAX: usize = 6;

/// With more files than these, rows have no placement either.
const PLACED_FILES_MAX: usize = 20;

const CELL_WIDTH: u32 = 2;
const PLOT_WIDTH: u32 = CELLS as u32 * CELL_WIDTH;
const PLOT_LEFT: u32 = 196;
const PLOT_RIGHT: u32 = PLOT_LEFT + PLOT_WIDTH;
const MARGIN: u32 = 56;
const WIDTH: u32 = PLOT_RIGHT + MARGIN;

/// Elements, back to front: rectangles, then labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) title: String,
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) background: Color,
    pub(super) rects: Vec<Rect>,
    pub(super) labels: Vec<Label>,
    /// Position of each file's bar, for tests and for links in the SVG.
    pub(super) bars: Vec<Rect>,
}

/// Heights of a row.
struct Row {
    bar: u32,
    plot: u32,
    axis: u32,
    gap: u32,
}

impl Picture {
    /// Draws the first [`FILES_MAX`] of `files_total` files.
    pub(super) fn new(files: &[Mapped], total: &MapSummary, files_total: u64) -> Self {
        let title = match files {
            [file] if files_total == 1 => format!("Extent map of {}", file.opened.name),
            _ => format!("Extent map of {}", counted(files_total, "file")),
        };
        let mut picture = Self {
            title,
            width: WIDTH,
            height: MARGIN,
            background: BACKGROUND,
            rects: Vec::new(),
            labels: Vec::new(),
            bars: Vec::new(),
        };
        picture.heading(total);
        picture.legend(files);
        let row = if files.len() <= ROOMY_FILES_MAX {
            Row {
                bar: 56,
                plot: 160,
                axis: 52,
                gap: 36,
            }
        } else if files.len() > PLACED_FILES_MAX {
            Row {
                bar: 18,
                plot: 0,
                axis: 0,
                gap: 16,
            }
        } else {
            Row {
                bar: 32,
                plot: 56,
                axis: 0,
                gap: 28,
            }
        };
        for file in files {
            picture.row(file, &row);
        }
        let missing = files_total.saturating_sub(files.len() as u64);
        if missing > 0 {
            let text = format!("and {} not drawn", counted(missing, "more file"));
            picture.label(PLOT_LEFT, text, Style::Text, Anchor::Left, FAINT_INK);
            picture.height += 40;
        }
        picture.height += MARGIN / 2;
        picture
    }

    fn heading(&mut self, total: &MapSummary) {
        let columns = ((PLOT_RIGHT - MARGIN) / Style::Title.advance()) as usize;
        let title = names::shortened(&self.title, columns);
        self.label(MARGIN, title, Style::Title, Anchor::Left, INK);
        self.height += 44;
        let mut figures = format!(
            "{} allocated, {} extant, {} in {}",
            ByteSize(total.allocated_bytes()),
            ByteSize(total.extant_bytes()),
            counted(total.extents(), "extent"),
            counted(total.fragments(), "fragment"),
        );
        if let (Some(score), Some(words)) = (total.fragmentation_score(), total.fragmentation()) {
            figures.push_str(&format!("; fragmentation {score:.0} of 100, {words}"));
        }
        self.label(MARGIN, figures, Style::Text, Anchor::Left, FAINT_INK);
        self.height += 56;
    }

    fn legend(&mut self, files: &[Mapped]) {
        let mut x = MARGIN;
        let y = self.height;
        for fill in Fill::ALL {
            // Shared space is rare; the three states are always explained.
            let is_seen = |file: &Mapped| file.cells.iter().any(|cell| cell.bytes(fill) > 0);
            if fill == Fill::Shared && !files.iter().any(is_seen) {
                continue;
            }
            self.rect(x, y + 5, 24, 24, color_of(fill));
            x = self.legend_text(x + 34, fill.name());
        }
        let written = color_of(Fill::Written);
        self.rect(x, y + 5, 24, 24, written);
        self.rect(x + 11, y + 5, 2, 24, boundary_on(written));
        x = self.legend_text(x + 34, "a fragment begins");
        self.rect(x, y + 5, 24, 24, PANEL);
        for step in 0..5 {
            self.rect(x + 2 + step * 4, y + 23 - step * 4, 4, 4, PLACE);
        }
        self.legend_text(x + 34, "place on the device");
        self.height += 72;
    }

    /// Sets `text` at `x`; returns where the next entry begins.
    fn legend_text(&mut self, x: u32, text: &str) -> u32 {
        self.label(x, text.to_owned(), Style::Text, Anchor::Left, INK);
        x + text.len() as u32 * Style::Text.advance() + 40
    }

    fn row(&mut self, file: &Mapped, row: &Row) {
        self.caption(file);
        self.height += 42;
        let bar = Rect {
            x: PLOT_LEFT,
            y: self.height,
            width: PLOT_WIDTH,
            height: row.bar,
            color: color_of(Fill::Hole),
        };
        self.bars.push(bar);
        let cells = file.cells.resampled(CELLS);
        if cells.is_empty() {
            self.rect(bar.x, bar.y, bar.width, bar.height, PANEL);
            let y = bar.y + (bar.height - Style::Small.size()) / 2;
            let text = "an empty file".to_owned();
            self.label_at(bar.x + 16, y, text, Style::Small, Anchor::Left, FAINT_INK);
            self.height += row.bar + row.gap;
            return;
        }
        self.bar(bar, &cells);
        self.height += row.bar + 6;
        if row.plot > 0 {
            self.placement(&cells, row);
        }
        self.height += row.plot;
        if row.axis > 0 {
            self.axis(file.cells.span_bytes());
            self.height += row.axis;
        }
        self.height += row.gap;
    }

    fn caption(&mut self, file: &Mapped) {
        let summary = &file.summary;
        let mut figures = ByteSize(file.opened.size_bytes).to_string();
        if summary.extents() > 0 {
            figures.push_str(&format!(
                ", {} in {}",
                counted(summary.extents(), "extent"),
                counted(summary.fragments(), "fragment")
            ));
        }
        if let Some(score) = summary.fragmentation_score() {
            figures.push_str(&format!(", score {score:.0}"));
        }
        let taken = figures.chars().count() as u32 * Style::Text.advance() + 40;
        let columns = (PLOT_WIDTH - taken) / Style::Name.advance();
        let mut name = file.opened.name.clone();
        if let Some(devices) = file.opened.devices_text() {
            name.push_str(&format!(" on {devices}"));
        }
        let name = names::shortened(&name, columns as usize);
        self.label(PLOT_LEFT, name, Style::Name, Anchor::Left, INK);
        self.label(PLOT_RIGHT, figures, Style::Text, Anchor::Right, FAINT_INK);
    }

    /// The states, in every cell stacked by their bytes, and the boundaries.
    fn bar(&mut self, bar: Rect, cells: &[Cell]) {
        let stacks: Vec<_> = cells.iter().map(|cell| stack(cell, bar.height)).collect();
        let mut x = bar.x;
        for run in stacks.chunk_by(|a, b| a == b) {
            let width = run.len() as u32 * CELL_WIDTH;
            let mut bottom = bar.y + bar.height;
            for (fill, height) in Fill::ALL.into_iter().zip(run[0]) {
                bottom -= height;
                self.rect(x, bottom, width, height, color_of(fill));
            }
            x += width;
        }
        for (at, cell) in cells.iter().enumerate() {
            if cell.boundaries > 0 {
                let color = boundary_on(color_of(cell.dominant().0));
                self.rect(bar.x + at as u32 * CELL_WIDTH, bar.y, 1, bar.height, color);
            }
        }
    }

    fn rect(&mut self, x: u32, y: u32, width: u32, height: u32, color: Color) {
        if width > 0 && height > 0 {
            self.rects.push(Rect {
                x,
                y,
                width,
                height,
                color,
            });
        }
    }

    /// A label at the current height.
    fn label(&mut self, x: u32, text: String, style: Style, anchor: Anchor, color: Color) {
        self.label_at(x, self.height, text, style, anchor, color);
    }

    fn label_at(
        &mut self,
        x: u32,
        y: u32,
        text: String,
        style: Style,
        anchor: Anchor,
        color: Color,
    ) {
        self.labels.push(Label {
            x,
            y,
            text,
            style,
            anchor,
            color,
        });
    }
}

/// Heights of the fills of a cell, in the order of [`Fill::ALL`], `height` in all.
/// Every element is at least one unit high.
fn stack(cell: &Cell, height: u32) -> [u32; Fill::ALL.len()] {
    let total = u128::from(cell.total_bytes().max(1));
    let mut heights = Fill::ALL.map(|fill| {
        let bytes = u128::from(cell.bytes(fill));
        let share = (bytes * u128::from(height) / total) as u32;
        if bytes > 0 { share.max(1) } else { 0 }
    });
    let largest = cell.dominant().0 as usize;
    let others = heights.iter().sum::<u32>() - heights[largest];
    heights[largest] = height - others;
    heights
}

#[cfg(test)]
mod tests;
