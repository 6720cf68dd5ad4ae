//! The map of an image: the place of the guest's bytes and the state of their space, down to the
//! host.
//!
//! A range is [`Written`](ExtentState::Written) when neither the image nor the file system below
//! changes metadata to overwrite it in place. A zero cluster with space is `Unwritten`: the image
//! does.

use std::ops::ControlFlow;

use extant_space::{ByteRange, ExtentFlags, ExtentState, Result, SpaceFile};
use serde::Serialize;

use super::{Kind, Layer};
use crate::format::Mapping;
use crate::qcow2::Run;

/// A range of the guest's disk in one state and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ImageExtent {
    /// The guest's bytes.
    pub guest: ByteRange,
    /// Number of layers above them.
    pub depth: u32,
    /// Some layer defines them; else they are zeros because none does.
    pub is_present: bool,
    /// They read as zeros.
    pub is_zero: bool,
    /// They are read from space of the image. They may be zeros nevertheless, where that space is
    /// not written.
    pub is_data: bool,
    /// The first of them in the file of their layer.
    pub offset: Option<u64>,
    /// State of their space.
    pub state: ExtentState,
    /// `SHARED`: an overwrite allocates, because a snapshot shares them; `ENCODED`: they are
    /// compressed.
    pub flags: ExtentFlags,
}

/// Depth of a walk.
#[derive(Clone, Copy)]
enum Depth {
    /// The walk stays in the layer.
    Own,
    /// It is this number of layers down, and continues.
    Down(u32),
}

impl Depth {
    fn number(self) -> u32 {
        match self {
            Self::Own => 0,
            Self::Down(depth) => depth,
        }
    }
}

impl ImageExtent {
    /// Whether `next` is contiguous with this one in every respect.
    fn continues_in(&self, next: &Self) -> bool {
        let moved = Self {
            guest: next.guest,
            offset: self.offset.map(|offset| offset + self.guest.len()),
            ..*self
        };
        self.guest.end() == next.guest.start() && moved == *next
    }
}

type Visit<'a> = &'a mut dyn FnMut(ImageExtent) -> Result<ControlFlow<()>>;

