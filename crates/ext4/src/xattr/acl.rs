//! Access control lists: the form programs see and the form that is stored.
//!
//! Programs: a version (2) in 4 bytes, then entries of 8 bytes: tag, permissions, user or group.
//! Stored: version 1, and entries of 4 bytes where there is no user or group to name. All
//! little-endian.
//!
//! Format: docs/formats/ext4.md, "Extended attributes".

use extant_ondisk::ext4::xattr::{NameIndex, XattrName};
use extant_space::{Error, ErrorKind, Result};

const PROGRAM_VERSION: u32 = 2;
const DISK_VERSION: u32 = 1;
const ACCESS: u8 = 2;
const DEFAULT: u8 = 3;
/// The id that programs see in place of a user or group.
const NOBODY: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// A list that makes sense.
pub(super) struct Acl {
    entries: Vec<AclEntry>,
}

#[derive(Clone, Copy)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    /// Of USER and GROUP.
    id: u32,
}

/// Whether an attribute is a list.
pub(super) fn is_list(name: &XattrName<'_>) -> bool {
    matches!(name.index.0, ACCESS | DEFAULT)
}

/// Whether it is the list that decides about access, and belongs together with the mode.
pub(super) fn is_access(name: &XattrName<'_>) -> bool {
    name.index.0 == ACCESS
}

/// The name of that list.
pub(super) fn access_name() -> XattrName<'static> {
    XattrName {
        index: NameIndex(ACCESS),
        rest: [].as_slice().into(),
    }
}

/// The name of the list that new inodes in a directory inherit.
pub(super) fn default_name() -> XattrName<'static> {
    XattrName {
        index: NameIndex(DEFAULT),
        rest: [].as_slice().into(),
    }
}

/// A list that is stored; `None` for one without entries, which is as good as none.
pub(super) fn read(stored: &[u8]) -> Result<Option<Acl>> {
    let seen = from_disk(stored)?;
    if seen == PROGRAM_VERSION.to_le_bytes() {
        return Ok(None);
    }
    let list = parse(&seen).map_err(|error| error.with_kind(ErrorKind::Corrupt))?;
    Ok(Some(list))
}

/// A list as programs give it.
pub(super) fn parse(value: &[u8]) -> Result<Acl> {
    let entries = parse_entries(value).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument).detail("this is no access control list")
    })?;
    Ok(Acl { entries })
}

fn parse_entries(value: &[u8]) -> Option<Vec<AclEntry>> {
    let (version, rest) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != PROGRAM_VERSION {
        return None;
    }
    let (words, rest) = rest.as_chunks::<8>();
    if !rest.is_empty() {
        return None;
    }
    let entries: Vec<AclEntry> = words
        .iter()
        .map(|word| AclEntry {
            tag: u16::from_le_bytes([word[0], word[1]]),
            permissions: u16::from_le_bytes([word[2], word[3]]),
            id: u32::from_le_bytes([word[4], word[5], word[6], word[7]]),
        })
        .collect();
    makes_sense(&entries).then_some(entries)
}

/// Owner, users, group, groups, mask, others, in this order; each once but users and groups, and
/// the mask where there are any of those.
fn makes_sense(entries: &[AclEntry]) -> bool {
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let are_known = entries.iter().all(|entry| {
        let is_named = matches!(entry.tag, USER | GROUP);
        let is_tag = is_named || matches!(entry.tag, USER_OBJ | GROUP_OBJ | MASK | OTHER);
        is_tag && entry.permissions <= 7 && (!is_named || entry.id != NOBODY)
    });
    let named = count(USER) + count(GROUP);
    let singles = count(USER_OBJ) == 1 && count(GROUP_OBJ) == 1 && count(OTHER) == 1;
    let mask = match named {
        0 => count(MASK) <= 1,
        _ => count(MASK) == 1,
    };
    are_known && singles && mask && entries.is_sorted_by_key(|entry| entry.tag)
}

/// The stored list in the form that programs see.
pub(super) fn from_disk(stored: &[u8]) -> Result<Vec<u8>> {
    if stored.is_empty() {
        return Ok(PROGRAM_VERSION.to_le_bytes().to_vec());
    }
    entries_from_disk(stored).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt)
            .detail("the access control list of an inode cannot be read")
            .advice("check the file system")
    })
}

fn entries_from_disk(stored: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = stored.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != DISK_VERSION {
        return None;
    }
    let mut seen = PROGRAM_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        seen.extend_from_slice(head);
        match u16::from_le_bytes([head[0], head[1]]) {
            USER | GROUP => {
                let (id, after) = rest.split_first_chunk::<4>()?;
                rest = after;
                seen.extend_from_slice(id);
            }
            USER_OBJ | GROUP_OBJ | MASK | OTHER => seen.extend_from_slice(&NOBODY.to_le_bytes()),
            _ => return None,
        }
    }
    Some(seen)
}

impl Acl {
    /// As it is stored.
    pub(super) fn to_disk(&self) -> Vec<u8> {
        let mut stored = DISK_VERSION.to_le_bytes().to_vec();
        for entry in &self.entries {
            stored.extend_from_slice(&entry.tag.to_le_bytes());
            stored.extend_from_slice(&entry.permissions.to_le_bytes());
            if matches!(entry.tag, USER | GROUP) {
                stored.extend_from_slice(&entry.id.to_le_bytes());
            }
        }
        stored
    }

    /// Sets its permissions from the lowest 9 bits of the mode: the reverse of
    /// [`permissions`](Self::permissions).
    pub(super) fn set_permissions(&mut self, permissions: u16) {
        let has_mask = self.entries.iter().any(|entry| entry.tag == MASK);
        let group = if has_mask { MASK } else { GROUP_OBJ };
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
                entry.permissions = permissions >> shift & 7;
            }
        }
    }

    /// The list that a new file has for access, of a default list: the lowest 9 bits of
    /// `permissions` take away from the owner, the group (from the mask, where there is one) and
    /// the others.
    pub(super) fn limited_to(mut self, permissions: u16) -> Self {
        self.set_permissions(self.permissions() & permissions);
        self
    }

    /// Whether the permissions of the mode say the same.
    pub(super) fn is_minimal(&self) -> bool {
        self.entries.len() == 3
    }

    /// The lowest 9 bits of the mode that belong to it: the group's are those of the mask where
    /// there is one.
    pub(super) fn permissions(&self) -> u16 {
        let of = |tag| {
            let entry = self.entries.iter().find(|entry| entry.tag == tag);
            entry.map(|entry| entry.permissions)
        };
        let group = of(MASK).or_else(|| of(GROUP_OBJ));
        of(USER_OBJ).unwrap_or(0) << 6 | group.unwrap_or(0) << 3 | of(OTHER).unwrap_or(0)
    }
}
