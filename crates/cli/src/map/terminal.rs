//! The picture in a terminal: a line of blocks per file, a legend, the figures.
//!
//! Every state has a glyph of its own, so that colour only helps. Text is written to any writer, in
//! a given number of columns.

use std::io::{self, Write};

use extant_space::{ByteSize, Extent, MapSummary};

use super::cell::{Cell, Mixture};
use super::cells::Cells;
use super::figures::figures;
use super::fill::Fill;
use super::listing::{Listing, Mapped, Opened};
use super::names;
use super::table;
use crate::terminal;

const SIZE_COLUMNS: usize = 10;
const FRAGMENTS_COLUMNS: usize = 9;
const NAME_COLUMNS_MAX: usize = 28;
const BAR_COLUMNS_MIN: usize = 10;

/// Whether escape sequences are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Paint {
    Plain,
    Ansi,
}

/// Whether every extent is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// One line per file.
    Bars,
    /// A table of extents per file as well.
    Extents,
}

/// The characters that bars are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charset {
    Unicode,
    Ascii,
}

impl Charset {
    /// ASCII if the locale or the terminal supports nothing else.
    pub(super) fn of_terminal() -> Self {
        if terminal::has_utf8() {
            Self::Unicode
        } else {
            Self::Ascii
        }
    }

    fn mixed(self) -> char {
        match self {
            Self::Unicode => '▒',
            Self::Ascii => '+',
        }
    }

    fn glyph(self, fill: Fill, mixture: Mixture) -> char {
        match (mixture, fill, self) {
            (Mixture::Mixed, ..) => self.mixed(),
            (_, Fill::Written, Self::Unicode) => '█',
            (_, Fill::Shared, Self::Unicode) => '▚',
            (_, Fill::Unwritten, Self::Unicode) => '▁',
            (_, Fill::Hole, Self::Unicode) => '·',
            (_, Fill::Written, Self::Ascii) => '#',
            (_, Fill::Shared, Self::Ascii) => '%',
            (_, Fill::Unwritten, Self::Ascii) => '_',
            (_, Fill::Hole, Self::Ascii) => '.',
        }
    }

    /// A name in a fixed number of columns.
    fn column(self, text: &str, columns: usize) -> String {
        let shown = names::column(text, columns);
        match (self, shown.strip_prefix('…')) {
            (Self::Ascii, Some(rest)) if !text.starts_with('…') => format!("~{rest}"),
            _ => shown,
        }
    }
}

/// Writes lines of `columns` columns to `out`.
pub(super) struct Terminal<W> {
    out: W,
    columns: usize,
    name_columns: usize,
    paint: Paint,
    detail: Detail,
    charset: Charset,
    header: bool,
    row: u64,
    /// Fills that the legend explains, by [`Fill`], and mixed cells.
    seen: [bool; Fill::ALL.len()],
    seen_mixed: bool,
}

impl<W: Write> Terminal<W> {
    /// `longest_name` is the length of the longest path, when that is known.
    pub(super) fn new(
        out: W,
        columns: usize,
        longest_name: Option<usize>,
        paint: Paint,
        detail: Detail,
        charset: Charset,
    ) -> Self {
        let name_columns = longest_name
            .unwrap_or(NAME_COLUMNS_MAX)
            .clamp(4, NAME_COLUMNS_MAX.min((columns / 3).max(4)));
        Self {
            out,
            columns,
            name_columns,
            paint,
            detail,
            charset,
            header: false,
            row: 0,
            seen: [false; Fill::ALL.len()],
            seen_mixed: false,
        }
    }

    /// Columns of a bar, which is also the number of cells a file needs.
    pub(super) fn bar_columns(&self) -> usize {
        let others = self.name_columns + SIZE_COLUMNS + FRAGMENTS_COLUMNS + 3;
        self.columns.saturating_sub(others).max(BAR_COLUMNS_MIN)
    }

