//! The picture as PNG, in bands of a few lines, so that memory does not grow with
//! the number of files. Letters are Noto Sans Mono.

use std::io::{self, Write};

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster};

use super::picture::{Anchor, Color, Label, Picture, Rect, Style};

const BAND_LINES: u32 = 128;
const CHANNELS: usize = 3;

/// Writes the image: one pixel per unit of the picture, 8 bits a channel.
pub(super) fn write(picture: &Picture, out: &mut dyn Write) -> io::Result<()> {
    let mut encoder = png::Encoder::new(out, picture.width, picture.height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    // Two pixels to a point: 144 to the inch.
    encoder.set_pixel_dims(Some(png::PixelDimensions {
        xppu: 5669,
        yppu: 5669,
        unit: png::Unit::Meter,
    }));
    let mut writer = encoder.write_header()?;
    let mut stream = writer.stream_writer()?;
    let mut band = Band::new(picture);
    while band.top < picture.height {
        band.draw(picture);
        stream.write_all(band.lines(picture.height))?;
        band.top += BAND_LINES;
    }
    stream.finish()?;
    writer.finish()?;
    Ok(())
}

/// Some lines of the image.
struct Band {
    width: u32,
    top: u32,
    pixels: Vec<u8>,
}

impl Band {
    fn new(picture: &Picture) -> Self {
        Self {
            width: picture.width,
            top: 0,
            pixels: vec![0; (picture.width * BAND_LINES) as usize * CHANNELS],
        }
    }

    /// The pixels down to the end of the image.
    fn lines(&self, height: u32) -> &[u8] {
        let lines = BAND_LINES.min(height - self.top);
        &self.pixels[..(self.width * lines) as usize * CHANNELS]
    }

    fn draw(&mut self, picture: &Picture) {
        self.fill(&Rect {
            x: 0,
            y: self.top,
            width: self.width,
            height: BAND_LINES,
            color: picture.background,
        });
        for rect in picture.bars.iter().chain(&picture.rects) {
            self.fill(rect);
        }
        for label in &picture.labels {
            let in_band =
                label.y < self.top + BAND_LINES && label.y + label.style.size() > self.top;
            if in_band {
                self.text(label);
            }
        }
    }

    fn fill(&mut self, rect: &Rect) {
        let top = rect.y.max(self.top);
        let bottom = (rect.y + rect.height).min(self.top + BAND_LINES);
        for y in top..bottom {
            let start = self.index(rect.x, y);
            let line = &mut self.pixels[start..][..rect.width as usize * CHANNELS];
            for pixel in line.chunks_exact_mut(CHANNELS) {
                pixel.copy_from_slice(&[rect.color.0, rect.color.1, rect.color.2]);
            }
        }
    }

    fn text(&mut self, label: &Label) {
        let (weight, height) = font(label.style);
        let glyphs: Vec<_> = label
            .text
            .chars()
            .filter_map(|c| get_raster(spelled(c), weight, height))
            .collect();
        let width: u32 = glyphs.iter().map(|glyph| glyph.width() as u32).sum();
        let mut x = match label.anchor {
            Anchor::Left => label.x,
            Anchor::Middle => label.x.saturating_sub(width / 2),
            Anchor::Right => label.x.saturating_sub(width),
        };
        for glyph in glyphs {
            for (line, coverage) in glyph.rows().enumerate() {
                for (column, &coverage) in coverage.iter().enumerate() {
                    self.blend(
                        x + column as u32,
                        label.y + line as u32,
                        label.color,
                        coverage,
                    );
                }
            }
            x += glyph.width() as u32;
        }
    }

    /// Blends a colour over a pixel; pixels outside the band are ignored.
    fn blend(&mut self, x: u32, y: u32, color: Color, coverage: u8) {
        let is_inside = x < self.width && (self.top..self.top + BAND_LINES).contains(&y);
        if coverage == 0 || !is_inside {
            return;
        }
        let start = self.index(x, y);
        let pixel = &mut self.pixels[start..start + CHANNELS];
        for (below, above) in pixel.iter_mut().zip([color.0, color.1, color.2]) {
            let cover = u32::from(coverage);
            let mixed = u32::from(above) * cover + u32::from(*below) * (255 - cover);
            *below = (mixed / 255) as u8;
        }
    }

    fn index(&self, x: u32, y: u32) -> usize {
        ((y - self.top) * self.width + x) as usize * CHANNELS
    }
}

fn font(style: Style) -> (FontWeight, RasterHeight) {
    match style {
        Style::Title | Style::Name => (FontWeight::Bold, RasterHeight::Size32),
        Style::Text => (FontWeight::Regular, RasterHeight::Size32),
        Style::Small => (FontWeight::Regular, RasterHeight::Size24),
    }
}

/// The font has Latin letters; for others stands a mark.
fn spelled(c: char) -> char {
    match c {
        '…' => '~',
        c if get_raster(c, FontWeight::Regular, RasterHeight::Size24).is_some() => c,
        _ => '¤',
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use extant_space::{Extent, MapSummary};

    use super::*;
    use crate::map::fill::Fill;
    use crate::map::listing::Opened;
    use crate::map::picture::CELLS;
    use crate::map::samples;

    struct Image {
        info: png::OutputInfo,
        pixels: Vec<u8>,
    }

    impl Image {
        fn at(&self, x: u32, y: u32) -> Color {
            let start = (y * self.info.width + x) as usize * CHANNELS;
            Color(
                self.pixels[start],
                self.pixels[start + 1],
                self.pixels[start + 2],
            )
        }
    }

    fn drawn(names: &[&str], extents: &[Extent]) -> (Picture, Image) {
        let files: Vec<_> = names
            .iter()
            .map(|name| {
                samples::mapped(
                    Opened::new(Path::new(name), extant_image::Format::Raw, 1),
                    extents,
                    CELLS,
                    |_, _| {},
                )
            })
            .collect();
        let picture = Picture::new(&files, &MapSummary::default(), files.len() as u64);
        let mut out = Vec::new();
        write(&picture, &mut out).unwrap();
        let mut reader = png::Decoder::new(io::Cursor::new(out)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (picture, Image { info, pixels })
    }

    #[test]
    fn image_has_the_size_and_colours_of_the_picture() {
        let (picture, image) = drawn(&["a", "b"], &samples::four_states());
        assert_eq!(
            (image.info.width, image.info.height),
            (picture.width, picture.height)
        );
        assert_eq!(image.info.color_type, png::ColorType::Rgb);
        assert_eq!(image.at(0, 0), picture.background);
        for bar in &picture.bars {
            for (at, fill) in Fill::ALL.into_iter().enumerate() {
                let x = bar.x + bar.width * (2 * at as u32 + 1) / 8;
                assert_eq!(image.at(x, bar.y + bar.height / 2), Color::of(fill));
            }
        }
    }

    #[test]
    fn letters_are_drawn_and_unknown_ones_marked() {
        let (picture, image) = drawn(&["größe 表"], &[]);
        let title = &picture.labels[0];
        let darkest = (title.x..title.x + 400)
            .flat_map(|x| (title.y..title.y + 32).map(move |y| (x, y)))
            .map(|(x, y)| image.at(x, y).0)
            .min();
        assert_eq!(darkest, Some(title.color.0));
        assert_eq!(spelled('表'), '¤');
        assert_eq!(spelled('ß'), 'ß');
    }

    #[test]
    fn advance_of_the_layout_is_that_of_the_font() {
        for style in [Style::Title, Style::Name, Style::Text, Style::Small] {
            let (weight, height) = font(style);
            let glyph = get_raster('m', weight, height).unwrap();
            assert_eq!(glyph.width() as u32, style.advance(), "{style:?}");
            assert_eq!(glyph.height() as u32, style.size());
        }
    }
}