impl Layer {
    /// Visits the map of `range`, cut at the end of the disk, in order; neighbours that continue
    /// each other are joined.
    ///
    /// # Errors
    /// `Corrupt` for tables that cannot be; those of [`check_data_names`](Self::check_data_names);
    /// errors of reading, and those of `visit`.
    pub fn for_each_extent(&self, range: ByteRange, visit: Visit<'_>) -> Result<()> {
        self.check_data_names()?;
        let mut pending: Option<ImageExtent> = None;
        let mut is_over = false;
        self.walk(range, Depth::Down(0), &mut |extent| {
            match &mut pending {
                Some(last) if last.continues_in(&extent) => {
                    last.guest = ByteRange::new(last.guest.start(), extent.guest.end());
                }
                last => {
                    if let Some(complete) = last.replace(extent) {
                        is_over = visit(complete)?.is_break();
                    }
                }
            }
            Ok(if is_over {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        match pending {
            Some(last) if !is_over => visit(last).map(drop),
            _ => Ok(()),
        }
    }

    /// The map of this layer alone: clusters that it does not have are holes.
    pub(crate) fn for_each_own_extent(&self, visit: Visit<'_>) -> Result<()> {
        self.walk(ByteRange::new(0, self.virtual_bytes), Depth::Own, visit)
    }

    fn walk(&self, range: ByteRange, depth: Depth, visit: Visit<'_>) -> Result<()> {
        let disk = ByteRange::new(0, self.virtual_bytes);
        let Some(range) = range.intersection(disk) else {
            return Ok(());
        };
        match &self.kind {
            Kind::Raw(file) => states(&**file, range, &mut |bytes, state| {
                visit(ImageExtent {
                    guest: bytes,
                    depth: depth.number(),
                    is_present: true,
                    is_zero: state != ExtentState::Written,
                    is_data: state == ExtentState::Written,
                    offset: Some(bytes.start()),
                    state,
                    flags: ExtentFlags::empty(),
                })
            })
            .map(drop),
            Kind::Qcow2(qcow2) => {
                qcow2.for_each_run(range, &mut |run| self.walk_run(run, depth, visit))
            }
        }
    }

    fn walk_run(&self, run: Run, depth: Depth, visit: Visit<'_>) -> Result<ControlFlow<()>> {
        let mut extent = ImageExtent {
            guest: run.guest,
            depth: depth.number(),
            is_present: true,
            is_zero: true,
            is_data: false,
            offset: None,
            state: ExtentState::Hole,
            flags: ExtentFlags::empty(),
        };
        if !run.is_copied {
            extent.flags |= ExtentFlags::SHARED;
        }
        match run.mapping {
            Mapping::Zero(None) => {
                extent.flags = ExtentFlags::empty();
                visit(extent)
            }
            Mapping::Zero(Some(offset)) => visit(ImageExtent {
                offset: Some(offset),
                state: ExtentState::Unwritten,
                ..extent
            }),
            Mapping::Compressed(_) => visit(ImageExtent {
                is_zero: false,
                is_data: true,
                state: ExtentState::Written,
                flags: ExtentFlags::ENCODED,
                ..extent
            }),
            Mapping::Unallocated => self.walk_below(run.guest, depth, visit),
            Mapping::Data(offset) => {
                let place = ByteRange::at(offset, run.guest.len()).expect("offsets have 56 bits");
                let Ok(file) = self.data() else {
                    // The map holds the known facts: that there is data, and its place.
                    return visit(ImageExtent {
                        is_zero: false,
                        is_data: true,
                        offset: Some(offset),
                        state: ExtentState::Written,
                        ..extent
                    });
                };
                states(&**file, place, &mut |bytes, state| {
                    let start = run.guest.start() + (bytes.start() - offset);
                    visit(ImageExtent {
                        guest: ByteRange::new(start, start + bytes.len()),
                        is_zero: state != ExtentState::Written,
                        is_data: true,
                        offset: Some(bytes.start()),
                        state,
                        ..extent
                    })
                })
            }
        }
    }

    /// Walks the unallocated parts of this layer.
    fn walk_below(
        &self,
        range: ByteRange,
        depth: Depth,
        visit: Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let below = match depth {
            Depth::Own => None,
            Depth::Down(_) => self.backing.as_deref(),
        };
        let end = below
            .map_or(0, |below| below.virtual_bytes)
            .clamp(range.start(), range.end());
        let mut flow = ControlFlow::Continue(());
        if let Some(below) = below {
            let inside = ByteRange::new(range.start(), end);
            below.walk(inside, Depth::Down(depth.number() + 1), &mut |extent| {
                flow = visit(extent)?;
                Ok(flow)
            })?;
        }
        if flow.is_break() || end == range.end() {
            return Ok(flow);
        }
        visit(ImageExtent {
            guest: ByteRange::new(end, range.end()),
            depth: depth.number(),
            is_present: false,
            is_zero: true,
            is_data: false,
            offset: None,
            state: ExtentState::Hole,
            flags: ExtentFlags::empty(),
        })
    }
}

/// The states of `range` of a file; past its end there is a hole.
pub(crate) fn states(
    file: &dyn SpaceFile,
    range: ByteRange,
    visit: &mut dyn FnMut(ByteRange, ExtentState) -> Result<ControlFlow<()>>,
) -> Result<ControlFlow<()>> {
    let mut at = range.start();
    let mut answer = Ok(ControlFlow::Continue(()));
    let mut step = |bytes: ByteRange, state| {
        answer = visit(bytes, state);
        match answer {
            Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    };
    let mut is_over = false;
    file.for_each_extent(range, &mut |extent| {
        let Some(extent) = extent.clip(range) else {
            return ControlFlow::Continue(());
        };
        let gap = ByteRange::new(at, extent.logical.start().max(at));
        at = extent.logical.end();
        let flow = if gap.is_empty() {
            ControlFlow::Continue(())
        } else {
            step(gap, ExtentState::Hole)
        };
        let flow = match flow {
            ControlFlow::Continue(()) => step(extent.logical, extent.state),
            flow => flow,
        };
        is_over = flow.is_break();
        flow
    })?;
    if !is_over && at < range.end() {
        let _ = step(ByteRange::new(at, range.end()), ExtentState::Hole);
    }
    answer
}
