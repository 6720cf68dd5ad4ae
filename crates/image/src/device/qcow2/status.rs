//! Status of a range of the disk, through all layers below.

use std::ops::ControlFlow;

use extant_blockdev::{Device, RangeStatus};
use extant_space::{ByteRange, Extent, ExtentFlags, ExtentState, LayerRange, LayerVisitor, Result};

use super::Qcow2;
use super::mapped::Source;

/// Runs that are looked up before they are reported, with the lock released between.
const RUNS_MAX: usize = 256;

impl Qcow2 {
    pub(super) fn status(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
    ) -> Result<()> {
        self.for_each_run(range, &mut |run, source| match source {
            Source::Zero => Ok(visit(run, RangeStatus::Hole)),
            Source::AllocatedZero(_) => Ok(visit(run, RangeStatus::Zero)),
            Source::Compressed(_) => Ok(visit(run, RangeStatus::Data)),
            Source::Host(offset) | Source::Shared(offset) => {
                status_below(self.data_device(), run, offset, visit)
            }
            Source::Backing => status_below(self.behind(), run, run.start(), visit),
        })
    }

    pub(super) fn extents(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let plain = |logical, state, flags| Extent {
            state,
            flags,
            ..Extent::hole(logical)
        };
        let written = ExtentState::Written;
        self.for_each_run(range, &mut |run, source| match source {
            Source::Zero => Ok(visit(Extent::hole(run))),
            Source::Compressed(_) => Ok(visit(plain(run, written, ExtentFlags::ENCODED))),
            // The next write changes the image's metadata, whatever the space below is.
            Source::AllocatedZero(_) => Ok(visit(plain(
                run,
                ExtentState::Unwritten,
                ExtentFlags::empty(),
            ))),
            // The next write allocates new clusters.
            Source::Shared(_) => Ok(visit(plain(run, written, ExtentFlags::SHARED))),
            Source::Backing => {
                status_below(self.behind(), run, run.start(), &mut |found, status| {
                    visit(match status {
                        RangeStatus::Hole => Extent::hole(found),
                        _ => plain(found, written, ExtentFlags::SHARED),
                    })
                })
            }
            Source::Host(offset) => below(
                run,
                offset,
                self.data_device().geometry().size,
                &mut |range, place| {
                    let mut flow = ControlFlow::Continue(());
                    match range {
                        None => flow = visit(Extent::hole(place)),
                        Some(range) => self.data_device().extents(range, &mut |extent| {
                            let logical = moved(extent.logical, range, place);
                            flow = visit(Extent {
                                logical,
                                physical: None,
                                ..extent
                            });
                            flow
                        })?,
                    }
                    Ok(flow)
                },
            ),
        })
    }

    /// Visits the clusters as a layer named "qcow2", and then their extents in the data file.
    pub(super) fn layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut flow = ControlFlow::Continue(());
        self.for_each_run(at.range, &mut |run, source| {
            let (state, flags, physical) = match source {
                Source::Zero => (ExtentState::Hole, ExtentFlags::empty(), None),
                // The next write changes the image's metadata.
                Source::AllocatedZero(host) => {
                    (ExtentState::Unwritten, ExtentFlags::empty(), Some(host))
                }
                Source::Host(host) => (ExtentState::Written, ExtentFlags::empty(), Some(host)),
                Source::Shared(host) => (ExtentState::Written, ExtentFlags::SHARED, Some(host)),
                Source::Compressed(_) => (ExtentState::Written, ExtentFlags::ENCODED, None),
                // The next write allocates, and copies from the backing file.
                Source::Backing => (ExtentState::Written, ExtentFlags::SHARED, None),
            };
            let extent = Extent {
                logical: run,
                physical,
                state,
                flags,
            };
            flow = visit(&at.extent("qcow2", extent));
            if flow.is_continue()
                && let Some(below) = at.below(&extent)
            {
                flow = self.data_device().visit_layers(below, visit)?;
            }
            Ok(flow)
        })?;
        Ok(flow)
    }

    /// Calls `visit` with every run of the range and where its bytes are.
    fn for_each_run(
        &self,
        range: ByteRange,
        visit: &mut dyn FnMut(ByteRange, Source) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut rest = range;
        while !rest.is_empty() {
            let mut runs = Vec::new();
            let mut metadata = self.metadata();
            let _epoch = metadata.epoch.clone();
            while !rest.is_empty() && runs.len() < RUNS_MAX {
                let (source, length) = self.find_alike(&mut metadata, rest)?;
                let run = ByteRange::new(rest.start(), rest.start() + length);
                runs.push((run, source));
                rest = ByteRange::new(run.end(), rest.end());
            }
            drop(metadata);
            for (run, source) in runs {
                if visit(run, source)?.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// As `find`, but skips a range without an L2 table at once, and ends a run where another L2
    /// table begins.
    fn find_alike(
        &self,
        metadata: &mut super::metadata::Metadata,
        range: ByteRange,
    ) -> Result<(Source, u64)> {
        let coverage = self.geometry.l2_coverage_bytes();
        let next = (range.start() / coverage + 1).saturating_mul(coverage);
        let part = ByteRange::new(range.start(), range.end().min(next));
        let cluster = self.cluster_of(range.start());
        if !metadata.has_table(cluster) && !self.is_backed(cluster) {
            return Ok((Source::Zero, part.len()));
        }
        self.find(metadata, part)
    }
}

/// Reports the status of a run at `offset` of a device.
fn status_below(
    device: &(impl Device + ?Sized),
    run: ByteRange,
    offset: u64,
    visit: &mut dyn FnMut(ByteRange, RangeStatus) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    below(run, offset, device.geometry().size, &mut |range, place| {
        let mut flow = ControlFlow::Continue(());
        match range {
            None => flow = visit(place, RangeStatus::Hole),
            Some(range) => device.status(range, &mut |found, status| {
                flow = visit(moved(found, range, place), status);
                flow
            })?,
        }
        Ok(flow)
    })
}

/// Splits a run at `offset` of a device of `size` bytes at the end of the device.
fn below(
    run: ByteRange,
    offset: u64,
    size: u64,
    visit: &mut dyn FnMut(Option<ByteRange>, ByteRange) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let there = size.saturating_sub(offset).min(run.len());
    let end = run.start() + there;
    if there > 0 {
        let flow = visit(
            Some(ByteRange::new(offset, offset + there)),
            ByteRange::new(run.start(), end),
        )?;
        if flow.is_break() {
            return Ok(flow);
        }
    }
    if end < run.end() {
        visit(None, ByteRange::new(end, run.end()))
    } else {
        Ok(ControlFlow::Continue(()))
    }
}

/// `found`, a part of `range`, translated to `place`.
fn moved(found: ByteRange, range: ByteRange, place: ByteRange) -> ByteRange {
    let start = place.start() + (found.start() - range.start());
    ByteRange::new(start, start + found.len())
}
