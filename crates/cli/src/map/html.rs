//! The map as one HTML page: the picture of the SVG writer, and a table of the figures.
//!
//! The table has the files that are drawn, and a row for all files together.

use std::io::{self, Write};

use extant_page::{Page, Table};
use extant_space::{ByteSize, ExtentState, MapSummary};
use maud::{Markup, html};

use super::figures::{counted, figures};
use super::listing::Mapped;
use super::picture::Picture;
use super::svg;

/// Writes the page.
pub(super) fn write(
    picture: &Picture,
    drawn: &[Mapped],
    total: &MapSummary,
    files_total: u64,
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut drawing = Vec::new();
    svg::write(picture, &mut drawing)?;
    let drawing = String::from_utf8(drawing).map_err(io::Error::other)?;
    let body = html! {
        h1 { (picture.title) }
        (extant_page::picture(&drawing))
        h2 { "Figures" }
        pre { (figures(total, files_total)) }
        (table(drawn, total, files_total).html())
    };
    let page = Page {
        title: &picture.title,
        generator: concat!("extant ", env!("CARGO_PKG_VERSION")),
    };
    out.write_all(page.document(&body).as_bytes())
}

fn table(drawn: &[Mapped], total: &MapSummary, files_total: u64) -> Table {
    let heading = [
        "file",
        "size",
        "written",
        "unwritten",
        "hole",
        "shared",
        "extant",
        "extents",
        "fragments",
        "mean extent",
        "largest",
        "score",
    ];
    let mut rows: Vec<_> = drawn
        .iter()
        .map(
            |Mapped {
                 opened, summary, ..
             }| {
                let size = ByteSize(opened.size_bytes).to_string();
                row(&opened.name, size, summary)
            },
        )
        .collect();
    if files_total != 1 {
        let name = format!("all {}", counted(files_total, "file"));
        rows.push(row(&name, String::new(), total));
    }
    Table {
        caption: "Space by state, and extents".to_owned(),
        heading: heading.map(str::to_owned).to_vec(),
        rows,
    }
}

fn row(name: &str, size: String, summary: &MapSummary) -> Vec<Markup> {
    let bytes = |bytes: u64| ByteSize(bytes).to_string();
    let score = summary.fragmentation_score();
    let cells = [
        name.to_owned(),
        size,
        bytes(summary.bytes(ExtentState::Written)),
        bytes(summary.bytes(ExtentState::Unwritten)),
        bytes(summary.bytes(ExtentState::Hole)),
        bytes(summary.shared_bytes()),
        bytes(summary.extant_bytes()),
        summary.extents().to_string(),
        summary.fragments().to_string(),
        bytes(summary.mean_extent_bytes()),
        bytes(summary.largest_extent_bytes()),
        score.map_or_else(String::new, |score| format!("{score:.0}")),
    ];
    cells.iter().map(|cell| html! { (cell) }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::map::listing::Opened;
    use crate::map::picture::CELLS;
    use crate::map::samples;

    #[test]
    fn page_has_the_picture_and_the_figures_of_each_file_and_of_all() {
        let files: Vec<_> = ["a", "<b>"]
            .iter()
            .map(|name| {
                let opened = Opened::new(Path::new(name), extant_image::Format::Raw, 64 << 20);
                samples::mapped(opened, &samples::four_states(), CELLS, |_, _| {})
            })
            .collect();
        let mut total = MapSummary::default();
        files.iter().for_each(|file| total.merge(&file.summary));
        let picture = Picture::new(&files, &total, 60);
        let mut out = Vec::new();
        write(&picture, &files, &total, 60, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("class=\"bar\"").count(), 2);
        for row in [
            "<th scope=\"row\">&lt;b&gt;</th><td>64 MiB</td><td>32 MiB</td><td>16 MiB</td>",
            "<th scope=\"row\">all 60 files</th><td></td><td>64 MiB</td><td>32 MiB</td>",
        ] {
            assert!(text.contains(row), "{row} is not in {text}");
        }
    }
}
