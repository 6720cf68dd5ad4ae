//! `extant fs rm`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_ext4::FileType;
use extant_space::{CancelToken, Error, ErrorKind, Result};

use crate::fs_image::walk::{Enter, OnError, Stage, walk};
use crate::fs_image::{At, Image, SpaceBelow, changing};

/// Remove files from an image.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs rm disk.img /etc/motd
  extant fs rm -r disk.img /usr/share/doc /usr/share/man
  extant fs rm -rf disk.img /tmp/build

Symbolic links are removed, not followed.")]
pub struct RmArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files in it
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Remove directories recursively
    #[arg(long, short, visible_short_alias = 'R')]
    pub recursive: bool,

    /// Ignore missing files
    #[arg(long, short)]
    pub force: bool,
}

/// Removes.
pub(super) fn run(args: &RmArgs, cancel: &CancelToken) -> Result<ExitCode> {
    changing(&args.image, SpaceBelow::default(), |image| {
        for path in &args.paths {
            match remove(image, path, args.recursive, cancel) {
                Err(error) if args.force && error.kind() == ErrorKind::NotFound => {}
                done => done?,
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn remove(image: &Image, path: &Path, recursive: bool, cancel: &CancelToken) -> Result<()> {
    let (parent, name) = image.resolve_parent(path)?;
    let bytes = path.as_os_str().as_encoded_bytes();
    let node = parent.lookup(name).at_inner(image, bytes)?;
    if node.file_type() != FileType::Directory {
        return parent.unlink(name).at_inner(image, bytes);
    }
    if !recursive {
        return Err(Error::new(ErrorKind::IsDirectory)
            .at(image.place(bytes))
            .advice("-r removes it with everything in it"));
    }
    walk(image, &node, bytes, OnError::Stop, &mut |step| {
        cancel.check()?;
        let is_directory = step.node.file_type() == FileType::Directory;
        let (from, name) = match step.parent {
            Some(parent) => (parent, step.name),
            None => (&parent, name),
        };
        match (step.stage, is_directory) {
            (Stage::Before, true) => Ok(()),
            (Stage::Before, false) => from.unlink(name),
            (Stage::After, _) => from.remove_directory(name),
        }
        .at_inner(image, step.path)?;
        Ok(Enter::Yes)
    })
}
