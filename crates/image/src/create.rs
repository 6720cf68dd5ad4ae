//! Makes a new image on the host.
//!
//! What `extant-hostfs` promises of a file holds for the image: it has its name when it is complete, durable and verified,
//! and not before. A run that was cut off while space was made goes on where it was.
//!
//! On a disk, an image is made over what is there (`on_disk.rs`).
//!
//! An external data file is made first, and removed again when the image fails: without the image it is only a file.

use std::path::Path;

use extant_hostfs::{CreateReport, Existing, FillOrder, Filling, HostFile};
use extant_space::{Control, ErrorKind, Result};

use crate::hold::{Replaced, hold_replaced};
use crate::image_format::Format;
use crate::new_image::NewImage;
use crate::on_disk::{create_on_disk, is_disk};
use crate::options::ImageOptions;

/// Creates `path` with the image that `options` ask for.
///
/// Of `file`, the size and everything about preallocation are the image's to say; the rest (pace, permissions, what
/// happens to an existing file) is taken as it is.
///
/// # Errors
/// Those of [`NewImage::new`] and [`extant_hostfs::create`]; `InUse` when somebody uses what is replaced.
pub fn create(
    path: &Path,
    options: &ImageOptions,
    file: &extant_hostfs::CreateOptions,
    control: Control<'_>,
) -> Result<CreateReport> {
    let new = NewImage::new(options).map_err(|error| error.at(path))?;
    if options.format == Format::Qcow2 && options.qcow2.data_file.is_none() && is_disk(path) {
        return create_on_disk(path, &new, file.existing, control);
    }
    let mut file = file.clone();
    let data_file = match options.format {
        Format::Qcow2 => options.qcow2.data_file.as_ref(),
        Format::Raw => None,
    };
    let Some(data_file) = data_file else {
        file.preallocation = new.preallocation().space();
        return create_file(path, &new, &file, control);
    };
    let mut data = file.clone();
    data.size_bytes = options.disk_bytes();
    data.preallocation = new.preallocation().space();
    data.allocation_bytes = None;
    file.preallocation = extant_space::Preallocation::Off;
    let _held = hold_existing(&data_file.name, &data)?;
    let report = extant_hostfs::create(&data_file.name, &data, control)?;
    let image = create_file(path, &new, &file, control).inspect_err(|_| {
        // The error that brought us here is the one to tell.
        let _ = std::fs::remove_file(&data_file.name);
    })?;
    Ok(CreateReport {
        path: image.path,
        ..report
    })
}

/// Keeps others out of what the new file replaces.
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
    let fill = |file: &HostFile, control: Control<'_>| new.write_metadata(file, control);
    let filling = Filling {
        order: FillOrder::AfterSpace,
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
