//! `extant create --in IMAGE`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

use extant_hostfs::Verified;
use extant_image::{Format, ImageOptions, NewImage, Pieces, verify_state};
use extant_space::{
    ByteRange, Control, Error, ErrorKind, MapSummary, Preallocation, Result, SpaceFile,
};
use serde::Serialize;

use super::check_space;
use super::new_file::NewFile;
use crate::create::{CreateArgs, ImageFacts, Told};
use crate::image::{At, Image, changing};

/// What was made.
#[derive(Debug, Serialize)]
pub struct Created {
    image: String,
    path: String,
    size_bytes: u64,
    allocation_bytes: u64,
    preallocation: Preallocation,
    written_bytes: u64,
    resumed_bytes: u64,
    verified: Verified,
    map: MapSummary,
    elapsed_seconds: f64,
    /// Of a disk image; the size is that of its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<ImageFacts>,
    #[serde(skip)]
    place: PathBuf,
}

impl Created {
    /// In the words for all files.
    pub fn told(&self) -> Told<'_> {
        Told {
            path: &self.place,
            image: self.disk,
            size_bytes: self.size_bytes,
            allocation_bytes: self.allocation_bytes,
            preallocation: self.preallocation,
            written_bytes: self.written_bytes,
            resumed_bytes: self.resumed_bytes,
            plan: None,
            verified: self.verified,
            map: &self.map,
            notes: &[],
            elapsed_seconds: self.elapsed_seconds,
        }
    }
}

/// Makes the file, which has its name when it is complete.
pub fn create(
    args: &CreateArgs,
    disk: &ImageOptions,
    image: &Path,
    control: Control<'_>,
) -> Result<Created> {
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
) -> Result<Created> {
    let new_file = NewFile::begin(image, &args.path, args.mode, args.force)?;
    let file = new_file.file()?;
    let size_bytes = new.file_bytes();
    file.resize(size_bytes)?;
    let range = ByteRange::new(0, allocation_bytes);
    let preallocation = new.preallocation().space();
    check_space(image, allocation_bytes)?;
    let rate = || args.pace.rate;
    let mut pieces = Pieces::new(&file, &rate, control);
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
    new.write_metadata(&file, control)?;
    pieces.sync()?;
    verify_state(&file, range, preallocation.state())?;
    let mut map = image.summary();
    file.for_each_extent(ByteRange::new(0, size_bytes), &mut |extent| {
        map.add(&extent);
        ControlFlow::Continue(())
    })?;
    control.cancel.check()?;
    new_file.give_name()?;
    let inner = args.path.as_os_str().as_encoded_bytes();
    Ok(Created {
        image: image.path().to_string_lossy().into_owned(),
        path: args.path.to_string_lossy().into_owned(),
        size_bytes,
        allocation_bytes,
        preallocation,
        written_bytes,
        resumed_bytes: 0,
        verified: Verified::ExtentMap,
        map,
        elapsed_seconds: 0.0,
        disk: (disk.format != Format::Raw).then(|| ImageFacts::of(disk)),
        place: image.place(inner),
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
