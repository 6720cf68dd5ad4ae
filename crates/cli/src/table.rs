//! Tables of text: a line of headings, columns as wide as what is in them.

use std::fmt;

use unicode_width::UnicodeWidthStr;

/// A table; the last column may be as long as it likes.
pub struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// One with nothing but headings.
    pub fn new(headings: &[&str; N]) -> Self {
        Self {
            rows: vec![headings.map(str::to_uppercase)],
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells);
    }
}

impl<const N: usize> fmt::Display for Table<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].width());
            cells.max().unwrap_or(0)
        };
        let widths: [usize; N] = std::array::from_fn(width);
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            for (column, cell) in row.iter().enumerate() {
                f.write_str(cell)?;
                if column + 1 < N {
                    let gap = widths[column] - cell.width() + 2;
                    write!(f, "{:gap$}", "")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_also_with_wide_characters() {
        let mut table = Table::new(&["name", "size", "path"]);
        table.row(["漢字".into(), "1".into(), "a b".into()]);
        let text = table.to_string();
        assert_eq!(text, "NAME  SIZE  PATH\n漢字  1     a b");
    }
}
