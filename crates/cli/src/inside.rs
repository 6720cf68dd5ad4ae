//! The commands about space on a file inside an image (`--in IMAGE`): create, materialize, fallocate.
//!
//! The engine does what the kernel does for host files, so there is one way to every result and no plan to choose:
//! space is allocated as a whole, then zeroed by `WRITE_ZEROES`, in pieces that answer a cancel.
//!
//! A new file has no name until it is complete. Whatever happens before, nothing of it is left: what has no name is
//! freed by who opens the image next.

mod create;
mod fallocate;
mod materialize;
mod pieces;

use std::path::PathBuf;

use clap::Args;
use extant_space::{ByteRange, ByteSize, Error, ErrorKind, ExtentState, Result, SpaceFile};

use crate::image::{AssignMode, Image};

pub use create::create;
pub use fallocate::{Opened, Purpose, open};
pub use materialize::materialize;
pub use pieces::Pieces;

/// Where the file is.
#[derive(Args, Clone, Debug)]
pub struct InsideArgs {
    /// The file is inside this ext4 image or disk, which nobody else may use meanwhile
    #[arg(long = "in", value_name = "IMAGE")]
    pub image: Option<PathBuf>,

    /// With --in: whether new space gets its place on the device below at once
    #[arg(long, value_name = "WHEN", default_value = "try", requires = "image")]
    pub assign: AssignMode,
}

/// Refuses what cannot fit, before anything is changed.
fn check_space(image: &Image, wanted: u64) -> Result<()> {
    let found = image.filesystem().statistics();
    let available = found.free_blocks * u64::from(found.block_bytes);
    if wanted <= available {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NoSpace).detail(format!(
        "no space: {} wanted, {} available, {} missing",
        ByteSize(wanted),
        ByteSize(available),
        ByteSize(wanted - available)
    )))
}

/// Fails unless every byte of `range` is in `state` or a better one.
fn verify(file: &dyn SpaceFile, range: ByteRange, state: ExtentState) -> Result<()> {
    let mut at = range.start();
    for extent in file.extents(range)? {
        if extent.state < state {
            return Err(Error::new(ErrorKind::NotKept)
                .in_range(extent.logical)
                .detail(format!(
                    "the extent map shows {} instead of {state}",
                    extent.state
                )));
        }
        at = extent.logical.end();
    }
    match at >= range.end() {
        true => Ok(()),
        false => Err(Error::new(ErrorKind::NotKept)
            .in_range(ByteRange::new(at, range.end()))
            .detail(format!("the extent map shows a hole instead of {state}"))),
    }
}
