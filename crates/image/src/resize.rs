//! Makes an image larger or smaller, with a word about the space of what is new.

use extant_space::{ByteRange, ByteSize, Control, Error, ErrorKind, Result, SyncMode};
use serde::Serialize;

use crate::editor::Editor;
use crate::layer::Layer;
use crate::options::Format;
use crate::preallocation::Preallocation;
use crate::target::Target;

/// Whole sectors of qcow2.
const SECTOR_BYTES: u64 = 512;

/// How [`resize`] works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeOptions {
    /// The space of what is new; `None`: the mode that the image is in.
    pub preallocation: Option<Preallocation>,
    /// The disk may become smaller, and what lies behind its new end is lost.
    pub may_shrink: bool,
}

/// What [`resize`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResizeReport {
    /// Size of the disk before.
    pub old_bytes: u64,
    /// Size of the disk now.
    pub new_bytes: u64,
    /// The space of what is new.
    pub preallocation: Preallocation,
}

/// Brings the disk to `virtual_bytes`; durable on return.
///
/// # Errors
/// `InvalidArgument` when it would become smaller and may not, `Unsupported` for images that are not changed here, `NoSpace`
/// and `Cancelled`: the disk has its old size then. A crash costs space in the image at worst.
pub fn resize(
    target: &Target,
    format: Format,
    virtual_bytes: u64,
    options: &ResizeOptions,
    control: Control<'_>,
) -> Result<ResizeReport> {
    let layer = Layer::open(std::sync::Arc::clone(target.file()), format)?;
    let old_bytes = layer.virtual_bytes();
    let new_bytes = match format {
        Format::Raw => virtual_bytes,
        Format::Qcow2 => virtual_bytes.next_multiple_of(SECTOR_BYTES),
    };
    if i64::try_from(new_bytes).is_err() {
        return Err(Error::new(ErrorKind::TooLarge)
            .detail(format!("{} is past the largest disk", ByteSize(new_bytes))));
    }
    if new_bytes < old_bytes && !options.may_shrink {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail(format!(
                "the disk has {}: what lies behind {} would be lost",
                ByteSize(old_bytes),
                ByteSize(new_bytes)
            ))
            .advice("--shrink allows it"));
    }
    let preallocation = match options.preallocation {
        Some(asked) => asked,
        // Nobody has to say for less what was said for all.
        None if new_bytes > old_bytes => layer.info()?.preallocation,
        None => Preallocation::Off,
    };
    drop(layer);
    let report = ResizeReport {
        old_bytes,
        new_bytes,
        preallocation,
    };
    match format {
        Format::Raw => resize_raw(target, &report, control)?,
        Format::Qcow2 => resize_qcow2(target, &report, control)?,
    }
    Ok(report)
}

fn resize_raw(target: &Target, report: &ResizeReport, control: Control<'_>) -> Result<()> {
    if report.preallocation == Preallocation::Metadata {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("preallocation=metadata is for qcow2; a raw image has no metadata"));
    }
    let file = target.file();
    file.resize(report.new_bytes)?;
    if report.new_bytes > report.old_bytes {
        let new = ByteRange::new(report.old_bytes, report.new_bytes);
        target
            .make_space(new, report.preallocation.space(), control)
            .inspect_err(|_| {
                let _ = file.resize(report.old_bytes);
            })?;
    }
    file.sync(SyncMode::All)
}

fn resize_qcow2(target: &Target, report: &ResizeReport, control: Control<'_>) -> Result<()> {
    let mut editor = Editor::open(target)?;
    let (old, new) = (report.old_bytes, report.new_bytes);
    if new < old {
        editor.shrink(new, control)?;
    } else if new > old {
        let is_mapped = report.preallocation != Preallocation::Off;
        if is_mapped && editor.image().header.backing_file.is_some() {
            return Err(Error::new(ErrorKind::InvalidArgument).detail(
                "preallocation and a backing file exclude each other: mapped clusters would hide it",
            ));
        }
        editor.grow(new, control)?;
        if is_mapped {
            editor
                .map_range(ByteRange::new(old, new), report.preallocation, control)
                .or_else(|error| {
                    editor.set_size(old)?;
                    Err(error)
                })?;
        }
    }
    target.file().sync(SyncMode::All)
}
