//! An image that is changed in place, on the host or inside an ext4 image.

use std::sync::Arc;

use extant_ext4::FollowLast;
use extant_image::detect::Purpose;
use extant_image::{Format, ImageFile};
use extant_provision::Shared;
use extant_space::{Error, ErrorKind, Result, Silent};

use super::{ChainArgs, LookArgs, not_inside};
use crate::arguments::PaceArgs;
use crate::fs_image::{At, SpaceBelow, changing};

/// Opens the image exclusively, and runs `work` on it with its format. The data file and the
/// backing file that it names are opened if that is allowed.
pub fn change<T>(
    look: &LookArgs,
    chain: ChainArgs,
    pace: &PaceArgs,
    work: impl FnOnce(&ImageFile, Format) -> Result<T>,
) -> Result<T> {
    let run = |target: ImageFile| {
        let format = look.format_in(&**target.file(), Purpose::Use)?;
        let target = match format {
            Format::Qcow2 if chain.chain => target.with_named_files()?,
            _ => target,
        };
        work(&target, format)
    };
    let Some(outer) = &look.image else {
        let target = ImageFile::host(&look.file, pace.pace())?;
        let checked = target.check_pace();
        let checked = checked.map_err(|error| error.advice("leave out --rate and --background"));
        let done = checked.and_then(|()| run(target));
        return done.map_err(|error| error.at(&look.file));
    };
    if pace.rate.is_some() {
        return Err(Error::new(ErrorKind::Unsupported)
            .detail("--rate is for files of the host, not for those inside an image (--in)"));
    }
    if chain.chain {
        return Err(not_inside());
    }
    changing(outer, SpaceBelow::default(), |outer| {
        let node = outer.resolve(&look.file, FollowLast::Yes)?;
        let inner = look.file.as_os_str().as_encoded_bytes();
        let pace = pace.pace();
        let done = node.file().and_then(|file| {
            pace.check(&file, &Silent)?;
            run(ImageFile::held(Arc::new(file)).with_pace(pace, Shared::Refuse))
        });
        done.at_inner(outer, inner)
    })
}
