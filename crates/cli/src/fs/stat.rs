//! `extant fs stat`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{Attributes, FileType, FollowLast, Node};
use extant_space::{
    ByteRange, ByteSize, ErrorKind, Extent, ExtentState, MapSummary, Result, SpaceFile,
};
use serde::Serialize;

use super::entry::{FileEntry, flag_names, mode_letters, type_name};
use super::time;
use crate::fs_image::names::{escaped, hex_unless_text};
use crate::fs_image::{At, Image};
use crate::print;

/// Extents that are shown as text; --json has all.
const SHOWN: usize = 16;

/// Print the attributes of files in an image: size, blocks, owner, times, flags, attributes,
/// extents.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs stat disk.img /etc/passwd
  extant fs stat -L disk.img /etc/localtime
  extant fs stat --json disk.img /var/db | jq '.entries[0].map.extents'")]
pub struct StatArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files in it
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Follow a symbolic link
    #[arg(long, short = 'L')]
    pub dereference: bool,

    /// Print one JSON list
    #[arg(long)]
    pub json: bool,
}

/// The printed attributes of a file.
#[derive(Serialize)]
struct Document {
    image: String,
    entries: Vec<Stat>,
}

#[derive(Serialize)]
struct Stat {
    #[serde(flatten)]
    entry: FileEntry,
    xattrs: Vec<Xattr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<MapSummary>,
    extents: Vec<Extent>,
}

#[derive(Serialize)]
struct Xattr {
    name: String,
    value: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

/// Prints the information.
pub(super) fn run(args: &StatArgs) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let follow = if args.dereference {
        FollowLast::Yes
    } else {
        FollowLast::No
    };
    let mut all = Vec::new();
    let mut text = Vec::new();
    for path in &args.paths {
        let node = image.resolve(path, follow)?;
        let path = path.as_os_str().as_encoded_bytes();
        let stat = Stat::of(&image, path, &node).at_inner(&image, path)?;
        if !args.json {
            text.push(describe(path, &node.attributes(), &stat));
        }
        all.push(stat);
    }
    Ok(if args.json {
        print::json(&Document {
            image: args.image.to_string_lossy().into_owned(),
            entries: all,
        })
    } else {
        print::text(text.join("\n"))
    })
}

impl Stat {
    fn of(image: &Image, path: &[u8], node: &Node) -> Result<Self> {
        let mut xattrs = Vec::new();
        for name in node.xattr_names()? {
            let value = node.xattr(&name)?;
            xattrs.push(Xattr {
                name: String::from_utf8_lossy(&name).into_owned(),
                value: String::from_utf8_lossy(&value).into_owned(),
                value_hex: hex_unless_text(&value),
            });
        }
        let (map, extents) = match node.file_type() {
            FileType::Regular => {
                let file = node.file()?;
                let everything = ByteRange::new(0, i64::MAX as u64);
                match file.extents(everything) {
                    Ok(extents) => {
                        let mut summary = image.summary();
                        summary.extend(&extents);
                        (Some(summary), extents)
                    }
                    // Encrypted, or in the inode.
                    Err(error) if error.kind() == ErrorKind::Unsupported => (None, Vec::new()),
                    Err(error) => return Err(error),
                }
            }
            _ => (None, Vec::new()),
        };
        Ok(Self {
            entry: FileEntry::of(path, node)?,
            xattrs,
            map,
            extents,
        })
    }
}

fn describe(path: &[u8], found: &Attributes, stat: &Stat) -> String {
    let mut out = escaped(path);
    if let Some(target) = &stat.entry.target {
        out.push_str(&format!(" -> {}", escaped(target.as_bytes())));
    }
    let mut row = |name, value: String| print::row(&mut out, name, value);
    let kind = match found.device {
        Some(device) => format!(
            "{} {}:{}",
            type_name(found.file_type),
            device.major,
            device.minor
        ),
        None => type_name(found.file_type).to_owned(),
    };
    row(
        "type",
        format!("{kind}, inode {}, links {}", found.inode, found.links),
    );
    row(
        "size",
        format!(
            "{} bytes, {} allocated",
            found.size_bytes,
            ByteSize(found.allocated_bytes)
        ),
    );
    row(
        "mode",
        format!(
            "{:04o} {}, owner {}:{}",
            found.permissions,
            mode_letters(found.file_type, found.permissions),
            found.uid,
            found.gid
        ),
    );
    row("accessed", time::full(found.accessed));
    row("modified", time::full(found.modified));
    row("changed", time::full(found.changed));
    if let Some(created) = found.created {
        row("created", time::full(created));
    }
    let flags = flag_names(found);
    if !flags.is_empty() {
        row("flags", flags.join(", "));
    }
    for xattr in &stat.xattrs {
        let value = match &xattr.value_hex {
            Some(hex) => format!("0x{hex}"),
            None => format!("\"{}\"", escaped(xattr.value.as_bytes())),
        };
        row(
            "attribute",
            format!("{}={value}", escaped(xattr.name.as_bytes())),
        );
    }
    if let Some(map) = &stat.map {
        row(
            "extents",
            format!(
                "{} in {} {}",
                map.extents(),
                map.fragments(),
                if map.fragments() == 1 {
                    "piece"
                } else {
                    "pieces"
                }
            ),
        );
        let placed = stat
            .extents
            .iter()
            .filter(|extent| extent.state != ExtentState::Hole);
        for extent in placed.clone().take(SHOWN) {
            let (logical, physical) = (extent.logical, extent.physical.unwrap_or_default());
            row(
                "",
                format!(
                    "{} to {} at {physical}, {}",
                    logical.start(),
                    logical.end(),
                    extent.state
                ),
            );
        }
        let left = placed.count().saturating_sub(SHOWN);
        if left > 0 {
            row("", format!("and {left} more (extant map -v --in)"));
        }
    }
    out
}
