//! Inconsistency of stored data, as a value: the structure, and the rule that it breaks.

use std::borrow::Cow;

/// A structure in stored data and the rule of the format that it breaks.
///
/// Opaque: values are compared with each other. The numbers found are in the line of the
/// [`Error`](crate::Error), not here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Corruption {
    structure: String,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Checksum,
    Range { field: Cow<'static, str> },
    Other(String),
}

impl Corruption {
    /// The checksum of `structure` does not match its bytes.
    pub fn checksum(structure: impl Into<String>) -> Self {
        Self::of(structure, Rule::Checksum)
    }

    /// The number in `field` of `structure` is outside the range that the format allows.
    pub fn range(structure: impl Into<String>, field: impl Into<Cow<'static, str>>) -> Self {
        let field = field.into();
        Self::of(structure, Rule::Range { field })
    }

    /// `structure` breaks another rule, named by `problem`.
    pub fn other(structure: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::of(structure, Rule::Other(problem.into()))
    }

    fn of(structure: impl Into<String>, rule: Rule) -> Self {
        Self {
            structure: structure.into(),
            rule,
        }
    }
}
