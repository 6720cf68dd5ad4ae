//! The picture as PNG: the SVG, rendered by resvg with letters of DejaVu Sans Mono.

use std::io::{self, Write};
use std::sync::Arc;

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::Database;
use resvg::usvg::{Options, Tree};

use super::picture::Picture;
use super::svg;

const FONT: &str = "DejaVu Sans Mono";
/// Pixels per unit of the SVG, for screens of double density.
const SCALE: f32 = 2.0;

/// Writes the image: one pixel per unit of the picture, 8 bits a channel.
pub(super) fn write(picture: &Picture, out: &mut dyn Write) -> io::Result<()> {
    let pixels = render(picture)?;
    out.write_all(&pixels.encode_png().map_err(io::Error::other)?)
}

fn render(picture: &Picture) -> io::Result<Pixmap> {
    let mut document = Vec::new();
    svg::write(picture, &mut document)?;
    let tree = Tree::from_data(&document, &options()).map_err(io::Error::other)?;
    let mut pixels = Pixmap::new(picture.width, picture.height)
        .ok_or_else(|| io::Error::other("the picture is too large"))?;
    let scale = Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    Ok(pixels)
}

/// With the one font that every machine has, as it is part of the program.
fn options() -> Options<'static> {
    let mut fonts = Database::new();
    fonts.load_font_data(dejavu::sans_mono::regular().to_vec());
    fonts.load_font_data(dejavu::sans_mono::bold().to_vec());
    fonts.set_monospace_family(FONT);
    Options {
        font_family: FONT.to_owned(),
        fontdb: Arc::new(fonts),
        ..Options::default()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use extant_space::{Extent, MapSummary};

    use super::*;
    use crate::map::fill::Fill;
    use crate::map::listing::Opened;
    use crate::map::picture::{CELLS, Color, color_of};
    use crate::map::samples;

    fn drawn(names: &[&str], extents: &[Extent]) -> (Picture, Pixmap) {
        let files: Vec<_> = names
            .iter()
            .map(|name| {
                let opened = Opened::new(Path::new(name), extant_image::Format::Raw, 1);
                samples::mapped(opened, extents, CELLS, |_, _| {})
            })
            .collect();
        let picture = Picture::new(&files, &MapSummary::default(), files.len() as u64);
        let mut out = Vec::new();
        write(&picture, &mut out).unwrap();
        (picture, Pixmap::decode_png(&out).unwrap())
    }

    fn color(image: &Pixmap, x: u32, y: u32) -> Color {
        let pixel = image.pixel(x, y).unwrap();
        Color(pixel.red(), pixel.green(), pixel.blue())
    }

    #[test]
    fn image_has_the_size_and_colours_of_the_picture() {
        let (picture, image) = drawn(&["a", "b"], &samples::four_states());
        assert_eq!(
            (image.width(), image.height()),
            (picture.width, picture.height)
        );
        assert_eq!(color(&image, 0, 0), picture.background);
        for bar in &picture.bars {
            for (at, fill) in Fill::ALL.into_iter().enumerate() {
                let x = bar.x + bar.width * (2 * at as u32 + 1) / 8;
                let y = bar.y + bar.height / 2;
                assert_eq!(color(&image, x, y), color_of(fill));
            }
        }
    }

    #[test]
    fn labels_are_drawn_where_the_layout_expects_them() {
        let (picture, image) = drawn(&["größe 表"], &[]);
        let title = &picture.labels[0];
        let width = title.text.chars().count() as u32 * title.style.advance();
        let darkest = |from: u32| {
            let lines = title.y..title.y + title.style.size();
            let pixels = (from..from + 100).flat_map(|x| lines.clone().map(move |y| (x, y)));
            pixels.map(|(x, y)| color(&image, x, y).0).min().unwrap()
        };
        assert!(darkest(title.x) < title.color.0 + 40);
        assert!(darkest(title.x + width - 120) < 200, "the last letters");
        assert_eq!(darkest(title.x + width + 20), picture.background.0);
    }
}
