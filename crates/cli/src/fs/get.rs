//! `extant fs get`: copies files and trees of an image to the host.
//!
//! Model: every file is made under a temporary name and renamed when it is complete. Directories
//! are held open, and no symbolic link below the destination is followed, so an image cannot affect
//! other files.
//!
//! Kept: data with its holes, permissions, times, extended attributes that the user may set, links,
//! special files; owners if root copies. Otherwise the files are the user's and lose what was
//! granted by their owners: set-ID bits, capabilities, `security.*` and `trusted.*`.

mod host;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{Attributes, FileType, FollowLast, InodeNumber, Node};
use extant_space::{
    ByteRange, CancelToken, Control, Error, ErrorKind, ExtentState, Result, SpaceFile,
};

use self::host::{HostDirectory, Owners};
use super::copy::{Meter, PIECE, Tally};
use crate::arguments::OutputArgs;
use crate::exit::Failures;
use crate::fs_image::walk::{Enter, OnError, Stage, Step, walk};
use crate::fs_image::{At, Image, names};
use crate::print;
use crate::progress::Display;

/// Copy files of an image to this machine.
///
/// Holes stay holes; permissions, times, extended attributes and links are kept, and owners when
/// root copies. Nothing outside of the destination is changed, even by a hostile image.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs get disk.img /etc/fstab .
  extant fs get disk.img /boot/vmlinuz kernel
  extant fs get -r disk.img / rootfs

Exit status: see extant --help.")]
pub struct GetArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files in it, and last their path on this machine, or a directory there
    #[arg(required = true, num_args = 2.., value_names = ["PATH", "DEST"])]
    pub paths: Vec<PathBuf>,

    /// Copy directories recursively; symbolic links stay links
    #[arg(long, short)]
    pub recursive: bool,

    /// Files are the user's, also when root copies; without set-ID bits, capabilities and labels
    #[arg(long)]
    pub no_same_owner: bool,

    /// Refuse to replace existing files
    #[arg(long, short)]
    pub no_clobber: bool,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Copies.
pub(super) fn run(args: &GetArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let progress = &args.output.progress;
    let failures = Failures::default();
    let mut tally = Tally::default();
    let copied = progress.show(|display| get(args, display, cancel, &failures, &mut tally));
    if let (Err(error), None) = (&copied, failures.kind()) {
        return Err(error.clone());
    }
    let to = args.paths.last().expect("clap wants two");
    let printed = if args.output.json {
        print::json(&tally)
    } else {
        print::text(tally.describe(&print::path(to)))
    };
    copied.map(|()| printed)
}

fn get(
    args: &GetArgs,
    display: &Display,
    cancel: &CancelToken,
    failures: &Failures,
    tally: &mut Tally,
) -> Result<()> {
    let (to, sources) = args.paths.split_last().expect("clap wants two");
    let image = Image::look(&args.image)?;
    let follow = if args.recursive {
        FollowLast::No
    } else {
        FollowLast::Yes
    };
    let nodes: Vec<Node> = sources
        .iter()
        .map(|path| image.resolve(path, follow))
        .collect::<Result<_>>()?;
    let total = if display.is_silent() {
        0
    } else {
        data_bytes(&image, &nodes, sources, failures)?
    };
    let mut get = Get {
        image: &image,
        args,
        failures,
        owners: if args.no_same_owner || !rustix::process::geteuid().is_root() {
            Owners::Ours
        } else {
            Owners::Kept
        },
        meter: Meter::new(Control::new(cancel, display), total),
        linked: HashMap::new(),
        tally: Tally::default(),
        buffer: vec![0; PIECE],
        open: Vec::new(),
    };
    let copied = get.all(sources, &nodes, to);
    *tally = std::mem::take(&mut get.tally);
    tally.elapsed_seconds = get.meter.elapsed_seconds();
    copied?;
    match failures.kind() {
        None => Ok(()),
        Some(kind) => Err(Error::new(kind)
            .at(&args.image)
            .detail("some files could not be read; the others are copied")),
    }
}

fn data_bytes(
    image: &Image,
    nodes: &[Node],
    sources: &[PathBuf],
    failures: &Failures,
) -> Result<u64> {
    let mut sum = 0;
    for (node, path) in nodes.iter().zip(sources) {
        walk(
            image,
            node,
            path.as_os_str().as_encoded_bytes(),
            OnError::Report(failures),
            &mut |step| {
                if step.stage == Stage::Before && step.node.file_type() == FileType::Regular {
                    let found = step.node.attributes();
                    sum += found.size_bytes.min(found.allocated_bytes);
                }
                Ok(Enter::Yes)
            },
        )?;
    }
    Ok(sum)
}

struct Get<'a> {
    image: &'a Image,
    args: &'a GetArgs,
    failures: &'a Failures,
    owners: Owners,
    meter: Meter<'a>,
    /// The first name of a file with several.
    linked: HashMap<InodeNumber, PathBuf>,
    tally: Tally,
    buffer: Vec<u8>,
    /// Directories of the host on the way down.
    open: Vec<HostDirectory>,
}

