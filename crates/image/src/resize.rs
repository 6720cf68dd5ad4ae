//! Grows or shrinks an image, with an option for the space of the new part.

use extant_space::{ByteRange, ByteSize, Control, Error, ErrorKind, Remedy, Result, SyncMode};
use serde::Serialize;

use crate::format::Autoclear;
use crate::image_file::ImageFile;
use crate::image_format::Format;
use crate::offline_edit::OfflineEdit;
use crate::preallocation::Preallocation;

/// Whole sectors of qcow2.
const SECTOR_BYTES: u64 = 512;

/// Options of [`resize`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResizeOptions {
    /// The space of the new part; `None`: the mode that the image is in, `Off` over a backing file.
    pub preallocation: Option<Preallocation>,
    /// The disk may shrink; data beyond its new end is lost.
    pub may_shrink: bool,
}

/// Result of [`resize`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResizeReport {
    /// Size of the disk before.
    pub old_bytes: u64,
    /// Size of the disk now.
    pub new_bytes: u64,
    /// The space of the new part.
    pub preallocation: Preallocation,
}

/// Resizes the disk to `virtual_bytes`; durable on return.
///
/// # Errors
/// `InvalidArgument` when it would become smaller and may not, `Unsupported` for images that are
/// not changed here, `NoSpace` and `Cancelled`: the disk has its old size then. A crash costs space
/// in the image at worst.
pub fn resize(
    file: &ImageFile,
    format: Format,
    virtual_bytes: u64,
    options: &ResizeOptions,
    control: Control<'_>,
) -> Result<ResizeReport> {
    let layer = file.layer(format)?;
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
                "the disk has {}: data after {} would be lost",
                ByteSize(old_bytes),
                ByteSize(new_bytes)
            ))
            .remedy(Remedy::Shrink));
    }
    let has_backing = layer
        .header()
        .is_some_and(|header| header.backing_file.is_some());
    let preallocation = match options.preallocation {
        Some(asked) => asked,
        // The new part of an overlay shows zeros without space, however full the image is.
        None if new_bytes > old_bytes && !has_backing => layer.info()?.preallocation,
        None => Preallocation::Off,
    };
    drop(layer);
    let report = ResizeReport {
        old_bytes,
        new_bytes,
        preallocation,
    };
    match format {
        Format::Raw => resize_raw(file, &report, control)?,
        Format::Qcow2 => resize_qcow2(file, &report, control)?,
    }
    Ok(report)
}

fn resize_raw(file: &ImageFile, report: &ResizeReport, control: Control<'_>) -> Result<()> {
    if report.preallocation == Preallocation::Metadata {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .detail("preallocation=metadata is for qcow2; a raw image has no metadata"));
    }
    if file.is_disk() {
        return Err(ImageFile::refuse(
            "a raw image on a block device cannot be resized",
        ));
    }
    let contents = file.file();
    contents.resize(report.new_bytes)?;
    if report.new_bytes > report.old_bytes {
        let new = ByteRange::new(report.old_bytes, report.new_bytes);
        file.make_space(new, report.preallocation.space(), control)
            .inspect_err(|_| {
                let _ = contents.resize(report.old_bytes);
            })?;
    }
    contents.sync(SyncMode::All)
}

fn resize_qcow2(file: &ImageFile, report: &ResizeReport, control: Control<'_>) -> Result<()> {
    let mut edit = OfflineEdit::open(file, control)?;
    let (old, new) = (report.old_bytes, report.new_bytes);
    edit.check_resizable(new)?;
    if new < old {
        edit.check_counts(control)?;
        edit.shrink(new, control)?;
    } else if new > old {
        grow_qcow2(&mut edit, report, control)?;
    }
    if let Some(data) = file.data_file() {
        data.file().sync(SyncMode::All)?;
    }
    file.file().sync(SyncMode::All)
}

fn grow_qcow2(
    edit: &mut OfflineEdit<'_>,
    report: &ResizeReport,
    control: Control<'_>,
) -> Result<()> {
    let (old, new) = (report.old_bytes, report.new_bytes);
    let header = &edit.image().header;
    let preallocation = if header.autoclear.contains(Autoclear::RAW_DATA_FILE) {
        // A raw data file that others read has to match the tables.
        report.preallocation.max_metadata()
    } else {
        report.preallocation
    };
    let is_mapped = preallocation != Preallocation::Off;
    if is_mapped && header.backing_file.is_some() {
        return Err(Error::new(ErrorKind::InvalidArgument).detail(
            "preallocation and a backing file exclude each other: mapped clusters would hide it",
        ));
    }
    edit.check_room(new, preallocation)?;
    let bitmaps = edit.longer_bitmaps(new)?;
    if !bitmaps.is_empty() {
        edit.believe_bitmaps(false)?;
    }
    let done = edit.grow(new, control).and_then(|()| {
        if is_mapped {
            edit.map_range(ByteRange::new(old, new), preallocation, control)
                .or_else(|error| {
                    edit.set_size(old)?;
                    Err(error)
                })
        } else {
            Ok(())
        }
    });
    match (bitmaps.is_empty(), done) {
        (true, done) => done,
        (false, Ok(())) => edit.lengthen_bitmaps(bitmaps),
        (false, Err(error)) => {
            if edit.image().header.virtual_bytes == old {
                edit.forget_bitmaps(bitmaps)?;
            }
            Err(error)
        }
    }
}
