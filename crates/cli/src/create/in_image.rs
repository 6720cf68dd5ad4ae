//! `extant create --in IMAGE`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use extant_image::{Format, ImageOptions, Layer, NewImage};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, LayerStates, Preallocation, Result, SpaceFile,
};

use super::{CreateArgs, Made, preallocated_bytes};
use crate::file_location::FileLocation;
use crate::fs_image::{At, Image, changing};
use crate::in_image::NewFile;

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
    args.options(disk).allocation()?;
    let mut created = changing(image, args.inside.below(), |image| {
        let inner = args.path.as_os_str().as_encoded_bytes();
        make(args, disk, &new, image, control)
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
    control: Control<'_>,
) -> Result<Made> {
    let new_file = NewFile::begin(image, &args.path, args.mode, args.force)?;
    let file = Arc::new(new_file.file()?);
    let made = new.provision(&*file, &args.pace.pace(), control)?;
    let mut map = image.summary();
    file.for_each_extent(ByteRange::new(0, made.size_bytes), &mut |extent| {
        map.add(&extent);
        ControlFlow::Continue(())
    })?;
    let qcow2 = match disk.format {
        Format::Raw => None,
        Format::Qcow2 => Layer::open(file.clone(), Format::Qcow2)?.qcow2_info()?,
    };
    let layers = LayerStates::of(&*file, ByteRange::new(0, made.size_bytes))?;
    new_file.give_name()?;
    let inner = args.path.as_os_str().as_encoded_bytes();
    let preallocation = new.preallocation().space();
    Ok(Made {
        place: FileLocation::new(&args.path, Some(image.path())),
        shown: image.place(inner),
        format: disk.format,
        capacity_bytes: disk.disk_bytes(),
        size_bytes: made.size_bytes,
        allocated_bytes: map.allocated_bytes(),
        preallocation: disk.preallocation,
        preallocated_bytes: preallocated_bytes(disk),
        qcow2,
        written_bytes: made.provisioned.zeroed_bytes,
        zeroed_bytes: made.provisioned.zeroed_bytes,
        resumed_bytes: 0,
        plan: None,
        verified: made.verified,
        layers,
        real_bytes: match preallocation {
            Preallocation::Off => 0,
            Preallocation::Falloc | Preallocation::Full => new.space_bytes(),
        },
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