impl Get<'_> {
    fn all(&mut self, sources: &[PathBuf], nodes: &[Node], to: &Path) -> Result<()> {
        let into = HostDirectory::open_if_there(to)?;
        let ends_in_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
        if into.is_none() && (sources.len() > 1 || ends_in_slash && !self.args.recursive) {
            return Err(Error::new(ErrorKind::NotDirectory).at(to));
        }
        for (path, node) in sources.iter().zip(nodes) {
            let bytes = path.as_os_str().as_encoded_bytes();
            let is_contents = matches!(names::last(bytes), b"" | b"." | b"..");
            let (top, name) = match &into {
                Some(directory) if is_contents => (directory.try_clone()?, None),
                Some(directory) => (directory.try_clone()?, Some(names::last(bytes).to_vec())),
                None => {
                    let (directory, name) = HostDirectory::above(to)?;
                    (directory, Some(name))
                }
            };
            self.open = vec![top];
            self.tree(node, bytes, name.as_deref())?;
        }
        Ok(())
    }

    /// Copies `path` of the image to `name` on the host; with `None` to the open directory itself.
    fn tree(&mut self, root: &Node, path: &[u8], name: Option<&[u8]>) -> Result<()> {
        if root.file_type() == FileType::Directory && !self.args.recursive {
            return Err(Error::new(ErrorKind::IsDirectory)
                .at(self.image.place(path))
                .advice("-r copies it with everything in it"));
        }
        let image = self.image;
        let on_error = OnError::Report(self.failures);
        walk(image, root, path, on_error, &mut |step| {
            self.meter.check()?;
            let name = match step.depth {
                0 => name,
                _ => Some(step.name),
            };
            let copied = match (step.node.file_type(), step.stage) {
                (FileType::Directory, Stage::Before) => self.enter(name),
                (FileType::Directory, Stage::After) => self.leave(step),
                _ => self.get(step, name.unwrap_or(b".")),
            };
            match copied {
                // One file of a tree; an error of the destination ends the copy.
                Err(error) if step.depth > 0 && image.is_inside(&error) => {
                    self.failures.note(error)?;
                }
                copied => copied?,
            }
            Ok(Enter::Yes)
        })
    }

    fn here(&self) -> &HostDirectory {
        self.open.last().expect("the destination is open")
    }

    fn enter(&mut self, name: Option<&[u8]>) -> Result<()> {
        let below = match name {
            None => self.here().try_clone()?,
            Some(name) => self.here().make_directory(name)?,
        };
        self.open.push(below);
        Ok(())
    }

    fn leave(&mut self, step: &Step<'_>) -> Result<()> {
        let done = self.open.pop().expect("what was entered");
        let left_out = done
            .describe(step.node, self.owners)
            .at_inner(self.image, step.path)?;
        self.note(left_out, step);
        self.tally.directories += 1;
        Ok(())
    }

    fn get(&mut self, step: &Step<'_>, name: &[u8]) -> Result<()> {
        let found = step.node.attributes();
        if self.args.output.verbose {
            let place = self.here().place(name);
            let (from, to) = (names::escaped(step.path), print::path(&place));
            print::note(format_args!("{from} -> {to}"));
        }
        let target = self.here().place(name);
        if found.links > 1
            && let Some(first) = self.linked.get(&found.inode)
        {
            self.here().hard_link(first, name, self.args.no_clobber)?;
            self.tally.hard_links += 1;
            return Ok(());
        }
        match found.file_type {
            FileType::Regular => self.get_file(step, name)?,
            _ => self.get_special(step, name, &found)?,
        }
        if found.links > 1 {
            self.linked.insert(found.inode, target);
        }
        Ok(())
    }

    fn get_file(&mut self, step: &Step<'_>, name: &[u8]) -> Result<()> {
        let file = step.node.file().at_inner(self.image, step.path)?;
        let size = file.size().at_inner(self.image, step.path)?;
        // Borrows only this field, so that the others can still be changed.
        let here = self.open.last().expect("the destination is open");
        let out = here.new_file()?;
        out.resize(size)?;
        let extents = file
            .extents(ByteRange::new(0, size))
            .at_inner(self.image, step.path)?;
        for extent in extents
            .iter()
            .filter(|extent| extent.state == ExtentState::Written)
        {
            for piece in extent.logical.chunks(PIECE as u64) {
                self.meter.check()?;
                let buffer = &mut self.buffer[..piece.len() as usize];
                let read = file
                    .read_at(buffer, piece.start())
                    .at_inner(self.image, step.path)?;
                out.write_at(&buffer[..read], piece.start())?;
                self.tally.data_bytes += read as u64;
                self.meter.add(read as u64);
            }
        }
        let left_out = out
            .describe(step.node, self.owners)
            .at_inner(self.image, step.path)?;
        out.name(name, self.args.no_clobber)?;
        self.note(left_out, step);
        self.tally.files += 1;
        Ok(())
    }

    fn get_special(&mut self, step: &Step<'_>, name: &[u8], found: &Attributes) -> Result<()> {
        let target = match found.file_type {
            FileType::SymbolicLink => Some(step.node.read_link().at_inner(self.image, step.path)?),
            _ => None,
        };
        let made = self.here().new_special(found, target.as_deref())?;
        let left_out = made
            .describe(step.node, self.owners)
            .at_inner(self.image, step.path)?;
        made.name(name, self.args.no_clobber)?;
        self.note(left_out, step);
        match target {
            Some(_) => self.tally.symlinks += 1,
            None => self.tally.special += 1,
        }
        Ok(())
    }

    fn note(&mut self, left_out: Vec<String>, step: &Step<'_>) {
        for name in left_out {
            let path = names::escaped(step.path);
            self.tally
                .note(format!("{path}: attribute {name} left out"));
        }
    }
}
