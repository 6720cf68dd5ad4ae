//! Names: a number for the beginning and the rest as bytes.

use std::borrow::Cow;
use std::cmp::Ordering;

/// Index that replaces the prefix of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameIndex(pub u8);

/// The index numbers with their prefixes; a name that ends there has nothing else.
const PREFIXES: [(u8, &[u8]); 9] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (6, b"security."),
    (8, b"system.richacl"),
    (10, b"gnu."),
    // Last, as others begin with it too.
    (7, b"system."),
    (0, b""),
];

impl NameIndex {
    /// Prefix for the index; `None` if the index is unknown.
    pub fn prefix(self) -> Option<&'static [u8]> {
        PREFIXES
            .iter()
            .find(|(index, _)| *index == self.0)
            .map(|(_, prefix)| *prefix)
    }
}

/// The name of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrName<'a> {
    /// Its beginning.
    pub index: NameIndex,
    /// The rest, up to 255 bytes.
    pub rest: Cow<'a, [u8]>,
}

impl<'a> XattrName<'a> {
    /// Takes a name such as `user.comment` apart. `None` where the rest is longer than 255 bytes,
    /// holds a zero, or is missing where there must be one.
    pub fn new(full: &'a [u8]) -> Option<Self> {
        let (index, rest) = PREFIXES.iter().find_map(|(index, prefix)| {
            let rest = full.strip_prefix(*prefix)?;
            // A whole name leaves nothing, a beginning leaves something.
            let is_beginning = prefix.is_empty() || prefix.ends_with(b".");
            (is_beginning != rest.is_empty()).then_some((*index, rest))
        })?;
        (rest.len() <= 255 && !rest.contains(&0)).then_some(Self {
            index: NameIndex(index),
            rest: rest.into(),
        })
    }

    /// The whole name; with an unknown number, the rest alone.
    pub fn full(&self) -> Vec<u8> {
        let mut full = self.index.prefix().unwrap_or_default().to_vec();
        full.extend_from_slice(&self.rest);
        full
    }

    /// The order of entries in a block: by number, length, bytes.
    pub(super) fn order_in_block(&self, other: &XattrName<'_>) -> Ordering {
        let key = |index: NameIndex, rest: &[u8]| (index, rest.len());
        key(self.index, &self.rest)
            .cmp(&key(other.index, &other.rest))
            .then_with(|| self.rest.cmp(&other.rest))
    }

    /// The same name, which borrows nothing.
    pub fn into_owned(self) -> XattrName<'static> {
        XattrName {
            index: self.index,
            rest: self.rest.into_owned().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart_and_together() {
        for (full, index, rest) in [
            ("user.comment", 1, "comment"),
            ("system.posix_acl_access", 2, ""),
            ("system.posix_acl_default", 3, ""),
            ("system.posix_acl_access2", 7, "posix_acl_access2"),
            ("security.selinux", 6, "selinux"),
            ("trusted.a.b", 4, "a.b"),
            ("other.thing", 0, "other.thing"),
        ] {
            let name = XattrName::new(full.as_bytes()).unwrap();
            assert_eq!((name.index.0, &*name.rest), (index, rest.as_bytes()));
            assert_eq!(name.full(), full.as_bytes());
        }
    }

    #[test]
    fn invalid_name_is_none() {
        let long = [b'x'; 300];
        for name in [&b""[..], b"a\0b", &long] {
            assert_eq!(XattrName::new(name), None);
        }
    }
}
