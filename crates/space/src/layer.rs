//! The layers of storage below a file, and the state of its space in each of them.
//!
//! A file of a guest or an image is stored on a device, which may be a file of the host, which may
//! be on another device. Each layer has a map of its own: space that is written in the file may be
//! unwritten, or a hole, further down.

use std::ops::ControlFlow;

use crate::{ByteRange, Extent};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExtentFlags, ExtentState};

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
}
