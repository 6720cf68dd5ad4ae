//! Names: `extant fs mkdir`, `extant fs mv`, `extant fs ln`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{AttributeChange, FileType, FollowLast, NewKind, NewNode, Node, RenameMode};
use extant_space::{Error, ErrorKind, Result};

use crate::arguments::parse_mode;
use crate::fs_image::{At, Image, SpaceBelow, changing, names};

/// Make directories in an image.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs mkdir disk.img /srv
  extant fs mkdir -p disk.img /var/lib/app/data
  extant fs mkdir -m 0700 disk.img /root")]
pub struct MkdirArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Directories in it
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Make parent directories as well; an existing directory is no error
    #[arg(long, short)]
    pub parents: bool,

    /// Permissions
    #[arg(long, short, value_name = "OCTAL", value_parser = parse_mode, default_value = "0755")]
    pub mode: u32,
}

/// Give files in an image other names.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs mv disk.img /etc/motd /etc/motd.old
  extant fs mv disk.img /a /b /directory
  extant fs mv -n disk.img /new /old
  extant fs mv --exchange disk.img /current /next")]
pub struct MvArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// Files, and last their new name, or the directory that they are moved to
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DEST"])]
    pub paths: Vec<PathBuf>,

    /// Refuse to replace existing files
    #[arg(long, short, conflicts_with = "exchange")]
    pub no_clobber: bool,

    /// DEST is the new name, also where it is a directory
    #[arg(long, short = 'T')]
    pub no_target_directory: bool,

    /// Give each the other's name, in one step
    #[arg(long)]
    pub exchange: bool,
}

/// Give a file in an image one more name, or make a symbolic link.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs ln disk.img /bin/busybox /bin/sh
  extant fs ln -s disk.img ../usr/share/zoneinfo/UTC /etc/localtime
  extant fs ln -sf disk.img python3.13 /usr/bin/python3")]
pub struct LnArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// The file, or the target of a symbolic link
    pub target: PathBuf,

    /// The new name, or the directory for it
    pub name: PathBuf,

    /// A symbolic link
    #[arg(long, short)]
    pub symbolic: bool,

    /// Replace an existing file, unless it is a directory
    #[arg(long, short)]
    pub force: bool,
}

