//! Nodes as directories: names.

use std::ops::ControlFlow;

use extant_space::{Error, ErrorKind, Result};

use super::Node;
use crate::directory::After;
use crate::namespace::{ListedName, Name, RenameMode};
use crate::new_node::NewNode;
use crate::sync::read;

impl Node {
    /// The node `name` in this directory; `.` and `..` are names too.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory`; `InvalidArgument` for an invalid name; `Corrupt`.
    pub fn lookup(&self, name: &[u8]) -> Result<Node> {
        let engine = &self.engine;
        let found = (|| {
            let _shared = read(&self.cell.operation);
            let entry = engine.fs.find_name(&self.cell, name)?;
            let entry = entry.ok_or_else(|| Error::new(ErrorKind::NotFound))?;
            engine.open_entry(entry, self.cell.number)
        })();
        engine
            .record_corruption(found)
            .map(|cell| Node::from_open(engine, cell))
    }

    /// Gives out the names of this directory behind `cookie` (0: all), until `visit` breaks. Names
    /// that exist during the whole listing are returned exactly once, whatever changes between two
    /// calls.
    ///
    /// # Errors
    /// `NotDirectory`; `Corrupt`.
    pub fn list(
        &self,
        cookie: u64,
        visit: &mut dyn FnMut(ListedName<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let after = After { cookie, name: None };
        self.engine
            .record_corruption(self.engine.fs.list(&self.cell, after, visit))
    }

    /// The same, behind a name: names may have the same cookie when they are made for it, and then
    /// none is missed.
    ///
    /// # Errors
    /// As [`list`](Self::list).
    pub fn list_behind(
        &self,
        cookie: u64,
        name: &[u8],
        visit: &mut dyn FnMut(ListedName<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let after = After {
            cookie,
            name: Some(name),
        };
        self.engine
            .record_corruption(self.engine.fs.list(&self.cell, after, visit))
    }

    /// Creates an inode in this directory.
    ///
    /// # Errors
    /// `AlreadyExists`; `NoSpace` without a free block or inode; `TooManyLinks` for a directory too
    /// many; `Unsupported` on a file system without extents; `Immutable`, `ReadOnly`.
    pub fn create(&self, name: &[u8], new: &NewNode<'_>) -> Result<Node> {
        let engine = &self.engine;
        engine
            .record_corruption(engine.with_space(|| engine.create(&self.cell, name, new)))
            .map(|cell| Node::from_open(engine, cell))
    }

    /// Makes a regular file without a name, near this directory. It is deleted with its last
    /// handle, unless [`link`](Self::link) gives it a name before.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn create_unnamed(&self, new: &NewNode<'_>) -> Result<Node> {
        let engine = &self.engine;
        engine
            .record_corruption(engine.with_space(|| engine.create_unnamed(&self.cell, new)))
            .map(|cell| Node::from_open(engine, cell))
    }

    /// Gives `node`, which is no directory, one more name in this directory.
    ///
    /// # Errors
    /// `AlreadyExists`; `TooManyLinks`; `Immutable`, also for directories; `NoSpace`.
    pub fn link(&self, name: &[u8], node: &Node) -> Result<()> {
        let engine = &self.engine;
        engine.record_corruption(engine.with_space(|| engine.link(&node.cell, &self.cell, name)))
    }

    /// Takes a name away, of anything but a directory. Data is freed with the last name and the
    /// last handle.
    ///
    /// # Errors
    /// `NotFound`; `IsDirectory`; `Immutable`.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.engine
            .record_corruption(self.engine.unlink(&self.cell, name))
    }

    /// Takes an empty directory away.
    ///
    /// # Errors
    /// `NotFound`; `NotDirectory`; `NotEmpty`; `Immutable`.
    pub fn remove_directory(&self, name: &[u8]) -> Result<()> {
        self.engine
            .record_corruption(self.engine.remove_directory(&self.cell, name))
    }

    /// Renames `name` of this directory to `to_name` in `to`.
    ///
    /// # Errors
    /// `NotFound`; `AlreadyExists` where replacing is not wanted; `InvalidArgument` for a directory
    /// into itself; `IsDirectory`, `NotDirectory` and `NotEmpty` for a target that cannot be
    /// replaced; `TooManyLinks`, `NoSpace`.
    pub fn rename(&self, name: &[u8], to: &Node, to_name: &[u8], mode: RenameMode) -> Result<()> {
        let from = Name {
            directory: &self.cell,
            name,
        };
        let to = Name {
            directory: &to.cell,
            name: to_name,
        };
        let engine = &self.engine;
        engine.record_corruption(engine.with_space(|| engine.rename(from, to, mode)))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `InvalidArgument` when it is none; `Corrupt`.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.engine
            .record_corruption(self.engine.fs.read_target(&self.cell))
    }
}
