//! Allocation commands for a file inside a file-system image (`--in IMAGE`): create, materialize,
//! fallocate, and copies of disk images (`--into IMAGE`).
//!
//! A new file has no name until it is complete. A failure before that leaves nothing: the next
//! opening of the image frees files without a name.

mod fallocate;
mod new_file;

use std::path::PathBuf;

use clap::Args;

use crate::fs_image::{AssignMode, SpaceBelow, ZeroesMode};

pub use fallocate::{Opened, Purpose, open};
pub use new_file::NewFile;

/// Location of the file.
#[derive(Args, Clone, Debug)]
pub struct InImageArgs {
    /// The file is inside this ext4 image, disk or NBD export, which no other process may use
    /// meanwhile
    #[arg(long = "in", value_name = "IMAGE")]
    pub image: Option<PathBuf>,

    /// With --in: whether new space is allocated on the device below at once
    #[arg(long, value_name = "WHEN", default_value = "try", requires = "image")]
    pub assign: AssignMode,

    /// With --in: zeros by metadata alone below the image, or written through every layer
    #[arg(
        long,
        value_name = "HOW",
        default_value = "through",
        requires = "image"
    )]
    pub zeroes: ZeroesMode,
}

impl InImageArgs {
    /// Treatment of the device below.
    pub fn below(&self) -> SpaceBelow {
        SpaceBelow {
            assign: self.assign,
            zeroes: self.zeroes,
        }
    }
}
