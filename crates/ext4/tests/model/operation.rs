//! Operations on a file system, for random sequences.
//!
//! An operation is self-contained (places by name or by handle, data by a seed), so that any part
//! of a sequence can be done alone, on the reference, the engine and the kernel alike.

use std::fmt;

use extant_ext4::{DeviceNumber, FileType, RenameMode, Timestamp, XattrMode};
use extant_space::{ByteRange, ErrorKind, ExtentState, FallocateMode, SyncMode};

/// Handles that can be open at a time.
pub const HANDLES: usize = 6;
/// Directories that can be listed at a time.
pub const CURSORS: usize = 2;

/// Names from the root on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(pub Vec<Vec<u8>>);

/// Something that exists, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    At(Path),
    Handle(usize),
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    pub directory: Place,
    pub name: Vec<u8>,
}

/// Type of a new file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    Regular,
    Directory,
    Link { length: usize, letter: u8 },
    Fifo,
    Socket,
    Character(DeviceNumber),
    Block(DeviceNumber),
}

/// Owner and permissions of a new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub permissions: u16,
    pub uid: u32,
    pub gid: u32,
    pub umask: u16,
}

/// Bytes that follow from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    pub length: usize,
    pub seed: u8,
}

/// Attributes to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    pub permissions: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub modified: Option<Timestamp>,
    /// All of [`USER_FLAGS`](crate::tree::USER_FLAGS).
    pub flags: Option<u32>,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Create(Name, Made, Owner),
    CreateUnnamed(Place, Owner, usize),
    Link(Place, Name),
    Unlink(Name),
    RemoveDirectory(Name),
    Rename(Name, Name, RenameMode),
    Open(Place, usize),
    Close(usize),
    Write(Place, u64, Data),
    Read(Place, u64, usize),
    Resize(Place, u64),
    Fallocate(Place, FallocateMode, ByteRange),
    /// Every second block, from a block on, for a number of blocks: written or punched.
    Comb(Place, u64, u64, Tooth),
    Extents(Place, ByteRange),
    SetAttributes(Place, Change),
    SetXattr(Place, String, Value, XattrMode),
    RemoveXattr(Place, String),
    ListStart(Place, usize),
    ListNext(usize, usize),
    SyncFile(Place, SyncMode),
    Sync,
    /// Closed, checked, opened.
    Reopen,
    /// Synced; then the power fails, and it is opened again.
    Crash,
}

/// Contents of each second block after a comb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tooth {
    Written(u8),
    Punched,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Data(Data),
    /// A list for access, as programs see one: tags and permissions, with users and groups by their
    /// number.
    Acl(Vec<(u16, u16)>),
}

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Failed(ErrorKind),
    /// The kernel's error for it.
    #[allow(dead_code, reason = "the kernel test needs it")]
    Errno(i32),
    Bytes(Vec<u8>),
    States(Vec<(ByteRange, ExtentState)>),
    Listed(Listed),
}

/// Names that a listing gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub names: Vec<(Vec<u8>, Option<FileType>)>,
    pub rest: Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    MayBeMore,
    Nothing,
}

impl Outcome {
    /// Whether both mean the same. The kernel reports less than a kind.
    pub fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Failed(kind), Self::Errno(errno)) => kind.errno() == *errno,
            _ => self == other,
        }
    }
}

impl Data {
    /// The bytes. None is zero, so that none can come from a hole.
    pub fn bytes(self) -> Vec<u8> {
        let byte = |at: usize| (at.wrapping_mul(7) ^ at >> 8).wrapping_add(usize::from(self.seed));
        (0..self.length)
            .map(|at| (byte(at) % 255) as u8 + 1)
            .collect()
    }
}

impl Made {
    /// The target of a link.
    pub fn target(self) -> Vec<u8> {
        match self {
            Self::Link { length, letter } => vec![letter; length],
            _ => Vec::new(),
        }
    }
}

impl Value {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Data(data) => data.bytes(),
            Self::Acl(entries) => {
                let mut bytes = 2u32.to_le_bytes().to_vec();
                for (number, (tag, permissions)) in entries.iter().enumerate() {
                    let is_named = matches!(tag, 2 | 8);
                    let id = if is_named {
                        1000 + number as u32
                    } else {
                        u32::MAX
                    };
                    bytes.extend_from_slice(&tag.to_le_bytes());
                    bytes.extend_from_slice(&permissions.to_le_bytes());
                    bytes.extend_from_slice(&id.to_le_bytes());
                }
                bytes
            }
        }
    }
}

impl Path {
    pub fn join(&self, name: &[u8]) -> Self {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        Self(names)
    }
}

impl Name {
    pub fn new(directory: Place, name: &[u8]) -> Self {
        Self {
            directory,
            name: name.to_vec(),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0
            .iter()
            .try_for_each(|name| write!(f, "/{}", Short(name)))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} + {}", self.directory, Short(&self.name))
    }
}

/// A name of which only the beginning is shown when it is long.
struct Short<'a>(&'a [u8]);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = &self.0[..self.0.len().min(6)];
        write!(f, "{}", shown.escape_ascii())?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, "({more} more)"),
        }
    }
}
