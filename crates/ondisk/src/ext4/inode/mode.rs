//! `i_mode`: type and permissions.

use std::fmt;

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// A file of bytes.
    Regular,
    /// A directory.
    Directory,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A symbolic link.
    SymbolicLink,
}

impl FileType {
    const MASK: u16 = 0xF000;

    /// The type's bits of `i_mode`.
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0x1000,
            Self::CharacterDevice => 0x2000,
            Self::Directory => 0x4000,
            Self::BlockDevice => 0x6000,
            Self::Regular => 0x8000,
            Self::SymbolicLink => 0xA000,
            Self::Socket => 0xC000,
        }
    }

    fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & Self::MASK {
            0x1000 => Self::Fifo,
            0x2000 => Self::CharacterDevice,
            0x4000 => Self::Directory,
            0x6000 => Self::BlockDevice,
            0x8000 => Self::Regular,
            0xA000 => Self::SymbolicLink,
            0xC000 => Self::Socket,
            _ => return None,
        })
    }

    /// The number that stands for the type in a directory entry.
    pub fn directory_code(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharacterDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::SymbolicLink => 7,
        }
    }

    /// The type of a directory entry; `None` for 0, which means unknown, and for unknown numbers.
    pub fn from_directory_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharacterDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::SymbolicLink,
            _ => return None,
        })
    }
}

/// `i_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Mode(pub u16);

impl Mode {
    /// A file of `file_type` with the low 12 bits of `permissions`.
    pub fn new(file_type: FileType, permissions: u16) -> Self {
        Self(file_type.mode_bits() | permissions & !FileType::MASK)
    }

    /// The type; `None` when the bits stand for none.
    pub fn file_type(self) -> Option<FileType> {
        FileType::from_mode(self.0)
    }

    /// Permissions, set-ID and sticky bits: 12 bits.
    pub fn permissions(self) -> u16 {
        self.0 & !FileType::MASK
    }
}

impl fmt::Display for Mode {
    /// Octal, as debugfs and stat print it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.permissions())
    }
}
