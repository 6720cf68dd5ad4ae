//! Elements of pictures: coloured rectangles and lines of text.

use crate::map::fill::Fill;

pub(in crate::map) const BACKGROUND: Color = Color(0xff, 0xff, 0xff);
pub(in crate::map) const INK: Color = Color(0x1f, 0x29, 0x33);
pub(in crate::map) const FAINT_INK: Color = Color(0x6b, 0x77, 0x85);
pub(in crate::map) const PANEL: Color = Color(0xf4, 0xf6, 0xf8);
pub(in crate::map) const LINE: Color = Color(0xd5, 0xda, 0xe0);
pub(in crate::map) const PLACE: Color = Color(0x2b, 0x5c, 0x9e);

/// Red, green, blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::map) struct Color(
    pub(in crate::map) u8,
    pub(in crate::map) u8,
    pub(in crate::map) u8,
);

impl Color {
    /// The colour of a state.
    pub(in crate::map) fn of(fill: Fill) -> Self {
        match fill {
            Fill::Written => Self(0x2f, 0xa3, 0x6f),
            Fill::Shared => Self(0x8a, 0x63, 0xc9),
            Fill::Unwritten => Self(0xf2, 0xb5, 0x3c),
            Fill::Hole => Self(0xe3, 0xe7, 0xec),
        }
    }

    /// The line where a fragment begins, visible on the state's own colour.
    pub(in crate::map) fn boundary(self) -> Self {
        let darker = |part: u8| (u16::from(part) * 9 / 20) as u8;
        Self(darker(self.0), darker(self.1), darker(self.2))
    }
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