    fn header(&mut self) -> io::Result<()> {
        let line = format!(
            "{} {} {:>SIZE_COLUMNS$} {:>FRAGMENTS_COLUMNS$}",
            self.charset.column("file", self.name_columns),
            self.charset.column("map", self.bar_columns()),
            "size",
            "fragments"
        );
        self.painted("2", &line)?;
        writeln!(self.out)
    }

    fn bar(&mut self, cells: &Cells) -> io::Result<()> {
        let columns = self.bar_columns();
        let looks: Vec<_> = cells
            .resampled(columns)
            .iter()
            .map(Cell::dominant)
            .collect();
        for run in looks.chunk_by(|a, b| a == b) {
            let (fill, mixture) = run[0];
            self.seen[fill as usize] = true;
            self.seen_mixed |= mixture == Mixture::Mixed;
            let glyphs: String =
                std::iter::repeat_n(self.charset.glyph(fill, mixture), run.len()).collect();
            self.painted(ansi(fill), &glyphs)?;
        }
        // An empty file has no bar.
        write!(self.out, "{:1$}", "", columns - looks.len())
    }

    fn legend(&mut self) -> io::Result<()> {
        let mut entries: Vec<(&str, char, &str)> = Fill::ALL
            .into_iter()
            .filter(|&fill| self.seen[fill as usize])
            .map(|fill| {
                let glyph = self.charset.glyph(fill, Mixture::Plain);
                (ansi(fill), glyph, fill.name())
            })
            .collect();
        if self.seen_mixed {
            entries.push((
                "0",
                self.charset.mixed(),
                "several, coloured by the largest",
            ));
        }
        if entries.is_empty() {
            return Ok(());
        }
        for (at, (colour, glyph, name)) in entries.into_iter().enumerate() {
            if at > 0 {
                write!(self.out, "   ")?;
            }
            self.painted(colour, &glyph.to_string())?;
            write!(self.out, " {name}")?;
        }
        writeln!(self.out, "\n")
    }

    fn painted(&mut self, code: &str, text: &str) -> io::Result<()> {
        match self.paint {
            Paint::Plain => self.out.write_all(text.as_bytes()),
            Paint::Ansi => write!(self.out, "\x1b[{code}m{text}\x1b[0m"),
        }
    }
}

impl<W: Write> Listing for Terminal<W> {
    fn begin(&mut self, file: &Opened) -> io::Result<()> {
        self.row = 0;
        if self.detail == Detail::Extents {
            if self.header {
                writeln!(self.out)?;
            }
            self.header = true;
            self.painted("1", &file.name)?;
            writeln!(
                self.out,
                ": {} ({} bytes)",
                ByteSize(file.size_bytes),
                file.size_bytes
            )?;
            self.painted("2", &table::header())?;
            writeln!(self.out)?;
        } else if !self.header {
            self.header = true;
            self.header()?;
        }
        Ok(())
    }

    fn extent(&mut self, extent: &Extent, fragment: u64) -> io::Result<()> {
        if self.detail == Detail::Extents {
            let row = table::row(self.row, extent, fragment);
            self.row += 1;
            writeln!(self.out, "{row}")?;
        }
        Ok(())
    }