/// Makes directories.
pub(super) fn mkdir(args: &MkdirArgs) -> Result<ExitCode> {
    changing(&args.image, SpaceBelow::default(), |image| {
        for path in &args.paths {
            if args.parents {
                make_all(image, path, args.mode as u16)?;
            } else {
                let (parent, name) = image.resolve_parent(path)?;
                let owner = image.owner_of_new()?;
                let made = make_directory(&parent, name, args.mode as u16, owner);
                made.at_inner(image, path.as_os_str().as_encoded_bytes())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn make_directory(
    parent: &Node,
    name: &[u8],
    permissions: u16,
    (uid, gid): (u32, u32),
) -> Result<Node> {
    let new = NewNode {
        kind: NewKind::Directory,
        permissions,
        uid,
        gid,
        umask: 0,
    };
    parent.create(name, &new)
}

/// A directory and those above it; the last one has `permissions`.
fn make_all(image: &Image, path: &Path, permissions: u16) -> Result<()> {
    let bytes = path.as_os_str().as_encoded_bytes();
    let parts: Vec<&[u8]> = bytes
        .split(|&byte| byte == b'/')
        .filter(|part| !matches!(*part, b"" | b"."))
        .collect();
    let owner = image.owner_of_new()?;
    let mut so_far = b"/".to_vec();
    for (at, part) in parts.iter().enumerate() {
        so_far = names::join(&so_far, part);
        let place = crate::fs_image::path_of(so_far.clone());
        match image.resolve(&place, FollowLast::Yes) {
            Ok(node) if node.file_type() == FileType::Directory => continue,
            Ok(_) => return Err(Error::new(ErrorKind::NotDirectory).at(image.place(&so_far))),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Err(_) => {}
        }
        let (parent, name) = image.resolve_parent(&place)?;
        let is_last = at + 1 == parts.len();
        let permissions = if is_last { permissions } else { 0o755 };
        let made = make_directory(&parent, name, permissions, owner);
        made.at_inner(image, &so_far)?;
    }
    Ok(())
}

/// Gives other names.
pub(super) fn mv(args: &MvArgs) -> Result<ExitCode> {
    let (to, sources) = args.paths.split_last().expect("clap wants two");
    let mode = match args {
        _ if args.no_clobber => RenameMode::NoReplace,
        _ if args.exchange => RenameMode::Exchange,
        _ => RenameMode::Replace,
    };
    changing(&args.image, SpaceBelow::default(), |image| {
        let target = if args.exchange || args.no_target_directory {
            LinkDestination::Name(to)
        } else {
            LinkDestination::of(image, to, sources.len())?
        };
        if sources.len() > 1 && matches!(target, LinkDestination::Name(_)) {
            return Err(
                Error::new(ErrorKind::InvalidArgument).detail("two files cannot have one name")
            );
        }
        for source in sources {
            let (from, name) = image.resolve_parent(source)?;
            let (directory, new_name, place) = target.name_for(image, source)?;
            from.rename(name, &directory, &new_name, mode)
                .map_err(|error| match error.kind() {
                    // Which of the two is missing.
                    ErrorKind::NotFound if from.lookup(name).is_err() => {
                        error.at(image.place(source.as_os_str().as_encoded_bytes()))
                    }
                    _ => error.at(image.place(&place)),
                })?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Makes a link.
pub(super) fn ln(args: &LnArgs) -> Result<ExitCode> {
    changing(&args.image, SpaceBelow::default(), |image| {
        let target = LinkDestination::of(image, &args.name, 1)?;
        let (directory, name, place) = target.name_for(image, &args.target)?;
        let existing = if args.symbolic {
            None
        } else {
            Some(image.resolve(&args.target, FollowLast::No)?)
        };
        if args.force {
            match directory.unlink(&name) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                done => done.at_inner(image, &place)?,
            }
        }
        let made = match &existing {
            Some(node) => directory.link(&name, node),
            None => symbolic_link(
                &directory,
                &name,
                args.target.as_os_str().as_encoded_bytes(),
                image.owner_of_new()?,
            ),
        };
        made.at_inner(image, &place)?;
        Ok(ExitCode::SUCCESS)
    })
}

fn symbolic_link(
    directory: &Node,
    name: &[u8],
    target: &[u8],
    (uid, gid): (u32, u32),
) -> Result<()> {
    let new = NewNode {
        kind: NewKind::SymbolicLink(target),
        permissions: 0o777,
        uid,
        gid,
        umask: 0,
    };
    let node = directory.create(name, &new)?;
    // Not the group of a directory with the setgid bit, as documented.
    node.set_attributes(&AttributeChange {
        gid: Some(gid),
        ..AttributeChange::default()
    })
}

/// Destination of a file.
pub(super) enum LinkDestination<'a> {
    /// Under its own name into a directory, called so.
    Into(Node, &'a Path),
    /// It gets this path.
    Name(&'a Path),
}

impl<'a> LinkDestination<'a> {
    /// As `cp` and `mv` read their last argument, for `sources` files.
    pub(super) fn of(image: &Image, to: &'a Path, sources: usize) -> Result<Self> {
        let ends_in_slash = to.as_os_str().as_encoded_bytes().ends_with(b"/");
        match image.resolve(to, FollowLast::Yes) {
            Ok(node) if node.file_type() == FileType::Directory => Ok(Self::Into(node, to)),
            Err(error) if error.kind() == ErrorKind::NotFound && !ends_in_slash && sources == 1 => {
                Ok(Self::Name(to))
            }
            Err(error) => Err(error),
            Ok(_) if sources > 1 || ends_in_slash => {
                let place = image.place(to.as_os_str().as_encoded_bytes());
                Err(Error::new(ErrorKind::NotDirectory).at(place))
            }
            Ok(_) => Ok(Self::Name(to)),
        }
    }

    /// The directory, the name in it, and the full path, for the destination of `source`.
    pub(super) fn name_for(
        &self,
        image: &Image,
        source: &Path,
    ) -> Result<(Node, Vec<u8>, Vec<u8>)> {
        match self {
            Self::Name(path) => {
                let (directory, name) = image.resolve_parent(path)?;
                let place = path.as_os_str().as_encoded_bytes();
                Ok((directory, name.to_vec(), place.to_vec()))
            }
            Self::Into(directory, path) => {
                let name = names::last(source.as_os_str().as_encoded_bytes());
                if matches!(name, b"" | b"." | b"..") {
                    return Err(Error::new(ErrorKind::InvalidArgument)
                        .at(source)
                        .detail("does not end in a name"));
                }
                let place = names::join(path.as_os_str().as_encoded_bytes(), name);
                Ok((directory.clone(), name.to_vec(), place))
            }
        }
    }
}
