//! Allocation passed down to every layer below a file of the running system.
//!
//! `fallocate(2)` reserves space in one file system. On a loop device the file below stays sparse:
//! each first write allocates there again, in the order of the writes. [`assign`] allocates the
//! holes of the file, then the places of its extents in the file below, and so on down to a disk.
//! It writes no data, may be repeated, and may run beside writers.
//!
//! Known layers: [`extant_sys::stack`]. A file above others is refused by name before anything is
//! changed.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use extant_provision::{Provisioner, Shared};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, LayerStates, Phase, Result, Silent, SpaceFile,
};
use extant_sys::stack::{DeviceKind, Stack, StackDevice, StackFile};
use serde::Serialize;

use crate::file::{Access, HostFile};

/// Lowest layer in which space is allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// In the file.
    #[default]
    File,
    /// In the file, and in the layers below it that the kernel shows.
    Layers,
}

impl Reach {
    /// The layers below `file` that are to have the space.
    pub(crate) fn stack(self, file: &HostFile) -> Result<Option<KnownStack>> {
        match self {
            Self::File => Ok(None),
            Self::Layers => KnownStack::below(file).map(Some),
        }
    }
}

/// Result of [`assign`].
#[derive(Clone, Debug, Serialize)]
pub struct AssignReport {
    /// The bytes of the file that have their space in every layer.
    pub range: ByteRange,
    /// Bytes of the file that were holes.
    pub allocated_bytes: u64,
    /// The space of the range in the layers below, from the top down.
    pub layers: Vec<LayerStates>,
    /// The disks below the last layer.
    pub disks: Vec<String>,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

/// Allocates `range` of the file at `path`, all of it by default, in every layer. Data and the
/// sizes of all files are preserved. Durable on return.
///
/// # Errors
/// `Unsupported` with the name of a layer that is not known or does not allocate, `NoSpace` with
/// the file that is on the full file system, `Cancelled`.
pub fn assign(path: &Path, range: Option<ByteRange>, control: Control<'_>) -> Result<AssignReport> {
    let file = HostFile::open(path, Access::ReadWrite)?;
    if file.is_disk() {
        return Err(crate::file::wrong_type(path));
    }
    let whole = ByteRange::new(0, file.size()?);
    let range = range.unwrap_or(whole).intersection(whole);
    assign_file(&file, range.unwrap_or_default(), control)
}

/// [`assign`] of `range` of an open file, which may reach past its end.
///
/// # Errors
/// As [`assign`].
pub fn assign_file(
    file: &HostFile,
    range: ByteRange,
    control: Control<'_>,
) -> Result<AssignReport> {
    let started = Instant::now();
    let stack = KnownStack::below(file)?;
    let target = Provisioner::new(file, range, control);
    let allocated_bytes = target.survey()?.hole_bytes;
    assign_below(&stack, file, &target)?;
    Ok(AssignReport {
        range,
        allocated_bytes,
        layers: LayerStates::of(file, range)?,
        disks: stack.disks,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    })
}

fn allocate(target: &Provisioner<'_>) -> Result<()> {
    match target.allocate()? {
        None => Ok(()),
        Some(reason) => Err(Error::new(ErrorKind::Unsupported)
            .during("allocate")
            .detail(reason)),
    }
}

/// The layers below a file, all of them known and open for changes.
pub(crate) struct KnownStack {
    stack: Stack,
    /// The files of the stack, by their numbers.
    files: Vec<HostFile>,
    disks: Vec<String>,
}

/// A file of a stack, and bytes of it.
type Places<'s> = (&'s StackFile, Vec<ByteRange>);

impl KnownStack {
    /// Below `file`.
    ///
    /// # Errors
    /// `Unsupported` with the name of the layer that ends the stack; those of opening.
    pub(crate) fn below(file: &HostFile) -> Result<Self> {
        let stack = Stack::below(file.as_file()).map_err(|source| file.error(source))?;
        let ends = stack.ends();
        for end in &ends {
            if let DeviceKind::Unknown { reason } = &end.kind {
                return Err(Error::new(ErrorKind::Unsupported)
                    .at(file.path())
                    .detail(format!(
                        "the layers below are not known: {}: {reason}",
                        end.name
                    )));
            }
        }
        let disks = ends.iter().map(|end| end.name.clone()).collect();
        // The file that was compared with the driver's, whatever has its name now.
        let open = |lower: &StackFile| {
            HostFile::open_again(&lower.file, &lower.path, Access::ReadWrite)
                .map_err(|error| error.about(&lower.path).during("open a layer below"))
        };
        let files = stack.files().into_iter().map(open);
        Ok(Self {
            files: files.collect::<Result<_>>()?,
            stack,
            disks,
        })
    }

