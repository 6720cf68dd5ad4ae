//! `extant image convert --into IMAGE`.

use std::time::Instant;

use extant_image::{Conversion, Pieces, verify_state};
use extant_space::{ByteRange, Control, ExtentState, Preallocation, Result, SpaceFile};

use super::check_space;
use super::new_file::NewFile;
use crate::fs_image::Image;

/// Puts the new image of `conversion` into a file that has no name yet, with its space; durable on
/// return.
pub fn convert(
    new: &NewFile<'_>,
    image: &Image,
    conversion: &Conversion<'_>,
    control: Control<'_>,
) -> Result<f64> {
    let started = Instant::now();
    let file = new.file()?;
    let whole = ByteRange::new(0, conversion.image().file_bytes());
    let preallocation = conversion.image().preallocation().space();
    file.resize(whole.end())?;
    let mut pieces = Pieces::new(&file, &|| None, control);
    if preallocation == Preallocation::Off {
        // A thin one takes what it has data for.
        check_space(image, conversion.data_bytes())?;
    } else {
        check_space(image, whole.len())?;
        pieces.allocate(whole)?;
    }
    let whole = ByteRange::new(0, conversion.fill(&file, control)?);
    if preallocation == Preallocation::Full {
        let unwritten = |extent: &extant_space::Extent| extent.state != ExtentState::Written;
        let rest: Vec<ByteRange> = file
            .extents(whole)?
            .iter()
            .filter(|extent| unwritten(extent))
            .filter_map(|extent| extent.logical.intersection(whole))
            .collect();
        let missing = rest.iter().map(|range| range.len()).sum();
        pieces.expect(missing, whole.len());
        for range in rest {
            pieces.write_zeroes(range)?;
        }
    }
    pieces.sync()?;
    verify_state(&file, whole, preallocation.state())?;
    control.cancel.check()?;
    new.give_name()?;
    Ok(started.elapsed().as_secs_f64())
}
