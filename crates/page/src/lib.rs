//! Self-contained HTML pages, for `extant map --html` and `extant-bench report`.
#![doc = include_str!("../README.md")]
//!
//! A page is one file without scripts and external resources; its content security policy forbids
//! both. Text is escaped by maud, the builder of the markup. Colours are [`Tone`]s: each has a
//! value for light and one for dark, and the style sheet replaces the light value in embedded SVG
//! where a browser prefers dark. A picture is drawn once, in light colours, and is complete without
//! the page.
//!
//! Module layers, lowest first:
//!
//! 1. `tone`: colours, and the style sheet generated from them
//! 2. `document`: the skeleton of a page, tables, embedded pictures

#![forbid(unsafe_code)]

mod document;
mod tone;

pub use document::{Page, Table, picture};
pub use tone::{
    BAD, Color, FAINT_INK, GOOD, HOLE, INK, LINE, PAGE, PANEL, PLACE, SERIES, SHARED, Tone,
    UNWRITTEN, WRITTEN,
};
