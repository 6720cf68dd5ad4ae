//! `extant materialize --in IMAGE`.

use std::path::Path;
use std::time::Instant;

use extant_ext4::FollowLast;
use extant_hostfs::{MaterializeReport, Verified};
use extant_image::{Missing, Pieces};
use extant_space::{ByteRange, Control, Result, SpaceFile};

use super::check_space;
use crate::image::{At, Image, changing};
use crate::materialize::MaterializeArgs;

/// Makes the holes and unwritten parts of the file written.
pub fn materialize(
    args: &MaterializeArgs,
    image: &Path,
    range: Option<ByteRange>,
    control: Control<'_>,
) -> Result<MaterializeReport> {
    let started = Instant::now();
    let mut report = changing(image, args.inside.assign, |image| {
        let node = image.resolve(&args.file, FollowLast::Yes)?;
        let inner = args.file.as_os_str().as_encoded_bytes();
        let done = node.file().and_then(|file| {
            let rate = || args.pace.rate;
            let pieces = Pieces::new(&file, &rate, control);
            make_written(&file, image, range, pieces)
        });
        done.at_inner(image, inner)
    })?;
    report.elapsed_seconds = started.elapsed().as_secs_f64();
    Ok(report)
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
