//! `extant fs ls`.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{Attributes, FileType, FollowLast, Node};
use extant_space::Result;
use serde::Serialize;

use super::entry::{FileEntry, mode_letters};
use super::time;
use crate::exit::Failures;
use crate::fs_image::names::{self, Names};
use crate::fs_image::walk::{Enter, OnError, Stage, names_of, walk};
use crate::fs_image::{At, Image};
use crate::print;

/// List names in an image.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs ls disk.img
  extant fs ls -la disk.img /etc
  extant fs ls -R --json disk.img /home

Owners are numbers: who they are is written in the image, not on this machine.")]
pub struct LsArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files or directories in it
    #[arg(default_value = "/")]
    pub paths: Vec<PathBuf>,

    /// Mode, links, owner, size and time as well
    #[arg(long, short)]
    pub long: bool,

    /// Names that begin with a dot as well
    #[arg(long, short)]
    pub all: bool,

    /// List directories recursively
    #[arg(long, short = 'R')]
    pub recursive: bool,

    /// List directories themselves, not their content
    #[arg(long, short)]
    pub directory: bool,

    /// Inode numbers as well
    #[arg(long, short)]
    pub inode: bool,

    /// Print one JSON document, with all attributes of every file
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Document {
    image: String,
    entries: Vec<FileEntry>,
}

/// A line to be.
struct Listed {
    name: Vec<u8>,
    path: Vec<u8>,
    /// `None` if it cannot be read.
    node: Option<Node>,
}

/// Lists.
pub(super) fn run(args: &LsArgs) -> Result<ExitCode> {
    let image = Image::look(&args.image)?;
    let failures = Failures::default();
    let on_error = OnError::Report(&failures);
    let mut lister = Lister {
        image: &image,
        args,
        on_error,
        names: Names::for_stdout(),
        out: BufWriter::new(io::stdout().lock()),
        entries: Vec::new(),
        blocks: 0,
    };
    let mut directories = Vec::new();
    let mut files = Vec::new();
    for path in &args.paths {
        let Some(node) = on_error.value(image.resolve(path, FollowLast::No))? else {
            continue;
        };
        let path = path.as_os_str().as_encoded_bytes().to_vec();
        if node.file_type() == FileType::Directory && !args.directory {
            directories.push((path, node));
        } else {
            files.push(Listed {
                name: path.clone(),
                path,
                node: Some(node),
            });
        }
    }
    let has_headings = args.recursive || args.paths.len() > 1;
    if !files.is_empty() {
        lister.block(None, files)?;
    }
    for (path, node) in directories {
        if args.recursive {
            walk(&image, &node, &path, on_error, &mut |step| {
                let is_hidden = step.depth > 0 && step.name.starts_with(b".") && !args.all;
                let is_listed = step.node.file_type() == FileType::Directory && !is_hidden;
                if is_listed && step.stage == Stage::Before {
                    lister.directory(Some(step.path), step.path, step.node)?;
                }
                Ok(if is_listed { Enter::Yes } else { Enter::No })
            })?;
        } else {
            lister.directory(has_headings.then_some(&path[..]), &path, &node)?;
        }
    }
    if args.json && lister.entries.is_empty() && failures.count() > 0 {
        return Ok(failures.status_or(ExitCode::SUCCESS));
    }
    lister.finish().map(|printed| failures.status_or(printed))
}

struct Lister<'a> {
    image: &'a Image,
    args: &'a LsArgs,
    on_error: OnError<'a>,
    names: Names,
    out: BufWriter<io::StdoutLock<'static>>,
    /// For JSON.
    entries: Vec<FileEntry>,
    /// Blocks of lines written so far, with an empty line between them.
    blocks: usize,
}

