//! `extant fallocate --in IMAGE`: the file that the command works on.

use std::path::Path;

use extant_ext4::{File, FollowLast, NewKind, NewNode, Node};
use extant_space::{ErrorKind, Result};

use crate::fs_image::{At, Image, SpaceBelow};

/// A file inside an image, open for a command.
pub struct Opened {
    pub image: Image,
    pub file: File,
}

/// Whether something is changed, and a missing file made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Look,
    Change,
    ChangeOrCreate,
}

/// Opens `path` inside `image`.
pub fn open(image: &Path, path: &Path, purpose: Purpose, below: SpaceBelow) -> Result<Opened> {
    let image = match purpose {
        Purpose::Look => Image::look(image)?,
        _ => Image::change(image, below)?,
    };
    match open_file(&image, path, purpose) {
        Ok(file) => Ok(Opened { image, file }),
        Err(error) => image.finish(Err(error)),
    }
}

fn open_file(image: &Image, path: &Path, purpose: Purpose) -> Result<File> {
    let node = match image.resolve(path, FollowLast::Yes) {
        Err(error) if error.kind() == ErrorKind::NotFound && purpose == Purpose::ChangeOrCreate => {
            make(image, path)?
        }
        found => found?,
    };
    node.file()
        .at_inner(image, path.as_os_str().as_encoded_bytes())
}

fn make(image: &Image, path: &Path) -> Result<Node> {
    let (directory, name) = image.resolve_parent(path)?;
    let (uid, gid) = image.owner_of_new()?;
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid,
        gid,
        umask: 0,
    };
    let made = directory.create(name, &new);
    made.at_inner(image, path.as_os_str().as_encoded_bytes())
}
