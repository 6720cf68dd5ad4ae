//! Elements of pictures: coloured rectangles and lines of text.

use extant_page::{self as page, Tone};

use crate::map::fill::Fill;

pub(in crate::map) use extant_page::Color;

pub(in crate::map) const BACKGROUND: Color = page::PAGE.light;
pub(in crate::map) const INK: Color = page::INK.light;
pub(in crate::map) const FAINT_INK: Color = page::FAINT_INK.light;
pub(in crate::map) const PANEL: Color = page::PANEL.light;
pub(in crate::map) const LINE: Color = page::LINE.light;
pub(in crate::map) const PLACE: Color = page::PLACE.light;

/// The colour of a state.
pub(in crate::map) fn color_of(fill: Fill) -> Color {
    let Tone { light, .. } = match fill {
        Fill::Written => page::WRITTEN,
        Fill::Shared => page::SHARED,
        Fill::Unwritten => page::UNWRITTEN,
        Fill::Hole => page::HOLE,
    };
    light
}

/// The line where a fragment begins, visible on `color`, that of the state.
pub(in crate::map) fn boundary_on(color: Color) -> Color {
    let darker = |part: u8| (u16::from(part) * 9 / 20) as u8;
    Color(darker(color.0), darker(color.1), darker(color.2))
}

/// A filled rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::map) struct Rect {
    pub(in crate::map) x: u32,
    pub(in crate::map) y: u32,
    pub(in crate::map) width: u32,
    pub(in crate::map) height: u32,
    pub(in crate::map) color: Color,
}

/// Placement of a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::map) enum Style {
    /// The heading, bold.
    Title,
    /// The name of a file, bold.
    Name,
    Text,
    Small,
}

impl Style {
    /// Height of a line.
    pub(in crate::map) fn size(self) -> u32 {
        match self {
            Self::Title | Self::Name | Self::Text => 32,
            Self::Small => 24,
        }
    }

    /// Advance of a character.
    pub(in crate::map) fn advance(self) -> u32 {
        match self {
            Self::Title | Self::Name | Self::Text => 14,
            Self::Small => 11,
        }
    }
}

/// The point of a label at its `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::map) enum Anchor {
    Left,
    Middle,
    Right,
}

/// A line of text whose top is at `y`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::map) struct Label {
    pub(in crate::map) x: u32,
    pub(in crate::map) y: u32,
    pub(in crate::map) text: String,
    pub(in crate::map) style: Style,
    pub(in crate::map) anchor: Anchor,
    pub(in crate::map) color: Color,
}
