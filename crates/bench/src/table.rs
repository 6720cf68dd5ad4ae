//! Tables in plain text: numbers to the right, text to the left.

use std::fmt;

use serde::Serialize;

use crate::metrics::Metric;

/// Rows of cells under a heading. The first column and those without a heading hold text.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(heading: &[&str]) -> Self {
        Self {
            heading: heading.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// When it has another number of cells than the heading.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.heading.len(), "{cells:?}");
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        let rows = || std::iter::once(&self.heading).chain(&self.rows);
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max();
        (0..self.heading.len()).filter_map(width).collect()
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        for row in std::iter::once(&self.heading).chain(&self.rows) {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                line += &match column {
                    0 => format!("{cell:<width$}"),
                    _ if self.heading[column].is_empty() => format!("  {cell:<width$}"),
                    _ => format!("  {cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A number with three digits that count, at least; `1234`, `12.3`, `0.123`.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 || size == 0.0 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Median of a metric, or nothing.
pub fn median(metric: Option<&Metric>) -> String {
    metric.map_or_else(String::new, |metric| number(metric.median()))
}

/// `min..max` of a metric, or nothing.
pub fn spread(metric: Option<&Metric>) -> String {
    metric.map_or_else(String::new, |metric| {
        format!("{}..{}", number(metric.min()), number(metric.max()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let mut table = Table::new(&["method", "MiB/s", ""]);
        table.row(vec!["dd".into(), "1445".into(), "".into()]);
        table.row(vec!["größer".into(), "7".into(), "!".into()]);
        let text = "method  MiB/s\ndd       1445\ngrößer      7  !\n";
        assert_eq!(table.to_string(), text);
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1234.5, "1234"),
            (99.96, "100"),
            (12.34, "12.3"),
            (1.0, "1.00"),
            (0.1234, "0.123"),
            (-0.5, "-0.500"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn cell_without_samples_is_empty() {
        assert_eq!((median(None), spread(None)), (String::new(), String::new()));
    }
}
