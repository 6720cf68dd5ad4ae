//! `extant fs chmod` and `extant fs chown`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use extant_ext4::{AttributeChange, FileType, FollowLast, Node};
use extant_space::{CancelToken, Result};

use super::mode::ModeChange;
use super::owner::Owner;
use crate::fs_image::walk::{Enter, OnError, Stage, walk};
use crate::fs_image::{At, Image, SpaceBelow, changing};

/// Change permissions in an image.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs chmod disk.img 0600 /etc/shadow
  extant fs chmod disk.img u=rw,go=r /etc/passwd
  extant fs chmod -R disk.img go-w,a+rX /srv

MODE is octal, or changes in letters as chmod(1) takes them; without u, g, o or a they are for all.")]
pub struct ChmodArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// New permissions
    #[arg(allow_hyphen_values = true)]
    pub mode: ModeChange,

    /// Files in it
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Change everything below as well; symbolic links are not changed
    #[arg(long, short = 'R')]
    pub recursive: bool,
}

/// Change owners in an image.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  extant fs chown disk.img 1000:1000 /home/joe
  extant fs chown -R disk.img :100 /srv/shared

Owners are numbers: names would be those of this machine. As with chown(1), set-ID bits of
executable files go.")]
pub struct ChownArgs {
    /// The image, disk or NBD export (its URI)
    pub image: PathBuf,

    /// UID, UID:GID or :GID
    pub owner: Owner,

    /// Files in it
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Of everything below as well
    #[arg(long, short = 'R')]
    pub recursive: bool,

    /// Change a symbolic link itself
    #[arg(long)]
    pub no_dereference: bool,
}

/// Files that a command changes.
struct Targets<'a> {
    paths: &'a [PathBuf],
    recursive: bool,
    follow: FollowLast,
}

/// Changes permissions.
pub(super) fn chmod(args: &ChmodArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let targets = Targets {
        paths: &args.paths,
        recursive: args.recursive,
        follow: FollowLast::Yes,
    };
    changing(&args.image, SpaceBelow::default(), |image| {
        targets.each(image, cancel, &|node| {
            let found = node.attributes();
            if found.file_type == FileType::SymbolicLink {
                return Ok(());
            }
            let is_directory = found.file_type == FileType::Directory;
            let permissions = args.mode.apply(found.permissions, is_directory);
            node.set_attributes(&AttributeChange {
                permissions: Some(permissions),
                ..AttributeChange::default()
            })
        })
    })
}

/// Changes owners.
pub(super) fn chown(args: &ChownArgs, cancel: &CancelToken) -> Result<ExitCode> {
    let targets = Targets {
        paths: &args.paths,
        recursive: args.recursive,
        follow: if args.no_dereference {
            FollowLast::No
        } else {
            FollowLast::Yes
        },
    };
    changing(&args.image, SpaceBelow::default(), |image| {
        targets.each(image, cancel, &|node| {
            let found = node.attributes();
            let executes = found.permissions & 0o111 != 0;
            let keeps = found.file_type != FileType::Regular || !executes;
            node.set_attributes(&AttributeChange {
                uid: args.owner.uid,
                gid: args.owner.gid,
                permissions: (!keeps).then_some(found.permissions & 0o1777),
                ..AttributeChange::default()
            })
        })
    })
}

impl Targets<'_> {
    fn each(
        &self,
        image: &Image,
        cancel: &CancelToken,
        work: &dyn Fn(&Node) -> Result<()>,
    ) -> Result<ExitCode> {
        for path in self.paths {
            let node = image.resolve(path, self.follow)?;
            let bytes = path.as_os_str().as_encoded_bytes();
            if !self.recursive {
                work(&node).at_inner(image, bytes)?;
                continue;
            }
            walk(image, &node, bytes, OnError::Stop, &mut |step| {
                cancel.check()?;
                if step.stage == Stage::Before {
                    work(step.node).at_inner(image, step.path)?;
                }
                Ok(Enter::Yes)
            })?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
