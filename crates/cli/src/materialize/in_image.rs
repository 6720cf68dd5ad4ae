//! `extant materialize --in IMAGE`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use extant_ext4::FollowLast;
use extant_hostfs::{MaterializeReport, Verified};
use extant_image::{Format, Layer, Missing, Pieces, Target};
use extant_space::{ByteRange, Control, Error, ErrorKind, Result, SpaceFile};

use super::{Done, MaterializeArgs, Told};
use crate::file_location::FileLocation;
use crate::fs_image::{At, Image, changing};
use crate::image::{self, Facts};
use crate::image_format::Meaning;
use crate::in_image::check_space;

/// Makes the holes and unwritten parts of the file written.
pub fn materialize(
    args: &MaterializeArgs,
    image: &Path,
    range: Option<ByteRange>,
    control: Control<'_>,
) -> Result<Done> {
    let started = Instant::now();
    changing(image, args.inside.assign, |image| {
        let node = image.resolve(&args.file, FollowLast::Yes)?;
        let inner = args.file.as_os_str().as_encoded_bytes();
        let make = || {
            let file = Arc::new(node.file()?);
            let place = FileLocation::new(&args.file, Some(image.path()));
            if args.meaning(&*file)? == Meaning::Disk {
                if args.pace.rate.is_some() {
                    return Err(Error::new(ErrorKind::Unsupported).detail(
                        "--rate is for the files inside an image (--in), not for disks in them",
                    ));
                }
                let target = Target::held(file);
                let done = image::Done::of(&target, Format::Qcow2, place, control)?;
                return Ok(Done::Disk(Box::new(done)));
            }
            let rate = || args.pace.rate;
            let pieces = Pieces::new(&*file, &rate, control);
            let mut report = make_written(&*file, image, range, pieces)?;
            report.elapsed_seconds = started.elapsed().as_secs_f64();
            let facts = Facts::of(place, &Layer::open(file, Format::Raw)?)?;
            Ok(Done::File(Box::new(Told { facts, report })))
        };
        make().at_inner(image, inner)
    })
}

fn make_written(
    file: &dyn SpaceFile,
    image: &Image,
    range: Option<ByteRange>,
    mut pieces: Pieces<'_>,
) -> Result<MaterializeReport> {
    let whole = ByteRange::new(0, file.size()?);
    let range = match range {
        None => whole,
        Some(range) => range.intersection(whole).unwrap_or_default(),
    };
    let found = Missing::of(file, range)?;
    let written = found.written_bytes;
    if written < range.len() {
        check_space(image, found.hole_bytes)?;
        pieces.make_written(range)?;
    }
    Ok(MaterializeReport {
        range,
        already_written_bytes: written,
        zeroed_bytes: range.len() - written,
        unshared_bytes: 0,
        plan: None,
        verified: Verified::ExtentMap,
        elapsed_seconds: 0.0,
    })
}
