//! Pages opened in headless Chromium, without a network: their contents, messages and pixels.
//!
//! A resource that the page's own policy forbids, or a script that fails, becomes a message on the
//! console. Each view has a profile of its own, which is removed.

use std::fs;
use std::path::Path;

use crate::command;
use crate::workdir::Workdir;

/// The colours that a page is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Dark ink on light.
    Light,
    /// Light ink on dark.
    Dark,
}

/// A page as the browser shows it.
#[derive(Debug)]
pub struct View {
    /// The document after it was loaded, as HTML.
    pub document: String,
    /// Messages on the console.
    pub messages: Vec<String>,
    /// The first screen, top to bottom: red, green, blue of each pixel.
    pub pixels: Vec<[u8; 3]>,
}

impl View {
    /// Number of different colours on the screen.
    pub fn colors(&self) -> usize {
        let mut colors = self.pixels.clone();
        colors.sort_unstable();
        colors.dedup();
        colors.len()
    }
}

/// Opens `page` on a screen of `width` and `height` pixels.
///
/// # Panics
/// When Chromium fails.
#[track_caller]
pub fn open(page: &Path, scheme: Scheme, (width, height): (u32, u32)) -> View {
    let work = Workdir::new();
    let shot = work.path().join("screen.png");
    let page = fs::canonicalize(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()));
    let preferred = match scheme {
        Scheme::Dark => 0,
        Scheme::Light => 1,
    };
    let output = command::must(
        command::tool("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--enable-logging=stderr"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND")
            .arg(format!("--blink-settings=preferredColorScheme={preferred}"))
            .arg(format!(
                "--user-data-dir={}",
                work.path().join("profile").display()
            ))
            .arg(format!("--window-size={width},{height}"))
            .arg(format!("--screenshot={}", shot.display()))
            .arg("--dump-dom")
            .arg(format!("file://{}", page.display())),
    );
    let messages = String::from_utf8_lossy(&output.stderr);
    let messages = messages.lines().filter(|line| line.contains(":CONSOLE"));
    View {
        document: String::from_utf8_lossy(&output.stdout).into_owned(),
        messages: messages.map(str::to_owned).collect(),
        pixels: pixels(&fs::read(&shot).unwrap_or_else(|error| panic!("screenshot: {error}"))),
    }
}

fn pixels(file: &[u8]) -> Vec<[u8; 3]> {
    let decoder = png::Decoder::new(std::io::Cursor::new(file));
    let mut reader = decoder.read_info().expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size in memory")];
    let frame = reader.next_frame(&mut bytes).expect("a whole PNG");
    let samples = frame.color_type.samples();
    assert!(samples >= 3, "Chromium writes colours, here {frame:?}");
    let pixels = bytes[..frame.buffer_size()].chunks_exact(samples);
    pixels.map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{require, requires};

    #[test]
    fn view_has_contents_messages_and_the_preferred_colours() {
        require!(requires::tool("chromium"));
        let work = Workdir::new();
        let page = work.path().join("page.html");
        let text = "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; \
            style-src 'unsafe-inline'\"><style>html { background: #fff } \
            @media (prefers-color-scheme: dark) { html { background: #123456 } }</style>\
            <img src=\"http://example.com/a.png\">";
        fs::write(&page, text).unwrap();
        let view = open(&page, Scheme::Dark, (200, 100));
        assert!(view.document.contains("<img"), "{view:?}");
        assert!(view.messages[0].contains("Content Security Policy"));
        assert_eq!(view.pixels[0], [0x12, 0x34, 0x56]);
        fs::write(&page, text.split("<img").next().unwrap()).unwrap();
        let view = open(&page, Scheme::Light, (200, 100));
        assert_eq!(view.messages, [""; 0]);
        assert_eq!((view.pixels.len(), view.colors()), (20_000, 1));
    }
}
