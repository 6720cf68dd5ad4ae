//! Allocation commands for a file inside a file-system image (`--in IMAGE`): create, materialize,
//! fallocate, and copies of disk images (`--into IMAGE`).
//!
//! Space is made by `extant_image::Pieces`.
//!
//! A new file has no name until it is complete. A failure before that leaves nothing: the next
//! opening of the image frees files without a name.

mod convert;
mod fallocate;
mod new_file;

use std::path::PathBuf;

use clap::Args;
use extant_space::{ByteSize, Error, ErrorKind, Result};

use crate::fs_image::{AssignMode, Image};

pub use convert::convert;
pub use fallocate::{Opened, Purpose, open};
pub use new_file::NewFile;

/// Where the file is.
#[derive(Args, Clone, Debug)]
pub struct InImageArgs {
    /// The file is inside this ext4 image or disk, which no other process may use meanwhile
    #[arg(long = "in", value_name = "IMAGE")]
    pub image: Option<PathBuf>,

    /// With --in: whether new space gets its place on the device below at once
    #[arg(long, value_name = "WHEN", default_value = "try", requires = "image")]
    pub assign: AssignMode,
}

/// Refuses what cannot fit, before anything is changed.
pub fn check_space(image: &Image, wanted: u64) -> Result<()> {
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
