//! A change of a device that stands for itself: an operation with its data.

use std::fmt;
use std::sync::Arc;

use extant_space::{ByteRange, Result};
use smallvec::smallvec;

use crate::{MemoryDevice, Operation, Persistence, Speed, ZeroedSpace, Zeroing};

/// Change made by a request. Clones share the data.
#[derive(Clone, PartialEq, Eq)]
pub enum Change {
    /// Data was written.
    Write {
        /// First byte.
        offset: u64,
        /// The data, all buffers joined.
        data: Arc<[u8]>,
    },
    /// The range was made zero.
    WriteZeroes(ByteRange, ZeroedSpace),
    /// The range was discarded; it reads as zeros here.
    Discard(ByteRange),
    /// The range got its place; its contents stayed. Not yet flushed it is lost at every power cut.
    Assign(ByteRange),
}

impl Change {
    /// Change made by `operation`, and its persistence; `None` of a read and a flush.
    pub(super) fn of(operation: &Operation<'_>) -> Option<(Self, Persistence)> {
        Some(match operation {
            Operation::Read { .. } | Operation::Flush => return None,
            Operation::Write {
                offset,
                from,
                persistence,
            } => {
                let data = match &from[..] {
                    [one] => Arc::from(*one),
                    parts => Arc::from(parts.concat()),
                };
                let offset = *offset;
                (Self::Write { offset, data }, *persistence)
            }
            Operation::WriteZeroes(range, zeroing) => {
                let change = Self::WriteZeroes(*range, zeroing.space);
                (change, zeroing.persistence)
            }
            Operation::Discard(range) => (Self::Discard(*range), Persistence::Cached),
            Operation::Assign(range) => (Self::Assign(*range), Persistence::Cached),
        })
    }

    /// The bytes it is about.
    pub fn range(&self) -> ByteRange {
        match self {
            Self::Write { offset, data } => ByteRange::new(*offset, *offset + data.len() as u64),
            Self::WriteZeroes(range, _) | Self::Discard(range) | Self::Assign(range) => *range,
        }
    }

    /// Whether later reads may differ.
    pub(super) fn changes_contents(&self) -> bool {
        !matches!(self, Self::Assign(_))
    }

    /// Does the `part` of it, which need not be in whole blocks, to `device`.
    pub(super) fn apply(&self, part: ByteRange, device: &MemoryDevice) -> Result<()> {
        let mut operation = match self {
            Self::Write { offset, data } => {
                let inside = (part.start() - offset) as usize..(part.end() - offset) as usize;
                Operation::Write {
                    offset: part.start(),
                    from: smallvec![&data[inside]],
                    persistence: Persistence::Cached,
                }
            }
            Self::WriteZeroes(_, space) => {
                let zeroing = Zeroing {
                    space: *space,
                    speed: Speed::Any,
                    persistence: Persistence::Cached,
                };
                Operation::WriteZeroes(part, zeroing)
            }
            Self::Discard(_) => Operation::Discard(part),
            Self::Assign(_) => Operation::Assign(part),
        };
        device.execute(&mut operation)
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Write { .. } => "write",
            Self::WriteZeroes(..) => "write zeroes",
            Self::Discard(_) => "discard",
            Self::Assign(_) => "assign",
        };
        write!(f, "{name} {}", self.range())
    }
}
