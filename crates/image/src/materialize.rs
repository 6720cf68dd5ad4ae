//! Makes a thin image fully allocated in place: every cluster is allocated, and the whole file is
//! written. Data is preserved.
//!
//! Clusters shared with snapshots are copied. Compressed clusters are expanded. An image with a
//! backing file is refused; `convert` merges both into one image.
//!
//! A block device has its space already: there, clusters are mapped to zeros, and nothing else is
//! done. A raw image of a Ceph cluster gets the objects that it lacks.

use std::time::Instant;

use extant_rbd::MaterializeOptions;
use extant_space::{ByteRange, Control, Preallocation as Space, Remedy, Result, SyncMode};
use serde::Serialize;

use crate::image_file::ImageFile;
use crate::image_format::Format;
use crate::offline_edit::OfflineEdit;
use crate::preallocation::Preallocation;

/// Result of [`materialize`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MaterializeReport {
    /// Bytes of the guest's disk that were written before.
    pub already_written_bytes: u64,
    /// Size of the disk, all of which is written now.
    pub virtual_bytes: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Time taken, seconds.
    pub elapsed_seconds: f64,
}

/// Makes the image full; durable on return.
///
/// # Errors
/// `Unsupported` for images that cannot be full in place, `NoSpace`, `Cancelled`. The data is
/// unchanged then, and running again does the rest.
pub fn materialize(
    file: &ImageFile,
    format: Format,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    let started = Instant::now();
    if let (Format::Raw, Some(image)) = (format, file.cluster_image()) {
        let report = extant_rbd::materialize(image, MaterializeOptions::default(), control)?;
        return Ok(MaterializeReport {
            already_written_bytes: report.already_written_bytes,
            virtual_bytes: report.size_bytes,
            file_bytes: report.size_bytes,
            elapsed_seconds: report.elapsed_seconds,
        });
    }
    let layer = file.layer(format)?;
    let before = layer.info()?;
    drop(layer);
    match format {
        Format::Qcow2 => map_all(file, control)?,
        Format::Raw if file.is_disk() => {
            return Err(ImageFile::refuse(
                "a raw image on a disk is the disk, which has its space",
            ));
        }
        Format::Raw => {}
    }
    let file_bytes = file.file().size()?;
    let whole = ByteRange::new(0, file_bytes);
    file.make_space(whole, Space::Full, control)?;
    file.file().sync(SyncMode::All)?;
    if let Some(data) = file.data_file() {
        let whole = ByteRange::new(0, before.virtual_bytes);
        data.make_space(whole, Space::Full, control)?;
        data.file().sync(SyncMode::All)?;
    }
    Ok(MaterializeReport {
        already_written_bytes: before.states.written,
        virtual_bytes: before.virtual_bytes,
        file_bytes,
        elapsed_seconds: started.elapsed().as_secs_f64(),
    })
}

fn map_all(file: &ImageFile, control: Control<'_>) -> Result<()> {
    let mut edit = OfflineEdit::open(file, control)?;
    let header = &edit.image().header;
    if let Some(name) = &header.backing_file {
        return Err(ImageFile::refuse(format!(
            "the image has a backing file ({}), which shows through where it has nothing",
            name.display()
        ))
        .remedy(Remedy::MergeBacking));
    }
    let all = ByteRange::new(0, header.virtual_bytes);
    edit.check_counts(control)?;
    // After a crash the file may be far longer than the image.
    edit.truncate_tail()?;
    if let Some(data) = file.data_file() {
        data.lengthen(all.end())?;
    }
    edit.map_range(all, Preallocation::Full, control)
}
