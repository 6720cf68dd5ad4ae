//! `extant fs dump`: the structures of a file system, as dumpe2fs(8) and debugfs(8) show them.

mod extents;
mod groups;
mod inode;
pub(super) mod journal;
pub(super) mod superblock;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{FollowLast, InodeNumber, Node};
use extant_space::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::fs_image::Image;
use crate::print;

/// Show the structures of a file system: superblock, groups, inodes, extent trees, journal.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs dump disk.img                        the superblock
  extant fs dump --groups disk.img
  extant fs dump --inode /etc/passwd --extents /etc/passwd disk.img
  extant fs dump --inode 8 --journal disk.img
  extant fs dump --superblock --json disk.img | jq .superblock.features

An inode is a number, or a path in the image.")]
pub struct DumpArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// The superblock; so without any option
    #[arg(long)]
    pub superblock: bool,

    /// The groups: places of bitmaps and tables, and free counts
    #[arg(long)]
    pub groups: bool,

    /// The fields of an inode
    #[arg(long, value_name = "INODE|PATH")]
    pub inode: Option<PathBuf>,

    /// The extent tree of an inode, node by node
    #[arg(long, value_name = "INODE|PATH")]
    pub extents: Option<PathBuf>,

    /// The journal: its place, and the transactions not checkpointed
    #[arg(long)]
    pub journal: bool,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Selected output.
#[derive(Serialize)]
struct Dump {
    image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    superblock: Option<superblock::Fields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<groups::Fields>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<inode::Fields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extents: Option<extents::Fields>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<journal::Fields>,
}

/// Shows.
pub(super) fn run(args: &DumpArgs) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let dump = Dump::of(&image, args).map_err(|error| error.at(image.path()))?;
    Ok(if args.json {
        print::json(&dump)
    } else {
        print::text(dump.describe())
    })
}

impl Dump {
    fn of(image: &Image, args: &DumpArgs) -> Result<Self> {
        let DumpArgs {
            groups, journal, ..
        } = *args;
        let has_more = groups || journal || args.inode.is_some() || args.extents.is_some();
        let filesystem = image.filesystem();
        let superblock = filesystem.superblock();
        Ok(Self {
            image: args.image.to_string_lossy().into_owned(),
            superblock: (args.superblock || !has_more).then(|| superblock::Fields::of(&superblock)),
            groups: groups.then(|| groups::all(filesystem)).transpose()?,
            inode: match &args.inode {
                Some(which) => Some(inode::Fields::of(&node(image, which)?, superblock.layout())),
                None => None,
            },
            extents: match &args.extents {
                Some(which) => Some(extents::Fields::of(
                    &node(image, which)?,
                    filesystem.block_bytes(),
                )?),
                None => None,
            },
            journal: if journal {
                Some(journal::Fields::of(filesystem)?)
            } else {
                None
            },
        })
    }

    fn describe(&self) -> String {
        let mut out = Vec::new();
        out.extend(self.superblock.as_ref().map(superblock::Fields::describe));
        out.extend(self.groups.as_ref().map(|groups| groups::describe(groups)));
        out.extend(self.inode.as_ref().map(inode::Fields::describe));
        out.extend(self.extents.as_ref().map(extents::Fields::describe));
        out.extend(self.journal.as_ref().map(journal::Fields::describe));
        out.join("\n\n")
    }
}

fn node(image: &Image, which: &Path) -> Result<Node> {
    let number = which.to_str().and_then(|text| text.parse::<u32>().ok());
    match number {
        None => image.resolve(which, FollowLast::No),
        Some(number) => {
            let inode = InodeNumber::new(number).ok_or_else(|| {
                Error::new(ErrorKind::InvalidArgument).detail("inodes are counted from 1")
            })?;
            image.filesystem().node(inode)
        }
    }
}

/// A name and a value on a line, in the columns of all dumps.
pub(super) fn line(name: &str, value: impl std::fmt::Display) -> String {
    format!("{name:<24} {value}")
}
