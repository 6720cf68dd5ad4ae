//! Names inside an image: found and made one component at a time, no link followed.

use extant_ext4::{FileType, NewKind, NewNode, Node};
use extant_space::{Error, ErrorKind, Result};

/// The node `name`; `None`: none.
pub(super) fn find(directory: &Node, name: &str) -> Result<Option<Node>> {
    match directory.lookup(name.as_bytes()) {
        Ok(node) => Ok(Some(node)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The directory called `name`; `None`: nothing is called so.
pub(super) fn child_directory(directory: &Node, name: &str) -> Result<Option<Node>> {
    match find(directory, name)? {
        Some(node) if node.file_type() != FileType::Directory => {
            Err(Error::new(ErrorKind::NotDirectory))
        }
        found => Ok(found),
    }
}

/// The directory called `name`, made for its owner alone where there is none.
pub(super) fn make_directory(directory: &Node, name: &str) -> Result<Node> {
    if let Some(found) = child_directory(directory, name)? {
        return Ok(found);
    }
    match directory.create(name.as_bytes(), &new_node(NewKind::Directory, 0o700)) {
        // Another thread was first.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            child_directory(directory, name)?.ok_or_else(|| Error::new(ErrorKind::NotFound))
        }
        made => made,
    }
}

/// A new node, owned by root whichever user makes it, so that an image is the same for all users.
pub(super) fn new_node(kind: NewKind<'_>, permissions: u16) -> NewNode<'_> {
    NewNode {
        kind,
        permissions,
        uid: 0,
        gid: 0,
        umask: 0,
    }
}
