//! `extant fs put`: copies files and trees of the host into an image.
//!
//! Model: a file is made without a name, filled, and gets its name when it is complete; a file of
//! that name is replaced in the same step. After a crash or a cancel the old file or the new one
//! exists, and the next opening of the image frees unnamed files. Directories are merged with
//! existing ones.
//!
//! Kept: data with its holes, permissions, atime and mtime, extended attributes, symbolic links,
//! special files, and hard links within one put. Not kept: owners, unless requested; and if the
//! owner changes, set-ID bits and file capabilities.

mod host;

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{
    AttributeChange, DeviceNumber, FileType, NewKind, NewNode, Node, RenameMode, Timestamp,
    XattrMode,
};
use extant_space::{CancelToken, Control, Error, ErrorKind, Result, SpaceFile};

use super::copy::{Meter, PIECE, Tally};
use super::links::LinkDestination;
use super::owner::CopyOwner;
use crate::arguments::{OutputArgs, parse_mode};
use crate::fs_image::{AssignMode, At, Image, SpaceBelow, changing, names};
use crate::print;

/// Copy files of this machine into an image.
///
/// Holes stay holes; permissions, times, extended attributes and links are kept. Files are owned by
/// root, so that an image is the same for every user, or by you in an image whose root directory is
/// yours; --owner changes that. A file that changes its owner loses set-ID bits and capabilities,
/// as with chown.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs put disk.img vmlinuz /boot
  extant fs put -r disk.img rootfs/. /                 the tree in rootfs becomes the root
  extant fs put -r --owner host disk.img /etc /backup
  echo node7 | extant fs put disk.img - /etc/hostname

A file that is there is replaced, in one step, when the new one is complete; directories are merged.
Exit status: see extant --help.")]
pub struct PutArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files of this machine (- for stdin), and last their path in the image, or a directory there
    #[arg(required = true, num_args = 2.., value_names = ["FILE", "PATH"])]
    pub paths: Vec<PathBuf>,

    /// Copy directories recursively; symbolic links stay links
    #[arg(long, short)]
    pub recursive: bool,

    /// Owner of the files: UID:GID, or host for those that they have here [default: 0:0, or you
    /// where the image's root directory is yours]
    #[arg(long, value_name = "OWNER")]
    pub owner: Option<CopyOwner>,

    /// Permissions of files, instead of those that they have here (stdin: 0644)
    #[arg(long, value_name = "OCTAL", value_parser = parse_mode)]
    pub mode: Option<u32>,

    /// Refuse to replace existing files
    #[arg(long, short)]
    pub no_clobber: bool,

    /// Give new space its place on the device below at once
    #[arg(long, value_name = "WHEN", default_value = "try")]
    pub assign: AssignMode,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Copies.
pub(super) fn run(args: &PutArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let (to, sources) = args.paths.split_last().expect("clap wants two");
    let tally = args.output.progress.show(|display| {
        let total = if display.is_silent() {
            0
        } else {
            host::data_bytes(sources)
        };
        let below = SpaceBelow {
            assign: args.assign,
            ..SpaceBelow::default()
        };
        changing(&args.image, below, |image| {
            let mut put = Put {
                image,
                args,
                itself: fs::metadata(&args.image).ok(),
                meter: Meter::new(Control::new(cancel, display), total),
                linked: HashMap::new(),
                tally: Tally::default(),
                buffer: vec![0; PIECE],
            };
            put.all(sources, to)?;
            put.tally.elapsed_seconds = put.meter.elapsed_seconds();
            Ok(put.tally)
        })
    })?;
    Ok(if args.output.json {
        print::json(&tally)
    } else {
        print::text(tally.describe(&print::path(&args.image)))
    })
}

struct Put<'a> {
    image: &'a Image,
    args: &'a PutArgs,
    /// The image as a file of the host, which cannot be copied into itself.
    itself: Option<Metadata>,
    meter: Meter<'a>,
    /// Files with several names, by device and inode on the host.
    linked: HashMap<(u64, u64), Node>,
    tally: Tally,
    buffer: Vec<u8>,
}

/// Destination of a file.
struct Destination<'a> {
    directory: &'a Node,
    name: &'a [u8],
    /// For errors and notes.
    path: &'a [u8],
}

