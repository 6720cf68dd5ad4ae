//! `extant materialize --in IMAGE`.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use extant_ext4::FollowLast;
use extant_image::{Format, ImageFile, Layer};
use extant_provision::{MaterializeReport, Provisioner, Shared};
use extant_space::{ByteRange, Control, Error, ErrorKind, Result};

use super::{Done, MaterializeArgs, MaterializeOutput};
use crate::file_location::FileLocation;
use crate::fs_image::{At, changing};
use crate::image::{self, Facts};
use crate::image_format::Meaning;

/// Makes the holes and unwritten parts of the file written.
pub fn materialize(
    args: &MaterializeArgs,
    image: &Path,
    range: Option<ByteRange>,
    control: Control<'_>,
) -> Result<Done> {
    let started = Instant::now();
    changing(image, args.inside.below(), |image| {
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
                let pace = args.pace.pace();
                pace.check(&*file, control.progress)?;
                let target = ImageFile::held(file).with_pace(pace, Shared::Refuse);
                let done = image::Done::of(&target, Format::Qcow2, place, control)?;
                return Ok(Done::Disk(Box::new(done)));
            }
            let range = range.unwrap_or(ByteRange::new(0, u64::MAX));
            let report = Provisioner::new(&*file, range, control)
                .at_pace(&args.pace.pace())
                .materialize(Shared::Refuse)?;
            let report = MaterializeReport {
                plan: None,
                elapsed_seconds: started.elapsed().as_secs_f64(),
                ..report
            };
            let facts = Facts::of(place, &Layer::open(file, Format::Raw)?)?;
            Ok(Done::File(Box::new(MaterializeOutput::new(facts, report))))
        };
        make().at_inner(image, inner)
    })
}