    fn end(&mut self, file: &Mapped) -> io::Result<()> {
        if self.detail == Detail::Extents {
            writeln!(self.out)?;
        }
        write!(
            self.out,
            "{} ",
            self.charset.column(&file.opened.name, self.name_columns)
        )?;
        self.bar(&file.cells)?;
        let size = ByteSize(file.opened.size_bytes);
        let fragments = file.summary.fragments();
        writeln!(
            self.out,
            " {size:>SIZE_COLUMNS$} {fragments:>FRAGMENTS_COLUMNS$}"
        )?;
        if let Some(devices) = file.opened.devices_text() {
            let line = names::shortened(&format!("  on {devices}"), self.columns);
            self.painted("2", &line)?;
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn finish(&mut self, total: &MapSummary, files: u64, errors: u64) -> io::Result<()> {
        if files == 0 && errors == 0 {
            writeln!(self.out, "no regular files")?;
        } else if files > 0 {
            writeln!(self.out)?;
            self.legend()?;
            write!(self.out, "{}", figures(total, files))?;
        }
        self.out.flush()
    }
}

/// Select Graphic Rendition: colours of the sixteen that every terminal has.
fn ansi(fill: Fill) -> &'static str {
    match fill {
        Fill::Written => "32",
        Fill::Shared => "35",
        Fill::Unwritten => "33",
        Fill::Hole => "90",
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use extant_image::Format;

    use super::*;
    use crate::map::samples;

    #[test]
    fn characters_of_ascii_bars_and_names_are_ascii() {
        let all = Fill::ALL.map(|fill| Charset::Ascii.glyph(fill, Mixture::Plain));
        assert!(all.iter().all(char::is_ascii));
        assert_eq!(
            Charset::Ascii.column("/srv/images/demo.raw", 10),
            "~/demo.raw"
        );
    }

    fn drawn(files: &[(&str, u64, Vec<Extent>)], paint: Paint, detail: Detail) -> String {
        let mut out = Vec::new();
        let longest = files.iter().map(|(name, ..)| name.len()).max();
        let mut terminal = Terminal::new(&mut out, 80, longest, paint, detail, Charset::Unicode);
        let columns = terminal.bar_columns();
        let mut total = MapSummary::default();
        for (name, size_bytes, extents) in files {
            let opened = Opened::new(Path::new(name), Format::Raw, *size_bytes);
            let mapped = samples::list(&mut terminal, opened, extents, columns);
            total.merge(&mapped.summary);
        }
        terminal.finish(&total, files.len() as u64, 0).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_state_is_distinct_without_colour() {
        let text = drawn(
            &[
                ("states.raw", 64 << 20, samples::four_states()),
                ("mixed", 512 << 10, samples::scattered(128)),
                ("empty", 0, Vec::new()),
            ],
            Paint::Plain,
            Detail::Bars,
        );
        let expected = "\
file       map                                                    size fragments
states.raw ████████████▚▚▚▚▚▚▚▚▚▚▚▚▁▁▁▁▁▁▁▁▁▁▁▁············     64 MiB         3
mixed      ▒▒▒▒█▒▒▒██▒▒█▒█▒▒▒▒██▒▒▒█▒▒█▒█▒██▒▒▒▒▒▒█▒▒███▒▒█    512 KiB       128
empty                                                              0 B         0

█ written   ▚ shared   ▁ unwritten   · hole   ▒ several, coloured by the largest

files      3
written    32.40 MiB   50.2%
unwritten  16.10 MiB   25.0%
hole       16 MiB      24.8%
shared     16 MiB      24.8%
extant     16.40 MiB   25.4%
extents    131 in 131 fragments; mean 379.11 KiB, largest 16 MiB
score      8 of 100, no problem (e4defrag's: 131 extents where 2 would do)
";
        assert_eq!(text, expected, "\n{text}");
    }

    #[test]
    fn no_line_is_longer_than_the_terminal() {
        let long = format!("/srv/{}/表表.raw", "directory/".repeat(30));
        let text = drawn(
            &[(&long, 64 << 20, samples::four_states())],
            Paint::Plain,
            Detail::Extents,
        );
        for line in text.lines().filter(|line| !line.starts_with(&long)) {
            let width = unicode_width::UnicodeWidthStr::width(line);
            assert!(width <= 80, "{width}: {line}");
        }
    }

    #[test]
    fn colours_are_reset_after_every_run() {
        let text = drawn(
            &[("a", 64 << 20, samples::four_states())],
            Paint::Ansi,
            Detail::Bars,
        );
        assert!(text.contains("\x1b[32m██"));
        assert_eq!(text.matches('\x1b').count() % 2, 0);
    }
}
