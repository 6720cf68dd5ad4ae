//! The space of a file in each of the layers below it, in figures.

use std::ops::ControlFlow;

use serde::Serialize;

use crate::{ByteRange, Extent, ExtentFlags, ExtentState, LayerExtent, Result, SpaceFile};

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
    use crate::LayerRange;

    fn extent(start: u64, end: u64, physical: Option<u64>, state: ExtentState) -> Extent {
        Extent {
            logical: ByteRange::new(start, end),
            physical,
            state,
            flags: ExtentFlags::empty(),
        }
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
