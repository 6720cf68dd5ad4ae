//! The numbers of a table as panels of bars.
//!
//! A saved table holds text. A column has the unit of the figures whose medians its cells show;
//! columns of one unit share a panel and its scale, so that Extant and its peers can be compared.
//! A column of other numbers, such as ratios, has a panel of its own. Rows of a column may have
//! different units; each then goes to the panel of its unit.

use extant_page::Tone;

use crate::saved::{Figure, SavedTable};
use crate::table::number;

/// Heading of a column with the ranges of the column before it.
const SPREAD: &str = "spread";

/// A number of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// The median, or what the table shows.
    pub value: f64,
    /// Least and greatest sample.
    pub range: Option<(f64, f64)>,
    /// Its colour, if that is not the colour of its series.
    pub tone: Option<Tone>,
}

/// Bars with one scale.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Unit or heading.
    pub title: String,
    /// Names of the bars of a row.
    pub series: Vec<String>,
    /// For each row the bars, in the order of `series`.
    pub rows: Vec<Vec<Option<Bar>>>,
    /// A value with a line through all rows.
    pub mark: Option<f64>,
}

/// The panels of a table, in the order of its columns.
pub fn panels(table: &SavedTable, figures: &[Figure]) -> Vec<Panel> {
    let mut panels: Vec<(String, Panel)> = Vec::new();
    for (column, heading) in table.heading.iter().enumerate().skip(1) {
        if heading == SPREAD {
            continue;
        }
        let cells = cells(table, figures, column);
        let mut units: Vec<_> = cells
            .iter()
            .flatten()
            .filter_map(|cell| cell.unit)
            .collect();
        let matched = units.len();
        units.dedup();
        // Some cells of a column may show a least or a sum.
        let of_column = match units[..] {
            [unit] if 2 * matched >= cells.iter().flatten().count() => Some(unit),
            _ => None,
        };
        for (row, cell) in cells.iter().enumerate() {
            let Some(cell) = cell else { continue };
            let key = of_column.or(cell.unit).unwrap_or(heading);
            let place = panels.iter().position(|(known, _)| known == key);
            let place = place.unwrap_or_else(|| {
                panels.push((key.to_owned(), Panel::empty(table.rows.len())));
                panels.len() - 1
            });
            panels[place].1.add(heading, row, cell.bar);
        }
    }
    let named = panels.into_iter().map(|(key, panel)| {
        let title = match &panel.series[..] {
            [only] if panel.rows.iter().all(|row| row.len() == 1) => only.clone(),
            _ if key.is_empty() => "ratio".to_owned(),
            _ => key,
        };
        Panel { title, ..panel }
    });
    named.collect()
}

impl Panel {
    fn empty(rows: usize) -> Self {
        Self {
            title: String::new(),
            series: Vec::new(),
            rows: vec![Vec::new(); rows],
            mark: None,
        }
    }

    fn add(&mut self, series: &str, row: usize, bar: Bar) {
        let place = self.series.iter().position(|known| known == series);
        let place = place.unwrap_or_else(|| {
            self.series.push(series.to_owned());
            self.series.len() - 1
        });
        let bars = &mut self.rows[row];
        bars.resize(bars.len().max(place + 1), None);
        bars[place] = Some(bar);
    }
}

struct Cell<'a> {
    bar: Bar,
    /// That of the figure it shows.
    unit: Option<&'a str>,
}

fn cells<'a>(table: &SavedTable, figures: &'a [Figure], column: usize) -> Vec<Option<Cell<'a>>> {
    let heading = &table.heading[column];
    let has_spread = table
        .heading
        .get(column + 1)
        .is_some_and(|next| next == SPREAD);
    let cells = table.rows.iter().map(|row| {
        let text = &row[column];
        let value = text.parse().ok()?;
        let figure = figure_of(text, row[0].trim(), heading, figures);
        let range = if has_spread {
            row[column + 1]
                .split_once("..")
                .and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)))
        } else {
            let sampled = figure.filter(|figure| figure.samples.len() > 1);
            sampled.map(Figure::range)
        };
        let tone = None;
        Some(Cell {
            bar: Bar { value, range, tone },
            unit: figure.map(|figure| &*figure.unit),
        })
    });
    cells.collect()
}

/// The figure that a cell shows: its median is written like the cell, and its name or unit has to
/// do with the row or the column.
fn figure_of<'a>(
    text: &str,
    row: &str,
    heading: &str,
    figures: &'a [Figure],
) -> Option<&'a Figure> {
    let shown = figures
        .iter()
        .filter(|figure| number(figure.median()) == text);
    let likeness = |figure: &Figure| {
        let Figure { name, unit, .. } = figure;
        let is_unit = !unit.is_empty() && (heading.contains(&**unit) || row.contains(&**unit));
        2 * usize::from(name.contains(row) || row.contains(&**name))
            + usize::from(name.contains(heading))
            + usize::from(is_unit)
    };
    let alike = shown.filter(|figure| likeness(figure) > 0);
    // The first of the best.
    alike.rev().max_by_key(|figure| likeness(figure))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(heading: &[&str], rows: &[&[&str]]) -> SavedTable {
        let owned = |cells: &[&str]| cells.iter().map(|cell| (*cell).to_owned()).collect();
        SavedTable {
            heading: owned(heading),
            rows: rows.iter().map(|row| owned(row)).collect(),
        }
    }

    #[test]
    fn peers_share_the_panel_of_their_unit_and_ratios_have_their_own() {
        let table = table(
            &["requests", "extant", "spread", "qemu", "spread", "/ qemu"],
            &[&["read", "20.0", "10.0..30.0", "5.00", "4.00..6.00", "4.00"]],
        );
        let figures = [
            Figure::of_samples("read, extant", "k/s", &[10.0, 20.0, 30.0]),
            Figure::of_samples("read, qemu", "k/s", &[4.0, 5.0, 6.0]),
        ];
        let [rates, ratio] = &panels(&table, &figures)[..] else {
            panic!("{table:?}");
        };
        assert_eq!((&*rates.title, &*ratio.title), ("k/s", "/ qemu"));
        assert_eq!(rates.series, ["extant", "qemu"]);
        let ranges = rates.rows[0].iter().flatten().map(|bar| bar.range);
        assert_eq!(
            ranges.collect::<Vec<_>>(),
            [Some((10.0, 30.0)), Some((4.0, 6.0))]
        );
        assert_eq!(
            (ratio.rows[0].len(), ratio.rows[0][0].unwrap().value),
            (1, 4.0)
        );
    }

    #[test]
    fn rows_of_other_units_go_to_other_panels() {
        let table = table(
            &["", "unit", "median"],
            &[&["exit", "ms", "4.00"], &["written", "MiB", "900"]],
        );
        let figures = [
            Figure::of_samples("exit", "ms", &[3.0, 4.0, 5.0]),
            Figure::of_samples("written", "MiB", &[900.0]),
        ];
        let panels = panels(&table, &figures);
        assert_eq!(panels.len(), 2);
        assert_eq!(panels[0].rows[0][0].unwrap().range, Some((3.0, 5.0)));
        assert_eq!((panels[0].rows[1].len(), panels[1].rows[0].len()), (0, 0));
        let titles = [&*panels[0].title, &*panels[1].title];
        assert_eq!(titles, ["ms", "MiB"]);
    }

    #[test]
    fn table_without_numbers_has_no_panel() {
        assert_eq!(panels(&table(&["a", "b"], &[&["x", "yes"]]), &[]), []);
    }
}
