//! Paths: from names joined by slashes to nodes.

use extant_ondisk::ext4::inode::FileType;
use extant_space::{Error, ErrorKind, Result};

use super::Node;
use crate::filesystem::Filesystem;

/// Symbolic links that are followed in one path, as in the kernel.
const FOLLOWED_MAX: u32 = 40;

/// Treatment of a symbolic link at the end of a path. Links inside the path are always followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowLast {
    /// Follow it to its target.
    Yes,
    /// It is the target of the path.
    No,
}

impl Filesystem {
    /// Resolves a path. It begins at the root, with a slash or without; so do absolute targets of
    /// symbolic links.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; `TooManySymlinks`; those of [`Node::lookup`].
    pub fn resolve(&self, path: &[u8], last: FollowLast) -> Result<Node> {
        let mut follow = Walk {
            filesystem: self,
            followed: 0,
        };
        follow.walk(self.root()?, path, last)
    }

    /// The directory that a path's last name is in, and that name.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve); `InvalidArgument` for a path that ends in no name: `/`, `.`,
    /// `..`.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(Node, &'p [u8])> {
        let end = path.iter().rposition(|&byte| byte != b'/');
        let trimmed = end.map_or(&[][..], |end| &path[..=end]);
        let start = trimmed.iter().rposition(|&byte| byte == b'/');
        let (above, name) = trimmed.split_at(start.map_or(0, |slash| slash + 1));
        if matches!(name, b"" | b"." | b"..") {
            return Err(
                Error::new(ErrorKind::InvalidArgument).detail("the path does not end in a name")
            );
        }
        let parent = self.resolve(above, FollowLast::Yes)?;
        match parent.file_type() {
            FileType::Directory => Ok((parent, name)),
            _ => Err(Error::new(ErrorKind::NotDirectory)),
        }
    }
}

struct Walk<'f> {
    filesystem: &'f Filesystem,
    followed: u32,
}

impl Walk<'_> {
    fn walk(&mut self, from: Node, path: &[u8], last: FollowLast) -> Result<Node> {
        let wants_directory = path.last() == Some(&b'/');
        let mut names = path
            .split(|&byte| byte == b'/')
            .filter(|name| !matches!(*name, b"" | b"."))
            .peekable();
        let mut at = match path.first() {
            Some(b'/') => self.filesystem.root()?,
            _ => from,
        };
        while let Some(name) = names.next() {
            let next = at.lookup(name)?;
            let is_last = names.peek().is_none();
            let is_followed = !is_last || wants_directory || last == FollowLast::Yes;
            at = match next.file_type() {
                FileType::SymbolicLink if is_followed => {
                    self.followed += 1;
                    if self.followed > FOLLOWED_MAX {
                        return Err(Error::new(ErrorKind::TooManySymlinks));
                    }
                    let target = next.read_link()?;
                    self.walk(at, &target, FollowLast::Yes)?
                }
                _ => next,
            };
        }
        if wants_directory && at.file_type() != FileType::Directory {
            return Err(Error::new(ErrorKind::NotDirectory));
        }
        Ok(at)
    }
}