impl Put<'_> {
    fn all(&mut self, sources: &[PathBuf], to: &Path) -> Result<()> {
        let target = LinkDestination::of(self.image, to, sources.len())?;
        for source in sources {
            self.meter.check()?;
            if source.as_os_str() == "-" {
                self.put_stdin(&target, to)?;
                continue;
            }
            let metadata = if self.args.recursive {
                fs::symlink_metadata(source)
            } else {
                fs::metadata(source)
            };
            let metadata = metadata.map_err(|error| Error::from(error).at(source))?;
            // `tree/.` means the content of the tree.
            let is_contents = matches!(
                names::last(source.as_os_str().as_bytes()),
                b"" | b"." | b".."
            );
            match &target {
                LinkDestination::Into(directory, path) if is_contents && metadata.is_dir() => {
                    self.fill_directory(source, &metadata, directory, path.as_os_str().as_bytes())?;
                }
                target => {
                    let (directory, name, path) = target.name_for(self.image, source)?;
                    let place = Destination {
                        directory: &directory,
                        name: &name,
                        path: &path,
                    };
                    self.put(source, &metadata, &place)?;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, source: &Path, metadata: &Metadata, place: &Destination<'_>) -> Result<()> {
        self.meter.check()?;
        if self.args.output.verbose {
            let (from, to) = (print::path(source), names::escaped(place.path));
            print::note(format_args!("{from} -> {to}"));
        }
        if metadata.is_dir() {
            return self.put_directory(source, metadata, place);
        }
        if self
            .itself
            .as_ref()
            .is_some_and(|image| is_same(image, metadata))
        {
            self.tally.note(format!(
                "{}: left out, it is the image",
                print::path(source)
            ));
            return Ok(());
        }
        let key = (metadata.dev(), metadata.ino());
        if let Some(first) = self.linked.get(&key).filter(|_| metadata.nlink() > 1) {
            let first = first.clone();
            self.name(&first, place).at_inner(self.image, place.path)?;
            self.tally.hard_links += 1;
            return Ok(());
        }
        let node = if metadata.is_file() {
            self.put_file(source, metadata, place)?
        } else {
            self.put_special(source, metadata, place)?
        };
        if metadata.nlink() > 1 {
            self.linked.insert(key, node);
        }
        Ok(())
    }

    fn put_directory(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        place: &Destination<'_>,
    ) -> Result<()> {
        if !self.args.recursive {
            return Err(Error::new(ErrorKind::IsDirectory)
                .at(source)
                .advice("-r copies it with everything in it"));
        }
        let directory = match place.directory.lookup(place.name) {
            Ok(node) if node.file_type() == FileType::Directory => node,
            Ok(_) => {
                return Err(Error::new(ErrorKind::NotDirectory).at(self.image.place(place.path)));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = place
                    .directory
                    .create(place.name, &unfinished(NewKind::Directory));
                made.at_inner(self.image, place.path)?
            }
            Err(error) => return Err(error.at(self.image.place(place.path))),
        };
        self.fill_directory(source, metadata, &directory, place.path)
    }

    /// Copies the contents of `source` into `directory`, which then gets the attributes of
    /// `source`.
    fn fill_directory(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        directory: &Node,
        path: &[u8],
    ) -> Result<()> {
        if !self.args.recursive {
            return Err(Error::new(ErrorKind::IsDirectory)
                .at(source)
                .advice("-r copies it with everything in it"));
        }
        for entry in host::entries(source)? {
            let below = source.join(&entry);
            let metadata =
                fs::symlink_metadata(&below).map_err(|error| Error::from(error).at(&below))?;
            let path = names::join(path, entry.as_bytes());
            let place = Destination {
                directory,
                name: entry.as_bytes(),
                path: &path,
            };
            self.put(&below, &metadata, &place)?;
        }
        self.tally.directories += 1;
        self.describe(source, metadata, directory, path)
    }

    fn put_file(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        place: &Destination<'_>,
    ) -> Result<Node> {
        let mut options = File::options();
        options.read(true).custom_flags(if self.args.recursive {
            libc::O_NOFOLLOW
        } else {
            // A link that was named is followed.
            0
        });
        let from = options
            .open(source)
            .map_err(|error| Error::from(error).during("open").at(source))?;
        let node = self.unnamed(place)?;
        let file = node.file().at_inner(self.image, place.path)?;
        for piece in host::DataPieces::new(&from, metadata.len(), PIECE as u64) {
            let piece = piece.map_err(|error| Error::from(error).during("read").at(source))?;
            self.meter.check()?;
            let buffer = &mut self.buffer[..piece.len() as usize];
            let read = host::read_at(&from, buffer, piece.start())
                .map_err(|error| Error::from(error).during("read").at(source))?;
            let written = file.write_at(&buffer[..read], piece.start());
            written.at_inner(self.image, place.path)?;
            self.tally.data_bytes += read as u64;
            self.meter.add(read as u64);
        }
        if file.size().at_inner(self.image, place.path)? < metadata.len() {
            file.resize(metadata.len())
                .at_inner(self.image, place.path)?;
        }
        self.describe(source, metadata, &node, place.path)?;
        self.name(&node, place).at_inner(self.image, place.path)?;
        self.tally.files += 1;
        Ok(node)
    }

    fn put_stdin(&mut self, target: &LinkDestination<'_>, to: &Path) -> Result<()> {
        let LinkDestination::Name(path) = target else {
            return Err(Error::new(ErrorKind::IsDirectory)
                .at(self.image.place(to.as_os_str().as_bytes()))
                .detail("a file from stdin needs a name"));
        };
        let (directory, name) = self.image.resolve_parent(path)?;
        let place = Destination {
            directory: &directory,
            name,
            path: path.as_os_str().as_bytes(),
        };
        let node = self.unnamed(&place)?;
        let file = node.file().at_inner(self.image, place.path)?;
        let mut input = std::io::stdin().lock();
        let mut at = 0;
        loop {
            self.meter.check()?;
            let mut filled = 0;
            while filled < self.buffer.len() {
                match input.read(&mut self.buffer[filled..]) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                        self.meter.check()?;
                    }
                    Err(error) => return Err(Error::from(error).during("read stdin")),
                }
            }
            if filled == 0 {
                break;
            }
            file.write_at(&self.buffer[..filled], at)
                .at_inner(self.image, place.path)?;
            at += filled as u64;
            self.tally.data_bytes = at;
            self.meter.add(filled as u64);
        }
        let (uid, gid) = match self.args.owner {
            Some(CopyOwner::Fixed { uid, gid }) => (uid, gid),
            _ => self.image.owner_of_new()?,
        };
        node.set_attributes(&AttributeChange {
            permissions: Some(self.args.mode.unwrap_or(0o644) as u16),
            uid: Some(uid),
            gid: Some(gid),
            ..AttributeChange::default()
        })
        .and_then(|()| self.name(&node, &place))
        .at_inner(self.image, place.path)?;
        self.tally.files += 1;
        Ok(())
    }

    fn put_special(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        place: &Destination<'_>,
    ) -> Result<Node> {
        let kind = metadata.file_type();
        let target;
        let device = DeviceNumber {
            major: libc::major(metadata.rdev()),
            minor: libc::minor(metadata.rdev()),
        };
        let new = if kind.is_symlink() {
            target = fs::read_link(source).map_err(|error| Error::from(error).at(source))?;
            NewKind::SymbolicLink(target.as_os_str().as_bytes())
        } else if kind.is_fifo() {
            NewKind::Fifo
        } else if kind.is_socket() {
            NewKind::Socket
        } else if kind.is_char_device() {
            NewKind::CharacterDevice(device)
        } else {
            NewKind::BlockDevice(device)
        };
        let new = unfinished(new);
        let made = if self.is_taken(place) {
            let name = temporary_name(place);
            let made = place.directory.create(&name, &new);
            made.and_then(|node| self.replace(&name, place).map(|()| node))
        } else {
            place.directory.create(place.name, &new)
        };
        let node = made.at_inner(self.image, place.path)?;
        self.describe(source, metadata, &node, place.path)?;
        if kind.is_symlink() {
            self.tally.symlinks += 1
        } else {
            self.tally.special += 1
        }
        Ok(node)
    }

    /// A file without a name yet.
    fn unnamed(&self, place: &Destination<'_>) -> Result<Node> {
        // Before any work.
        if self.args.no_clobber && self.is_taken(place) {
            return Err(Error::new(ErrorKind::AlreadyExists).at(self.image.place(place.path)));
        }
        let made = place
            .directory
            .create_unnamed(&unfinished(NewKind::Regular));
        made.at_inner(self.image, place.path)
    }

    fn is_taken(&self, place: &Destination<'_>) -> bool {
        place.directory.lookup(place.name).is_ok()
    }

    /// Gives a file its name, replacing an existing file of that name.
    fn name(&self, node: &Node, place: &Destination<'_>) -> Result<()> {
        match place.directory.link(place.name, node) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !self.args.no_clobber => {}
            done => return done,
        }
        let name = temporary_name(place);
        place.directory.link(&name, node)?;
        self.replace(&name, place)
    }

    /// Moves the file `name` to its destination; it loses `name` on failure too.
    fn replace(&self, name: &[u8], place: &Destination<'_>) -> Result<()> {
        let mode = if self.args.no_clobber {
            RenameMode::NoReplace
        } else {
            RenameMode::Replace
        };
        let done = place
            .directory
            .rename(name, place.directory, place.name, mode);
        // Two names of one file: a rename does nothing then.
        match place.directory.unlink(name) {
            Err(error) if error.kind() != ErrorKind::NotFound => done.and(Err(error)),
            _ => done,
        }
    }

    /// Owner, attributes, permissions, times.
    fn describe(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        node: &Node,
        path: &[u8],
    ) -> Result<()> {
        let (uid, gid) = match self.args.owner {
            None => self.image.owner_of_new()?,
            Some(CopyOwner::Source) => (metadata.uid(), metadata.gid()),
            Some(CopyOwner::Fixed { uid, gid }) => (uid, gid),
        };
        // As chown(2): privileges granted by one owner do not pass to the next.
        let is_given_away = uid != metadata.uid() || gid != metadata.gid();
        let mut left_out = Vec::new();
        for (name, value) in host::xattrs(source).map_err(|error| Error::from(error).at(source))? {
            if is_given_away && name == b"security.capability" {
                left_out.push("file capabilities");
                continue;
            }
            match node.set_xattr(&name, &value, XattrMode::Set) {
                Err(error) if error.kind() == ErrorKind::Unsupported => self.tally.note(format!(
                    "{}: attribute {} left out",
                    print::path(source),
                    names::escaped(&name)
                )),
                done => done.at_inner(self.image, path)?,
            }
        }
        let mut own = (metadata.mode() & 0o7777) as u16;
        let takes_own = match node.file_type() {
            FileType::Regular => self.args.mode.is_none(),
            FileType::SymbolicLink | FileType::Directory => false,
            _ => true,
        };
        let executed_by_group = own & 0o010 != 0;
        let given = 0o4000 | if executed_by_group { 0o2000 } else { 0 };
        if is_given_away && takes_own && own & given != 0 {
            own &= !given;
            left_out.push("set-ID bits");
        }
        if !left_out.is_empty() {
            self.tally.note(format!(
                "{}: {} left out, as the owner changes (--owner host keeps both)",
                print::path(source),
                left_out.join(" and ")
            ));
        }
        let permissions = match (node.file_type(), self.args.mode) {
            (FileType::SymbolicLink, _) => 0o777,
            (FileType::Regular, Some(mode)) => mode as u16,
            _ => own,
        };
        node.set_attributes(&AttributeChange {
            permissions: Some(permissions),
            uid: Some(uid),
            gid: Some(gid),
            accessed: Some(time(metadata.atime(), metadata.atime_nsec())),
            modified: Some(time(metadata.mtime(), metadata.mtime_nsec())),
            ..AttributeChange::default()
        })
        .at_inner(self.image, path)
    }
}

/// A new node, inaccessible to others until it has its final attributes.
fn unfinished(kind: NewKind<'_>) -> NewNode<'_> {
    NewNode {
        kind,
        permissions: match kind {
            NewKind::SymbolicLink(_) => 0o777,
            _ => 0o700,
        },
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

fn time(seconds: i64, nanoseconds: i64) -> Timestamp {
    Timestamp {
        seconds,
        nanoseconds: nanoseconds as u32,
    }
}

/// A name that is free in the directory, for a moment.
fn temporary_name(place: &Destination<'_>) -> Vec<u8> {
    let mut number = 0;
    loop {
        let name = format!(".extant-partial-{number}").into_bytes();
        if place.directory.lookup(&name).is_err() {
            return name;
        }
        number += 1;
    }
}
