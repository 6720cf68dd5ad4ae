//! A new inode, as its creator describes it.

use extant_ondisk::ext4::inode::{DeviceNumber, FileType};

/// Type and properties of a new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// A file without data.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link to this, of 1 byte up to a block less one.
    SymbolicLink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// The name of a socket.
    Socket,
    /// A device of characters.
    CharacterDevice(DeviceNumber),
    /// A device of blocks.
    BlockDevice(DeviceNumber),
}

/// A new inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode<'a> {
    /// The kind of the node.
    pub kind: NewKind<'a>,
    /// Permissions: the lowest 12 bits of the mode. In a directory with the setgid bit, directories
    /// get that bit as well. In a directory with a default access control list they limit the
    /// permissions of that list.
    pub permissions: u16,
    /// The user it belongs to.
    pub uid: u32,
    /// The group it belongs to; in a directory with the setgid bit that of the directory instead.
    pub gid: u32,
    /// Permissions to remove: of the lowest 9 bits those that are set here. It has no effect on
    /// symbolic links, nor in a directory with a default access control list.
    pub umask: u16,
}

impl NewKind<'_> {
    pub(crate) fn file_type(&self) -> FileType {
        match self {
            Self::Regular => FileType::Regular,
            Self::Directory => FileType::Directory,
            Self::SymbolicLink(_) => FileType::SymbolicLink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::CharacterDevice(_) => FileType::CharacterDevice,
            Self::BlockDevice(_) => FileType::BlockDevice,
        }
    }
}
