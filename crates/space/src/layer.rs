//! The layers of storage below a file, and the state of its space in each of them.
//!
//! A file of a guest or an image is stored on a device, which may be a file of the host, which may
//! be on another device. Each layer has a map of its own: space that is written in the file may be
//! unwritten, or a hole, further down.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::{ByteRange, Extent, ExtentFlags, ExtentState, Result, SpaceFile};

/// Bytes of one layer that store bytes of the file at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRange {
    /// Number of the layer: 1 is the device that the file is on.
    pub depth: u32,
    /// First byte of the file at the top that is stored in the range.
    pub top_start: u64,
    /// The bytes of the layer.
    pub range: ByteRange,
}

impl LayerRange {
    /// The bytes of the next layer that store `extent`, which is inside the range; `None` for an
    /// extent without a place.
    pub fn below(&self, extent: &Extent) -> Option<Self> {
        let length = extent.logical.len();
        Some(Self {
            depth: self.depth + 1,
            top_start: self.top_of(extent),
            range: ByteRange::at(extent.physical?, length)?,
        })
    }

    /// `extent`, which is inside the range, as one of the layer named `layer`.
    pub fn extent<'a>(&self, layer: &'a str, extent: Extent) -> LayerExtent<'a> {
        LayerExtent {
            depth: self.depth,
            layer,
            top_start: self.top_of(&extent),
            extent,
        }
    }

    fn top_of(&self, extent: &Extent) -> u64 {
        self.top_start + (extent.logical.start() - self.range.start())
    }
}

/// An extent of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerExtent<'a> {
    /// Number of the layer: 1 is the device that the file is on.
    pub depth: u32,
    /// Name of the layer: the path of a file or disk, or the format of an image.
    pub layer: &'a str,
    /// First byte of the file at the top that is stored in the extent.
    pub top_start: u64,
    /// The extent, in bytes of the layer.
    pub extent: Extent,
}

impl LayerExtent<'_> {
    /// The bytes of the file at the top that are stored in the extent.
    pub fn top(&self) -> ByteRange {
        ByteRange::new(self.top_start, self.top_start + self.extent.logical.len())
    }
}

/// Receives the extents of all layers.
pub type LayerVisitor<'v> = dyn FnMut(&LayerExtent<'_>) -> ControlFlow<()> + 'v;

/// Space of a range of a file in one of the layers below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LayerStates {
    /// Number of the layer: 1 is the device that the file is on.
    pub depth: u32,
    /// Path of the file or disk, or the format of an image.
    pub layer: String,
    /// Bytes that are written.
    pub written_bytes: u64,
    /// Bytes that are allocated and not written.
    pub unwritten_bytes: u64,
    /// Bytes without space.
    pub hole_bytes: u64,
    /// Bytes whose next overwrite allocates, since other files have the space as well.
    pub shared_bytes: u64,
    /// Contiguous pieces in one state; pieces that are holes are not counted.
    pub extents: u64,
}

impl LayerStates {
    /// The space of `range` of `file` in each layer that has a map, from the top down.
    ///
    /// # Errors
    /// Those of the maps.
    pub fn of(file: &dyn SpaceFile, range: ByteRange) -> Result<Vec<Self>> {
        let mut layers: Vec<(Self, Option<Extent>)> = Vec::new();
        file.for_each_extent_below(range, &mut |found| {
            let known = layers
                .iter()
                .position(|(states, _)| states.depth == found.depth && states.layer == found.layer);
            let at = known.unwrap_or_else(|| {
                layers.push((Self::empty(found), None));
                layers.len() - 1
            });
            let (states, last) = &mut layers[at];
            states.add(&found.extent, last.as_ref());
            *last = Some(found.extent);
            ControlFlow::Continue(())
        })?;
        layers.sort_by_key(|(states, _)| states.depth);
        Ok(layers.into_iter().map(|(states, _)| states).collect())
    }

    fn empty(found: &LayerExtent<'_>) -> Self {
        Self {
            depth: found.depth,
            layer: found.layer.to_owned(),
            written_bytes: 0,
            unwritten_bytes: 0,
            hole_bytes: 0,
            shared_bytes: 0,
            extents: 0,
        }
    }

    fn add(&mut self, extent: &Extent, last: Option<&Extent>) {
        let bytes = extent.logical.len();
        match extent.state {
            ExtentState::Hole => self.hole_bytes += bytes,
            ExtentState::Unwritten => self.unwritten_bytes += bytes,
            ExtentState::Written => self.written_bytes += bytes,
        }
        if extent.flags.contains(ExtentFlags::SHARED) {
            self.shared_bytes += bytes;
        }
        let continues = last.is_some_and(|last| {
            let end = last.physical.map(|place| place + last.logical.len());
            last.state == extent.state
                && last.logical.end() == extent.logical.start()
                && end == extent.physical
        });
        if extent.state != ExtentState::Hole && !continues {
            self.extents += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, end: u64, physical: Option<u64>, state: ExtentState) -> Extent {
        Extent {
            logical: ByteRange::new(start, end),
            physical,
            state,
            flags: ExtentFlags::empty(),
        }
    }

    #[test]
    fn place_in_the_next_layer_keeps_the_bytes_of_the_top() {
        let at = LayerRange {
            depth: 1,
            top_start: 100,
            range: ByteRange::new(1000, 3000),
        };
        let found = extent(2000, 2500, Some(70), ExtentState::Written);
        let below = at.below(&found).unwrap();
        assert_eq!((below.depth, below.top_start), (2, 1100));
        assert_eq!(below.range, ByteRange::new(70, 570));
        assert_eq!(at.extent("a", found).top(), ByteRange::new(1100, 1600));
        assert_eq!(at.below(&Extent::hole(found.logical)), None);
    }

    #[test]
    fn pieces_that_continue_each_other_are_one_extent() {
        let written = ExtentState::Written;
        let pieces = [
            extent(0, 10, Some(100), written),
            extent(10, 20, Some(110), written),
            extent(20, 30, Some(120), ExtentState::Unwritten),
            Extent::hole(ByteRange::new(30, 40)),
            extent(40, 50, Some(140), written),
        ];
        let at = LayerRange {
            depth: 1,
            top_start: 0,
            range: ByteRange::new(0, 50),
        };
        let mut states = LayerStates::empty(&at.extent("a", pieces[0]));
        let mut last = None;
        for piece in &pieces {
            states.add(piece, last);
            last = Some(piece);
        }
        assert_eq!((states.written_bytes, states.unwritten_bytes), (30, 10));
        assert_eq!((states.hole_bytes, states.extents), (10, 3));
    }
}
