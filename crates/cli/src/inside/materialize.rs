//! `extant materialize --in IMAGE`.

use std::path::Path;
use std::time::Instant;

use extant_ext4::FollowLast;
use extant_hostfs::{MaterializeReport, Verified};
use extant_space::{ByteRange, Control, ExtentState, Result, SpaceFile};

use super::pieces::Pieces;
use super::{check_space, verify};
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
            let pieces = Pieces::new(&file, args.pace.rate, control);
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
    let (mut written, mut holes) = (0, 0);
    for extent in file.extents(range)? {
        match extent.state {
            ExtentState::Written => written += extent.logical.len(),
            ExtentState::Hole => holes += extent.logical.len(),
            ExtentState::Unwritten => {}
        }
    }
    if written < range.len() {
        check_space(image, holes)?;
        if holes > 0 {
            pieces.allocate(range)?;
        }
        pieces.expect(range.len() - written, range.len());
        for extent in file.extents(range)? {
            if extent.state != ExtentState::Written {
                pieces.write_zeroes(extent.logical)?;
            }
        }
        pieces.sync()?;
        verify(file, range, ExtentState::Written)?;
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
