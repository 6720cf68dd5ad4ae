//! Tables of text: a line of headings, columns as wide as their content, numbers and sizes aligned
//! to the right.

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
        let is_numeric: [bool; N] = std::array::from_fn(|column| {
            let mut cells = self.rows[1..].iter().map(|row| row[column].as_str());
            cells.clone().any(|cell| cell != "-")
                && cells.all(|cell| cell == "-" || is_number(cell))
        });
        for (index, row) in self.rows.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            for (column, cell) in row.iter().enumerate() {
                let rest = widths[column] - cell.width();
                let (before, mut after) = if is_numeric[column] {
                    (rest, 2)
                } else {
                    (0, rest + 2)
                };
                if column + 1 == N {
                    after = 0;
                }
                write!(f, "{:before$}{cell}{:after$}", "", "")?;
            }
        }
        Ok(())
    }
}

/// A number, or one with a unit: `~32 MiB`, `42%`, `1.50 s`.
fn is_number(cell: &str) -> bool {
    let digits = cell.strip_prefix('~').unwrap_or(cell);
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = digits.split_at(end.unwrap_or(digits.len()));
    let units = ["", "%", "s", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = unit.trim_start();
    number.parse::<f64>().is_ok() && units.contains(&unit.strip_suffix("/s").unwrap_or(unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_also_with_wide_characters() {
        let mut table = Table::new(&["name", "size", "path"]);
        table.row(["漢字".into(), "1".into(), "a b".into()]);
        let text = table.to_string();
        assert_eq!(text, "NAME  SIZE  PATH\n漢字     1  a b");
    }
    #[test]
    fn columns_of_numbers_and_sizes_are_aligned_to_the_right() {
        let mut table = Table::new(&["name", "size", "rate", "all"]);
        let rows = [
            ["1 GiB.raw", "1 GiB", "1.50 MiB/s", "-"],
            ["b", "~512 MiB", "-", "100%"],
            ["c", "0 B", "12 KiB/s", "7%"],
        ];
        for row in rows {
            table.row(row.map(str::to_owned));
        }
        let wanted = "\
NAME           SIZE        RATE   ALL
1 GiB.raw     1 GiB  1.50 MiB/s     -
b          ~512 MiB           -  100%
c               0 B    12 KiB/s    7%";
        assert_eq!(table.to_string(), wanted);
    }
}
