//! Steps on a file system.

use extant_ext4::{NewKind, NewNode, RenameMode};
use extant_space::{FallocateMode, SyncMode};

/// A file: by its path, or by a handle that a step took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    At(String),
    Held(usize),
}

/// Type of a new file. Targets of links have a length, device files a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Regular,
    Directory,
    SymbolicLink(usize),
    Fifo,
    Device(u32),
}

/// One call of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Create(String, Kind),
    CreateUnnamed(usize),
    Link(Target, String),
    Unlink(String),
    RemoveDirectory(String),
    Rename(String, String, RenameMode),
    /// Keeps a handle.
    Hold(String, usize),
    Release(usize),
    /// Bytes that encode the step and the offset in the file.
    Write(Target, u64, usize),
    Append(Target, usize),
    Resize(Target, u64),
    Fallocate(Target, FallocateMode, u64, u64),
    SetXattr(Target, &'static str, usize),
    RemoveXattr(Target, &'static str),
    SetPermissions(Target, u16),
    Sync(Target, SyncMode),
    SyncAll,
    /// Closes the file system and opens it again.
    Reopen,
}

impl Step {
    /// Whether it may take several transactions: then a cut may show a part of it.
    pub fn is_divisible(&self) -> bool {
        matches!(
            self,
            Self::Write(..) | Self::Append(..) | Self::Resize(..) | Self::Fallocate(..)
        )
    }

    /// Whether it moves data from one place of the file to another.
    pub fn shifts(&self) -> bool {
        use FallocateMode::{CollapseRange, InsertRange};
        matches!(self, Self::Fallocate(_, CollapseRange | InsertRange, ..))
    }

    /// The file whose data it changes.
    pub fn data_target(&self) -> Option<&Target> {
        match self {
            Self::Write(target, ..)
            | Self::Append(target, ..)
            | Self::Resize(target, ..)
            | Self::Fallocate(target, ..) => Some(target),
            _ => None,
        }
    }
}

impl Kind {
    /// Makes it; `target` is where a symbolic link leads.
    pub fn node<'t>(self, target: &'t [u8]) -> NewNode<'t> {
        let kind = match self {
            Self::Regular => NewKind::Regular,
            Self::Directory => NewKind::Directory,
            Self::SymbolicLink(_) => NewKind::SymbolicLink(target),
            Self::Fifo => NewKind::Fifo,
            Self::Device(minor) => {
                NewKind::BlockDevice(extant_ext4::DeviceNumber { major: 259, minor })
            }
        };
        NewNode {
            kind,
            permissions: if self == Self::Directory {
                0o755
            } else {
                0o644
            },
            uid: 1000,
            gid: 70_000,
            umask: 0,
        }
    }
}

/// The bytes that a step writes at an offset: every 8 bytes encode both.
pub fn data(step: usize, offset: u64, length: usize) -> Vec<u8> {
    let end = offset + length as u64;
    let words = offset / 8..end.div_ceil(8);
    let bytes: Vec<u8> = words
        .flat_map(|word| {
            let seed = (step as u64 + 1) << 40 | word;
            // Odd multiplier: different words for different places, and never zero.
            (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1).to_le_bytes()
        })
        .collect();
    bytes[(offset % 8) as usize..][..length].to_vec()
}
