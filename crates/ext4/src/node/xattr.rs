//! Extended attributes of a node.

use extant_space::Result;

use super::Node;
use crate::xattr::XattrMode;

impl Node {
    /// The value of the attribute `name`, such as `user.comment`.
    ///
    /// # Errors
    /// `NoAttribute`; `Unsupported` for a name that no attribute can have; `Corrupt`.
    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.engine
            .record_corruption(self.engine.fs.xattr(&self.cell, name))
    }

    /// The names of all attributes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        self.engine
            .record_corruption(self.engine.fs.xattr_names(&self.cell))
    }

    /// Sets an attribute of up to 64 KiB, of which a file system without `ea_inode` has room for
    /// about a block. An access control list changes the permissions as well.
    ///
    /// # Errors
    /// `AlreadyExists` and `NoAttribute` by the mode; `NoSpace` when it does not fit; `TooLarge`;
    /// `InvalidArgument` for a list that makes no sense; `Unsupported` for a name that no attribute
    /// can have; `Immutable`, `ReadOnly`.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let engine = &self.engine;
        engine.record_corruption(
            engine.with_space(|| engine.set_xattr(&self.cell, name, value, mode)),
        )
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `NoAttribute`; `Immutable`, `ReadOnly`.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.engine
            .record_corruption(self.engine.remove_xattr(&self.cell, name))
    }
}
