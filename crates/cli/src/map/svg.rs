//! The picture as SVG 1.1.
//!
//! Every file's bar is followed by a `<title>` of its own through the labels;
//! rectangles of one colour that follow each other share a path.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::picture::{Anchor, Label, Picture, Style};

/// For readers who do not see the picture; the figures are in the text and in the page.
const DESCRIPTION: &str = "For each file a bar by offset in the file, coloured by state, and \
    below it the places of its extents on the device.";

/// Writes the document.
pub(super) fn write(picture: &Picture, out: &mut dyn Write) -> io::Result<()> {
    let Picture { width, height, .. } = *picture;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{}\" height=\"{}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"'DejaVu Sans Mono',monospace\" shape-rendering=\"crispEdges\">",
        width / 2,
        height / 2
    )?;
    writeln!(out, "<title>{}</title>", escaped(&picture.title))?;
    writeln!(out, "<desc>{DESCRIPTION}</desc>")?;
    writeln!(
        out,
        "<path class=\"background\" fill=\"{}\" d=\"M0 0h{width}v{height}h-{width}z\"/>",
        picture.background.hex()
    )?;
    for bar in &picture.bars {
        writeln!(
            out,
            "<rect class=\"bar\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>",
            bar.x,
            bar.y,
            bar.width,
            bar.height,
            bar.color.hex()
        )?;
    }
    for run in picture.rects.chunk_by(|a, b| a.color == b.color) {
        write!(out, "<path fill=\"{}\" d=\"", run[0].color.hex())?;
        for rect in run {
            let (width, height) = (rect.width, rect.height);
            write!(out, "M{} {}h{width}v{height}h-{width}z", rect.x, rect.y)?;
        }
        writeln!(out, "\"/>")?;
    }
    for label in &picture.labels {
        write_label(label, out)?;
    }
    writeln!(out, "</svg>")
}

fn write_label(label: &Label, out: &mut dyn Write) -> io::Result<()> {
    let anchor = match label.anchor {
        Anchor::Left => "",
        Anchor::Middle => " text-anchor=\"middle\"",
        Anchor::Right => " text-anchor=\"end\"",
    };
    let weight = match label.style {
        Style::Title | Style::Name => " font-weight=\"bold\"",
        Style::Text | Style::Small => "",
    };
    let line = label.style.size();
    writeln!(
        out,
        // Monospaced letters are 0.6 of the font size wide; the base line is four fifths down.
        "<text x=\"{}\" y=\"{}\" font-size=\"{}\" fill=\"{}\"{anchor}{weight} xml:space=\"preserve\">{}</text>",
        label.x,
        label.y + line * 4 / 5,
        label.style.advance() * 5 / 3,
        label.color.hex(),
        escaped(&label.text)
    )
}

/// Text escaped for XML; characters that XML 1.0 cannot hold are replaced.
fn escaped(text: &str) -> String {
    let mut xml = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => xml.push_str("&amp;"),
            '<' => xml.push_str("&lt;"),
            '>' => xml.push_str("&gt;"),
            '"' => xml.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => xml.push('\u{fffd}'),
            // Infallible: writing to a String cannot fail.
            c if c.is_control() => drop(write!(xml, "{}", c.escape_default())),
            c => xml.push(c),
        }
    }
    xml
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use extant_space::MapSummary;

    use super::*;
    use crate::map::listing::Opened;
    use crate::map::picture::{CELLS, color_of};
    use crate::map::samples;

    fn drawn(names: &[&str]) -> String {
        let files: Vec<_> = names
            .iter()
            .map(|name| {
                let opened = Opened::new(Path::new(name), extant_image::Format::Raw, 64 << 20);
                samples::mapped(opened, &samples::four_states(), CELLS, |_, _| {})
            })
            .collect();
        let picture = Picture::new(&files, &MapSummary::default(), files.len() as u64);
        let mut out = Vec::new();
        write(&picture, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn document_is_well_formed_and_has_a_bar_per_file() {
        let svg = drawn(&["a", "<b> & \"c\"", "d\u{1}\u{ffff}", "größe"]);
        let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}"));
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "svg");
        let bars = document
            .descendants()
            .filter(|node| node.attribute("class") == Some("bar"));
        assert_eq!(bars.count(), 4);
        let texts: Vec<_> = document
            .descendants()
            .filter_map(|node| node.text())
            .collect();
        assert!(texts.contains(&"<b> & \"c\""));
        assert!(texts.contains(&"größe"));
        assert!(texts.contains(&"d\\u{1}\u{fffd}"));
    }

    #[test]
    fn states_have_their_colours() {
        let svg = drawn(&["a"]);
        for fill in crate::map::fill::Fill::ALL {
            assert!(svg.contains(&color_of(fill).hex()), "{fill:?}");
        }
    }
}