    /// Calls `work` for each contiguous place that stores `range` of `top`, layer by layer from the
    /// top down. The map of a layer is read when the work on the one above is durable.
    pub(crate) fn for_each_place(
        &self,
        top: &HostFile,
        range: ByteRange,
        control: Control<'_>,
        work: &mut dyn FnMut(&Provisioner<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut level = places(top, &[range], &self.stack.device)?;
        while !level.is_empty() {
            let ranges = level.iter().flat_map(|(_, ranges)| ranges);
            let total = ranges.map(|range| range.len()).sum();
            let mut done = 0;
            for (file, ranges) in &level {
                let lower = &self.files[file.index];
                for range in ranges {
                    control.cancel.check()?;
                    control.report(Phase::Allocate, done, total);
                    let silent = Control::new(control.cancel, &Silent);
                    work(&Provisioner::new(lower, *range, silent))
                        .map_err(|error| error.at(lower.path()))?;
                    done += range.len();
                }
                lower.sync_checked(&|| control.cancel.check())?;
            }
            let mut next = Vec::new();
            for (file, ranges) in level {
                next.extend(places(&self.files[file.index], &ranges, &file.device)?);
            }
            level = next;
        }
        Ok(())
    }
}

/// The places of `ranges` of `upper`, which is on `device`, in the files of the next layer, in
/// order.
fn places<'s>(
    upper: &HostFile,
    ranges: &[ByteRange],
    device: &'s StackDevice,
) -> Result<Vec<Places<'s>>> {
    let mut found: Vec<Places<'_>> = Vec::new();
    let mut place = |file: &'s StackFile, range: ByteRange, _: u64| {
        match found
            .iter_mut()
            .find(|(known, _)| known.index == file.index)
        {
            Some((_, ranges)) => ranges.push(range),
            None => found.push((file, vec![range])),
        }
        Ok(ControlFlow::Continue(()))
    };
    for range in ranges {
        let mut failed = Ok(ControlFlow::Continue(()));
        upper.for_each_extent(*range, &mut |extent| {
            let on_device = extent
                .clip(*range)
                .and_then(|extent| ByteRange::at(extent.physical?, extent.logical.len()));
            if let Some(on_device) = on_device {
                failed = device.for_each_place(on_device, &mut place);
            }
            match failed {
                Ok(flow) => flow,
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        let _ = failed.map_err(|source| upper.error(source))?;
    }
    let joined = found.into_iter();
    Ok(joined
        .map(|(file, ranges)| (file, ByteRange::joined(ranges)))
        .collect())
}

/// Allocates the range of `target`, which is of `top`, in `top` and in the layers of `stack`.
pub(crate) fn assign_below(
    stack: &KnownStack,
    top: &HostFile,
    target: &Provisioner<'_>,
) -> Result<()> {
    allocate(target)?;
    target.sync()?;
    stack.for_each_place(top, target.range, target.control, &mut |lower| {
        allocate(&lower.guarded(target.guard))
    })
}

/// Result of [`write_through`].
pub(crate) struct WrittenBelow {
    /// Bytes zeroed in the layers.
    pub(crate) zeroed_bytes: u64,
    /// The space in the layers.
    pub(crate) layers: Vec<LayerStates>,
}

/// Makes the extents that store the range of `target`, all written in `top`, written in the layers
/// of `stack` as well; data is preserved. The caller excludes other users of `top`: no other
/// process writes to these places of the layers.
pub(crate) fn write_through(
    stack: &KnownStack,
    top: &HostFile,
    target: &Provisioner<'_>,
) -> Result<WrittenBelow> {
    let mut zeroed_bytes = 0;
    stack.for_each_place(top, target.range, target.control, &mut |lower| {
        let lower = lower.at_pace(target.pace).guarded(target.guard);
        zeroed_bytes += lower.materialize(Shared::Refuse)?.zeroed_bytes;
        Ok(())
    })?;
    Ok(WrittenBelow {
        zeroed_bytes,
        layers: verified_written(top, target.range)?,
    })
}

/// The space of `range` of `file` in the layers below, in each of which it is written.
///
/// # Errors
/// `NotKept` with the layer where it is not.
fn verified_written(file: &HostFile, range: ByteRange) -> Result<Vec<LayerStates>> {
    let layers = LayerStates::of(file, range)?;
    let missing = |layer: &&LayerStates| layer.unwritten_bytes + layer.hole_bytes > 0;
    match layers.iter().find(missing) {
        None => Ok(layers),
        Some(layer) => Err(Error::new(ErrorKind::NotKept)
            .during("verify")
            .detail(format!(
                "{} bytes are not written in {} below",
                layer.unwritten_bytes + layer.hole_bytes,
                layer.layer
            ))),
    }
}

/// Allocates `range` of `file`, and zeroes it by `work`, in every layer: `work` leaves it written
/// in the file, and in each layer unless that zeroes without sending data.
///
/// # Errors
/// Those of [`assign`] and of `work`, and `NotKept` with a layer where the range is not written.
pub fn zero_through(
    file: &HostFile,
    range: ByteRange,
    control: Control<'_>,
    work: &mut dyn FnMut() -> Result<()>,
) -> Result<()> {
    let stack = KnownStack::below(file)?;
    assign_below(&stack, file, &Provisioner::new(file, range, control))?;
    work()?;
    file.sync_checked(&|| control.cancel.check())?;
    verified_written(file, range).map(drop)
}
