//! `extant create --in IMAGE`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use extant_hostfs::Verified;
use extant_image::{Format, ImageOptions, Layer, NewImage, Pieces, verify_state};
use extant_space::{ByteRange, Control, Error, ErrorKind, Preallocation, Result, SpaceFile};

use super::{CreateArgs, Made, preallocated_bytes};
use crate::file_location::FileLocation;
use crate::fs_image::{At, Image, changing};
use crate::in_image::{NewFile, check_space};

/// Makes the file, which has its name when it is complete.
pub fn create(
    args: &CreateArgs,
    disk: &ImageOptions,
    image: &Path,
    control: Control<'_>,
) -> Result<Made> {
    let started = Instant::now();
    if disk.qcow2.data_file.is_some() {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail("-o data_file is not supported inside an image (--in)"));
    }
    let new = NewImage::new(disk)?;
    let mut options = args.options(disk);
    options.size_bytes = new.file_bytes();
    let allocation_bytes = options.allocation()?;
    let mut created = changing(image, args.inside.assign, |image| {
        let inner = args.path.as_os_str().as_encoded_bytes();
        make(args, disk, &new, image, allocation_bytes, control)
            .map_err(|error| explain(error, args))
            .at_inner(image, inner)
    })?;
    created.elapsed_seconds = started.elapsed().as_secs_f64();
    Ok(created)
}

fn make(
    args: &CreateArgs,
    disk: &ImageOptions,
    new: &NewImage,
    image: &Image,
    allocation_bytes: u64,
    control: Control<'_>,
) -> Result<Made> {
    let new_file = NewFile::begin(image, &args.path, args.mode, args.force)?;
    let file = Arc::new(new_file.file()?);
    let size_bytes = new.file_bytes();
    file.resize(size_bytes)?;
    let range = ByteRange::new(0, allocation_bytes);
    let preallocation = new.preallocation().space();
    check_space(image, allocation_bytes)?;
    let rate = || args.pace.rate;
    let mut pieces = Pieces::new(&*file, &rate, control);
    let written_bytes = match preallocation {
        Preallocation::Full => {
            pieces.allocate_for_zeroes(range)?;
            pieces.expect(range.len(), range.len());
            pieces.write_zeroes(range)?;
            allocation_bytes
        }
        _ => {
            pieces.allocate(range)?;
            0
        }
    };
    new.write_metadata(&*file, control)?;
    pieces.sync()?;
    verify_state(&*file, range, preallocation.state())?;
    let mut map = image.summary();
    file.for_each_extent(ByteRange::new(0, size_bytes), &mut |extent| {
        map.add(&extent);
        ControlFlow::Continue(())
    })?;
    control.cancel.check()?;
    let qcow2 = match disk.format {
        Format::Raw => None,
        Format::Qcow2 => Layer::open(file.clone(), Format::Qcow2)?.qcow2_info()?,
    };
    new_file.give_name()?;
    let inner = args.path.as_os_str().as_encoded_bytes();
    Ok(Made {
        place: FileLocation::new(&args.path, Some(image.path())),
        shown: image.place(inner),
        format: disk.format,
        size_bytes: disk.disk_bytes(),
        file_bytes: size_bytes,
        allocated_bytes: map.allocated_bytes(),
        preallocation: disk.preallocation,
        preallocated_bytes: preallocated_bytes(disk),
        qcow2,
        written_bytes,
        resumed_bytes: 0,
        plan: None,
        verified: Verified::ExtentMap,
        real_bytes: allocation_bytes,
        space: preallocation,
        map_source: None,
        map,
        notes: Vec::new(),
        elapsed_seconds: 0.0,
    })
}

fn explain(error: Error, args: &CreateArgs) -> Error {
    match (error.kind(), args.allocation) {
        (ErrorKind::NoSpace, None) => error
            .advice("free some, choose a smaller SIZE, or make only a part real (--allocation)"),
        (ErrorKind::NoSpace, Some(_)) => {
            error.advice("free some, or choose a smaller --allocation")
        }
        _ => error,
    }
}
