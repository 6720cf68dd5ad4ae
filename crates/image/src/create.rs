//! Makes a new image on the host.
//!
//! The guarantees of `extant-hostfs` for a file hold for the image: it gets its name when it is
//! complete, durable and verified. A run that was interrupted while space was made is resumed.
//!
//! On a block device a qcow2 image overwrites the contents (`on_disk.rs`).
//!
//! An external data file is made first and removed if the image fails.

use std::path::Path;

use extant_hostfs::{CreateReport, Existing, Reach};
use extant_provision::{ContentOrder, ContentWriter};
use extant_space::{Control, Error, ErrorKind, Result, SpaceFile};

use crate::hold::{Replaced, hold_replaced, refuse_export};
use crate::image_format::Format;
use crate::new_image::NewImage;
use crate::on_disk::{create_on_disk, is_disk};
use crate::options::ImageOptions;
use crate::referenced_file::data_file_path;

/// Creates `path` with the image that `options` describe.
///
/// Size and preallocation in `file` are set by the image; the rest (pace, permissions, treatment of
/// an existing file) is used unchanged. A raw image is made as [`extant_hostfs::create`] makes a
/// file.
///
/// # Errors
/// Those of [`NewImage::new`] and [`extant_hostfs::create`]; `InUse` if the replaced file is in
/// use.
pub fn create(
    path: &Path,
    options: &ImageOptions,
    file: &extant_hostfs::CreateOptions,
    control: Control<'_>,
) -> Result<CreateReport> {
    let new = NewImage::new(options).map_err(|error| error.at(path))?;
    if options.format == Format::Raw {
        return create_raw(path, options, file, control);
    }
    if options.qcow2.data_file.is_none() && is_disk(path) {
        if file.reach == Reach::Layers {
            return Err(Error::new(ErrorKind::Unsupported)
                .at(path)
                .detail("is a disk; layers below are only followed from a file"));
        }
        return create_on_disk(path, &new, file.existing, control);
    }
    let mut file = file.clone();
    let Some(data_file) = &options.qcow2.data_file else {
        file.preallocation = new.preallocation().space();
        return create_file(path, &new, &file, control);
    };
    let data_path = data_file_path(&data_file.name)?;
    let mut data = file.clone();
    data.size_bytes = options.disk_bytes();
    data.preallocation = new.preallocation().space();
    data.allocation_bytes = None;
    file.preallocation = extant_space::Preallocation::Off;
    let _held = hold_existing(data_path, &data)?;
    let report = extant_hostfs::create(data_path, &data, control)?;
    let image = create_file(path, &new, &file, control).inspect_err(|_| {
        // The first error is the one to report.
        let _ = std::fs::remove_file(data_path);
    })?;
    Ok(CreateReport {
        path: image.path,
        ..report
    })
}

fn create_raw(
    path: &Path,
    options: &ImageOptions,
    file: &extant_hostfs::CreateOptions,
    control: Control<'_>,
) -> Result<CreateReport> {
    refuse_export(path)?;
    let mut file = file.clone();
    file.size_bytes = options.virtual_bytes;
    file.preallocation = options.preallocation.space();
    file.allocation_bytes = options.allocation_bytes;
    let _held = hold_existing(path, &file)?;
    extant_hostfs::create(path, &file, control)
}

/// Locks the file or disk that the new image replaces.
pub(crate) fn hold_existing(
    path: &Path,
    file: &extant_hostfs::CreateOptions,
) -> Result<Option<Replaced>> {
    match file.existing {
        Existing::Replace => hold_replaced(path).map(Some),
        Existing::Refuse => Ok(None),
    }
}

fn create_file(
    path: &Path,
    new: &NewImage,
    file: &extant_hostfs::CreateOptions,
    control: Control<'_>,
) -> Result<CreateReport> {
    let mut file = file.clone();
    file.size_bytes = new.file_bytes();
    file.allocation_bytes = new.allocation_bytes();
    let fill = |file: &dyn SpaceFile, control: Control<'_>| new.write_metadata(file, control);
    let filling = ContentWriter {
        order: ContentOrder::AfterSpace,
        fill: &fill,
    };
    let _held = hold_existing(path, &file)?;
    extant_hostfs::create_filled(path, &file, &filling, control).map_err(|error| {
        match error.kind() {
            ErrorKind::NoSpace => {
                error.advice("free some, choose a smaller SIZE, or less preallocation")
            }
            _ => error,
        }
    })
}
