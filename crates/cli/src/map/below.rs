//! The layers below a file (`--through`), each as a map at the offsets of the file.

use std::ops::ControlFlow;

use extant_space::{ByteRange, Extent, LayerStates, Result, SpaceFile};

/// Visits the extents of `layer` that store `range` of `file`, at their offsets in the file; their
/// places are those in the next layer. What the layer does not store is shown as a hole.
pub(super) fn for_each_extent(
    file: &dyn SpaceFile,
    layer: &LayerStates,
    range: ByteRange,
    visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
) -> Result<()> {
    let mut at = range.start();
    let mut flow = ControlFlow::Continue(());
    file.for_each_extent_below(range, &mut |found| {
        if (found.depth, found.layer) != (layer.depth, &*layer.layer) {
            return ControlFlow::Continue(());
        }
        // Of two copies in one file the first is shown.
        let top = found.top();
        let skipped = at.saturating_sub(top.start());
        if skipped >= top.len() {
            return ControlFlow::Continue(());
        }
        let logical = ByteRange::new(top.start() + skipped, top.end());
        if at < logical.start() {
            flow = visit(Extent::hole(ByteRange::new(at, logical.start())));
        }
        if flow.is_continue() {
            flow = visit(Extent {
                logical,
                physical: found.extent.physical.map(|place| place + skipped),
                ..found.extent
            });
        }
        at = logical.end();
        flow
    })?;
    if flow.is_continue() && at < range.end() {
        let _ = visit(Extent::hole(ByteRange::new(at, range.end())));
    }
    Ok(())
}
