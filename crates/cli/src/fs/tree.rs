//! `extant fs tree`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{FileType, FollowLast};
use extant_space::Result;
use serde::Serialize;

use super::entry::FileEntry;
use crate::exit::Failures;
use crate::fs_image::names::Names;
use crate::fs_image::walk::{Enter, OnError, Stage, walk};
use crate::fs_image::{At, Image};
use crate::print;

/// Show a tree of an image as a picture of lines.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs tree disk.img
  extant fs tree -L 2 disk.img /usr
  extant fs tree --json disk.img | jq '.entries[].path'")]
pub struct TreeArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// The directory to begin at
    #[arg(default_value = "/")]
    pub path: PathBuf,

    /// Descend at most this many directories
    #[arg(long, short = 'L', value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,

    /// Print one JSON document, with all attributes of every file
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Document {
    image: String,
    entries: Vec<FileEntry>,
    directories: u64,
    files: u64,
}

/// Draws.
pub(super) fn run(args: &TreeArgs) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let root = image.resolve(&args.path, FollowLast::No)?;
    let path = args.path.as_os_str().as_encoded_bytes();
    let names = Names::for_stdout();
    let mut out = BufWriter::new(io::stdout().lock());
    let mut document = Document {
        image: args.image.to_string_lossy().into_owned(),
        entries: Vec::new(),
        directories: 0,
        files: 0,
    };
    // For every directory on the path down, whether a vertical line continues below it.
    let mut goes_on: Vec<bool> = Vec::new();
    let mut bar = String::new();
    let failures = Failures::default();
    let on_error = OnError::Report(&failures);
    walk(&image, &root, path, on_error, &mut |step| {
        if step.stage == Stage::After {
            return Ok(Enter::No);
        }
        let is_directory = step.node.file_type() == FileType::Directory;
        if is_directory {
            document.directories += 1
        } else {
            document.files += 1
        }
        if args.json {
            let entry = FileEntry::of(step.path, step.node).at_inner(&image, step.path);
            document.entries.extend(on_error.value(entry)?);
        } else {
            goes_on.truncate(step.depth.saturating_sub(1));
            bar.clear();
            for &line in &goes_on {
                bar.push_str(if line { "│   " } else { "    " });
            }
            if step.depth > 0 {
                bar.push_str(if step.is_last {
                    "└── "
                } else {
                    "├── "
                });
                goes_on.push(!step.is_last);
            }
            let name = if step.depth == 0 {
                step.path
            } else {
                step.name
            };
            let mut line = || -> io::Result<()> {
                out.write_all(bar.as_bytes())?;
                names.write(&mut out, name)?;
                if let Ok(target) = step.node.read_link() {
                    out.write_all(b" -> ")?;
                    names.write(&mut out, &target)?;
                }
                writeln!(out)
            };
            line().map_err(print::output_error)?;
        }
        let is_deep = args
            .depth
            .is_some_and(|depth| step.depth as u64 >= depth.into());
        Ok(if is_deep { Enter::No } else { Enter::Yes })
    })?;
    // The root of a tree is not counted, as in tree(1).
    document.directories -= u64::from(root.file_type() == FileType::Directory);
    if args.json {
        return Ok(failures.status_or(print::json(&document)));
    }
    let counted = |count: u64, one: &str, many: &str| match count {
        1 => format!("1 {one}"),
        count => format!("{count} {many}"),
    };
    writeln!(
        out,
        "\n{}, {}",
        counted(document.directories, "directory", "directories"),
        counted(document.files, "file", "files")
    )
    .and_then(|()| out.flush())
    .map_err(print::output_error)?;
    Ok(failures.status_or(ExitCode::SUCCESS))
}
