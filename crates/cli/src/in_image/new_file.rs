//! A new file inside an image, which has no name until it is complete.

use std::path::Path;

use extant_ext4::{File, FileType, NewKind, NewNode, Node, RenameMode};
use extant_space::{Error, ErrorKind, Result};

use crate::fs_image::Image;

/// Permissions of a file for which none were asked.
const PERMISSIONS: u32 = 0o644;

/// The file, and the name that it will have.
pub struct NewFile<'p> {
    directory: Node,
    name: &'p [u8],
    node: Node,
    replaces: bool,
}

impl<'p> NewFile<'p> {
    /// Makes it, empty; whether the name can be had is seen before.
    pub fn begin(
        image: &Image,
        path: &'p Path,
        permissions: Option<u32>,
        replaces: bool,
    ) -> Result<Self> {
        let (directory, name) = image.resolve_parent(path)?;
        check_name(&directory, name, replaces)?;
        let (uid, gid) = image.owner_of_new()?;
        let node = directory.create_unnamed(&NewNode {
            kind: NewKind::Regular,
            permissions: permissions.unwrap_or(PERMISSIONS) as u16,
            uid,
            gid,
            umask: 0,
        })?;
        Ok(Self {
            directory,
            name,
            node,
            replaces,
        })
    }

    /// The file.
    pub fn file(&self) -> Result<File> {
        self.node.file()
    }

    /// Gives it its name.
    pub fn give_name(&self) -> Result<()> {
        match self.directory.link(self.name, &self.node) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && self.replaces => {}
            done => return done,
        }
        let temporary = format!(".extant-partial-{}", self.node.number());
        let temporary = temporary.as_bytes();
        self.directory.link(temporary, &self.node)?;
        let done =
            self.directory
                .rename(temporary, &self.directory, self.name, RenameMode::Replace);
        if done.is_err() {
            self.directory.unlink(temporary)?;
        }
        done
    }
}

fn check_name(directory: &Node, name: &[u8], replaces: bool) -> Result<()> {
    let found = match directory.lookup(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    match found.file_type() {
        FileType::Regular if replaces => Ok(()),
        FileType::Regular => Err(Error::new(ErrorKind::AlreadyExists)
            .advice("--force replaces it when the new one is complete")),
        FileType::Directory => Err(Error::new(ErrorKind::IsDirectory)),
        _ if replaces => Err(Error::new(ErrorKind::WrongType)),
        _ => Err(Error::new(ErrorKind::AlreadyExists)),
    }
}