impl Lister<'_> {
    fn directory(&mut self, heading: Option<&[u8]>, path: &[u8], node: &Node) -> Result<()> {
        let mut names = names_of(self.image, node, path, self.on_error)?;
        if self.args.all {
            names.splice(0..0, [b".".to_vec(), b"..".to_vec()]);
        } else {
            names.retain(|name| !name.starts_with(b"."));
        }
        let listed = names.into_iter().map(|name| {
            let path = names::join(path, &name);
            let found = node.lookup(&name).at_inner(self.image, &path);
            let node = self.on_error.value(found)?;
            Ok(Listed { name, path, node })
        });
        let listed: Vec<Listed> = listed.collect::<Result<_>>()?;
        self.block(heading, listed)
    }

    fn block(&mut self, heading: Option<&[u8]>, listed: Vec<Listed>) -> Result<()> {
        if self.args.json {
            for Listed { path, node, .. } in &listed {
                let Some(node) = node else { continue };
                let entry = FileEntry::of(path, node).at_inner(self.image, path);
                self.entries.extend(self.on_error.value(entry)?);
            }
            return Ok(());
        }
        self.write_block(heading, &listed)
            .map_err(print::output_error)?;
        Ok(())
    }

    fn write_block(&mut self, heading: Option<&[u8]>, listed: &[Listed]) -> io::Result<()> {
        if self.blocks > 0 && heading.is_some() {
            writeln!(self.out)?;
        }
        self.blocks += 1;
        if let Some(heading) = heading {
            self.names.write(&mut self.out, heading)?;
            writeln!(self.out, ":")?;
        }
        let found: Vec<Option<Attributes>> = listed
            .iter()
            .map(|listed| listed.node.as_ref().map(Node::attributes))
            .collect();
        let width = |text: &dyn Fn(&Attributes) -> String| {
            found
                .iter()
                .flatten()
                .map(|found| text(found).len())
                .max()
                .unwrap_or(0)
        };
        let inode_width = width(&|found| found.inode.to_string());
        let links_width = width(&|found| found.links.to_string());
        let uid_width = width(&|found| found.uid.to_string());
        let gid_width = width(&|found| found.gid.to_string());
        let size_width = width(&size);
        let time_width = width(&|found| time::short(found.modified));
        for (listed, found) in listed.iter().zip(&found) {
            // As ls(1) shows what it cannot read.
            let or_unknown = |text: &dyn Fn(&Attributes) -> String| {
                found.as_ref().map_or_else(|| "?".to_owned(), text)
            };
            if self.args.inode {
                let inode = or_unknown(&|found| found.inode.to_string());
                write!(self.out, "{inode:>inode_width$} ")?;
            }
            if self.args.long {
                let mode = match found {
                    Some(found) => mode_letters(found.file_type, found.permissions),
                    None => "??????????".to_owned(),
                };
                write!(
                    self.out,
                    "{mode} {:>links_width$} {:>uid_width$} {:>gid_width$} {:>size_width$} \
                     {:>time_width$} ",
                    or_unknown(&|found| found.links.to_string()),
                    or_unknown(&|found| found.uid.to_string()),
                    or_unknown(&|found| found.gid.to_string()),
                    or_unknown(&size),
                    or_unknown(&|found| time::short(found.modified)),
                )?;
            }
            self.names.write(&mut self.out, &listed.name)?;
            let link = listed
                .node
                .as_ref()
                .filter(|node| self.args.long && node.file_type() == FileType::SymbolicLink);
            if let Some(link) = link {
                write!(self.out, " -> ")?;
                match link.read_link() {
                    Ok(target) => self.names.write(&mut self.out, &target)?,
                    Err(error) => write!(self.out, "({error})")?,
                }
            }
            writeln!(self.out)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<ExitCode> {
        if self.args.json {
            let document = Document {
                image: self.args.image.to_string_lossy().into_owned(),
                entries: self.entries,
            };
            return Ok(print::json(&document));
        }
        self.out.flush().map_err(print::output_error)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Bytes, or of a device its number.
fn size(found: &Attributes) -> String {
    match found.device {
        Some(device) => format!("{}, {}", device.major, device.minor),
        None => found.size_bytes.to_string(),
    }
}
