//! Operations without their ranges and data: the subject of rules and counters.

use std::fmt;

use serde::Serialize;

use crate::Operation;

/// The kinds of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OperationKind {
    /// [`Operation::Read`].
    Read,
    /// [`Operation::Write`].
    Write,
    /// [`Operation::Flush`].
    Flush,
    /// [`Operation::Discard`].
    Discard,
    /// [`Operation::WriteZeroes`].
    WriteZeroes,
    /// [`Operation::Assign`].
    Assign,
}

impl OperationKind {
    /// Every kind, in the order of their discriminants.
    pub const ALL: [Self; 6] = [
        Self::Read,
        Self::Write,
        Self::Flush,
        Self::Discard,
        Self::WriteZeroes,
        Self::Assign,
    ];

    /// The kind of `operation`.
    pub fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::Read { .. } => Self::Read,
            Operation::Write { .. } => Self::Write,
            Operation::Flush => Self::Flush,
            Operation::Discard(_) => Self::Discard,
            Operation::WriteZeroes(..) => Self::WriteZeroes,
            Operation::Assign(_) => Self::Assign,
        }
    }

    /// The verb, as in [`Operation::name`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write zeroes",
            Self::Assign => "assign",
        }
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
