//! The colours of pages and pictures, for light and for dark.
//!
//! Invariants, which the tests check: light values differ from each other, as the style sheet finds
//! a colour in an SVG by its light value; text has a contrast of at least 4.5 with what is behind
//! it, other marks of at least 3 (WCAG 2.2, AA).

use std::fmt::Write as _;

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Color(pub u8, pub u8, pub u8);

impl Color {
    /// As in CSS and SVG: `#1f2933`.
    pub fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

/// A colour with a purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tone {
    /// Its variable in the style sheet, without the dashes.
    pub name: &'static str,
    /// On a light page, in print, and in pictures.
    pub light: Color,
    /// On a dark page.
    pub dark: Color,
}

const fn tone(name: &'static str, light: Color, dark: Color) -> Tone {
    Tone { name, light, dark }
}

/// Behind everything.
pub const PAGE: Tone = tone("page", Color(0xff, 0xff, 0xff), Color(0x14, 0x18, 0x1d));
/// Behind code, headings of tables and plots.
pub const PANEL: Tone = tone("panel", Color(0xf4, 0xf6, 0xf8), Color(0x1f, 0x25, 0x2c));
/// Rules and grids.
pub const LINE: Tone = tone("line", Color(0xd5, 0xda, 0xe0), Color(0x3b, 0x45, 0x50));
/// Text.
pub const INK: Tone = tone("ink", Color(0x1f, 0x29, 0x33), Color(0xe4, 0xe8, 0xec));
/// Text of less weight.
pub const FAINT_INK: Tone = tone("faint", Color(0x5a, 0x65, 0x72), Color(0xa3, 0xae, 0xba));
/// A goal that is met, an improvement.
pub const GOOD: Tone = tone("good", Color(0x1a, 0x7f, 0x4b), Color(0x5c, 0xcf, 0x92));
/// A goal that is missed, a regression.
pub const BAD: Tone = tone("bad", Color(0xb4, 0x23, 0x2a), Color(0xff, 0x8a, 0x85));
/// Where a file is on its device.
pub const PLACE: Tone = tone("place", Color(0x2b, 0x5c, 0x9e), Color(0x7f, 0xb2, 0xf0));
/// Written space.
pub const WRITTEN: Tone = tone("written", Color(0x2f, 0xa3, 0x6f), Color(0x2f, 0xa3, 0x70));
/// Shared space.
pub const SHARED: Tone = tone("shared", Color(0x8a, 0x63, 0xc9), Color(0xa5, 0x82, 0xe0));
/// Unwritten space.
pub const UNWRITTEN: Tone = tone(
    "unwritten",
    Color(0xf2, 0xb5, 0x3c),
    Color(0xf2, 0xb5, 0x3d),
);
/// Holes.
pub const HOLE: Tone = tone("hole", Color(0xe3, 0xe7, 0xec), Color(0x45, 0x50, 0x5c));

/// Series of a chart, in their order; distinct for colour-blind readers too (after Okabe and Ito).
pub const SERIES: [Tone; 6] = [
    tone("series-1", Color(0x00, 0x72, 0xb2), Color(0x56, 0xb4, 0xe9)),
    tone("series-2", Color(0xc2, 0x5a, 0x00), Color(0xe6, 0x9f, 0x00)),
    tone("series-3", Color(0x00, 0x80, 0x5f), Color(0x1f, 0xb8, 0x8f)),
    tone("series-4", Color(0xa8, 0x4f, 0x83), Color(0xe0, 0x8f, 0xbe)),
    tone("series-5", Color(0x6b, 0x6b, 0x6b), Color(0xb8, 0xb8, 0xb8)),
    tone("series-6", Color(0x8a, 0x6d, 0x00), Color(0xf0, 0xe4, 0x42)),
];

const OTHERS: [Tone; 12] = [
    PAGE, PANEL, LINE, INK, FAINT_INK, GOOD, BAD, PLACE, WRITTEN, SHARED, UNWRITTEN, HOLE,
];

fn all() -> impl Iterator<Item = Tone> {
    OTHERS.into_iter().chain(SERIES)
}

/// Variables for light, dark and print, and the rules that recolour embedded SVG.
pub(crate) fn style_sheet() -> String {
    let variables = |of: fn(Tone) -> Color| {
        let line = |tone: Tone| format!("--{}:{};", tone.name, of(tone).hex());
        all().map(line).collect::<String>()
    };
    let (light, dark) = (variables(|tone| tone.light), variables(|tone| tone.dark));
    let mut css = format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n\
         @media print{{:root{{color-scheme:light;{light}}}}}\n"
    );
    for Tone { name, light, .. } in all() {
        for property in ["fill", "stroke"] {
            let value = light.hex();
            // Infallible: writing to a String cannot fail.
            let _ = writeln!(
                css,
                "svg [{property}=\"{value}\" i]{{{property}:var(--{name})}}"
            );
        }
    }
    css
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The contrast ratio of WCAG.
    fn contrast(a: Color, b: Color) -> f64 {
        let luminance = |color: Color| {
            let part = |value: u8| {
                let value = f64::from(value) / 255.0;
                if value <= 0.04045 {
                    value / 12.92
                } else {
                    ((value + 0.055) / 1.055).powf(2.4)
                }
            };
            0.2126 * part(color.0) + 0.7152 * part(color.1) + 0.0722 * part(color.2)
        };
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    #[test]
    fn light_values_and_names_are_unique() {
        let values: BTreeSet<_> = all().map(|tone| tone.light.hex()).collect();
        let names: BTreeSet<_> = all().map(|tone| tone.name).collect();
        assert_eq!((values.len(), names.len()), (all().count(), all().count()));
    }

    #[test]
    fn text_and_marks_have_contrast_in_light_and_dark() {
        for of in [|tone: Tone| tone.light, |tone: Tone| tone.dark] {
            for behind in [PAGE, PANEL] {
                for text in [INK, FAINT_INK, GOOD, BAD] {
                    let found = contrast(of(text), of(behind));
                    assert!(found >= 4.5, "{text:?} on {behind:?}: {found}");
                }
            }
            for mark in SERIES.into_iter().chain([PLACE]) {
                let found = contrast(of(mark), of(PAGE));
                assert!(found >= 3.0, "{mark:?}: {found}");
            }
        }
    }

    #[test]
    fn style_sheet_recolours_what_a_picture_has() {
        let css = style_sheet();
        assert!(css.contains("svg [fill=\"#1f2933\" i]{fill:var(--ink)}"));
        assert!(css.contains("@media (prefers-color-scheme:dark){:root{--page:#14181d;"));
    }
}
