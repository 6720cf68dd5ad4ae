//! Attributes of the reference.

use extant_ext4::{InodeFlags, XattrMode};
use extant_space::ErrorKind;

use super::{Body, Object, Reference, Result};
use crate::operation::{Change, Place, Value};
use crate::tree::USER_FLAGS;

const VALUE_BYTES_MAX: usize = 64 << 10;
pub const ACL_ACCESS: &str = "system.posix_acl_access";
pub const ACL_DEFAULT: &str = "system.posix_acl_default";

impl Reference {
    pub(super) fn set_attributes(&mut self, place: &Place, change: &Change) -> Result<()> {
        let id = self.find(place)?;
        let of_directories = InodeFlags::DIRSYNC | InodeFlags::TOPDIR | InodeFlags::PROJINHERIT;
        let settable = match &self.object(id).body {
            Body::Directory(_) => USER_FLAGS,
            Body::Regular(_) => USER_FLAGS.difference(of_directories),
            _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
        };
        if let Some(flags) = change.flags
            && !settable.contains(InodeFlags::from_bits_retain(flags))
        {
            return Err(ErrorKind::Unsupported);
        }
        let has_nanoseconds = self.format.inode_bytes > 128;
        let object = self.object_mut(id);
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let flags = change.flags.map(InodeFlags::from_bits_retain);
        let after = flags.unwrap_or(object.flags);
        let stays = object.flags & after;
        let others = change.permissions.is_some()
            || change.uid.is_some()
            || change.gid.is_some()
            || change.modified.is_some();
        let is_other = stays.contains(InodeFlags::IMMUTABLE) && after != object.flags;
        if stays.intersects(fixed) && others || is_other {
            return Err(ErrorKind::Immutable);
        }
        object.permissions = change.permissions.unwrap_or(object.permissions);
        object.uid = change.uid.unwrap_or(object.uid);
        object.gid = change.gid.unwrap_or(object.gid);
        if let Some(mut time) = change.modified {
            if !has_nanoseconds {
                time.nanoseconds = 0;
            }
            object.modified = Some(time);
        }
        if let Some(flags) = flags {
            object.flags = flags & USER_FLAGS;
        }
        if let Some(permissions) = change.permissions
            && let Some(list) = object.xattrs.get_mut(ACL_ACCESS.as_bytes())
        {
            chmod_list(list, permissions);
        }
        Ok(())
    }

    pub(super) fn set_xattr(
        &mut self,
        place: &Place,
        name: &str,
        value: &Value,
        mode: XattrMode,
    ) -> Result<()> {
        let id = self.find(place)?;
        let object = self.object_mut(id);
        check_xattr_name(name)?;
        let bytes = value.bytes();
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(ErrorKind::TooLarge);
        }
        let list = match name {
            ACL_ACCESS | ACL_DEFAULT => Some(parse_list(&bytes).ok_or(ErrorKind::InvalidArgument)?),
            _ => None,
        };
        object.check_mutable()?;
        let is_there = object.xattrs.contains_key(name.as_bytes());
        match (mode, is_there) {
            (XattrMode::Create, true) => return Err(ErrorKind::AlreadyExists),
            (XattrMode::Replace, false) => return Err(ErrorKind::NoAttribute),
            _ => {}
        }
        if let (Some(list), ACL_ACCESS) = (&list, name) {
            object.permissions = object.permissions & !0o777 | list.permissions();
            if list.entries.len() == 3 {
                object.xattrs.remove(name.as_bytes());
                return Ok(());
            }
        }
        object.xattrs.insert(name.into(), bytes);
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, place: &Place, name: &str) -> Result<()> {
        let id = self.find(place)?;
        let object = self.object_mut(id);
        check_xattr_name(name)?;
        object.check_mutable()?;
        match object.xattrs.remove(name.as_bytes()) {
            Some(_) => Ok(()),
            None => Err(ErrorKind::NoAttribute),
        }
    }

    /// Whether attributes may be too many for the room there is: in a block of their own they would
    /// not all fit.
    pub fn may_lack_xattr_room(&self, place: &Place, name: &str, value: &Value) -> bool {
        let Ok(id) = self.find(place) else {
            return false;
        };
        let entry =
            |name: usize, value: usize| 16 + name.next_multiple_of(4) + value.next_multiple_of(4);
        let others = self
            .object(id)
            .xattrs
            .iter()
            .filter(|(other, _)| *other != name.as_bytes());
        let taken: usize = others
            .map(|(name, value)| entry(name.len(), value.len()))
            .sum();
        let header = 32 + 4;
        taken + entry(name.len(), value.bytes().len()) + header > self.format.block_bytes as usize
    }
}

impl Object {
    /// Applies a directory's default list to a new object, or else the umask.
    pub(super) fn inherit_access(&mut self, above: &Object, umask: u16) {
        if matches!(self.body, Body::Link(_)) {
            return;
        }
        let Some(default) = above.xattrs.get(ACL_DEFAULT.as_bytes()) else {
            self.permissions &= !(umask & 0o777);
            return;
        };
        let mut list = default.clone();
        let given = parse_list(&list)
            .expect("a list that was set")
            .permissions();
        chmod_list(&mut list, given & self.permissions);
        self.permissions = self.permissions & !0o777 | given & self.permissions;
        if self.is_directory() {
            self.xattrs.insert(ACL_DEFAULT.into(), default.clone());
        }
        if list.len() > 4 + 3 * 8 {
            self.xattrs.insert(ACL_ACCESS.into(), list);
        }
    }
}

fn check_xattr_name(name: &str) -> Result<()> {
    match name {
        ACL_ACCESS | ACL_DEFAULT => return Ok(()),
        _ => {}
    }
    let prefixes = ["user.", "trusted.", "security."];
    let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
    match rest {
        Some(rest) if (1..=255).contains(&rest.len()) => Ok(()),
        _ => Err(ErrorKind::Unsupported),
    }
}

struct List {
    /// Tag and permissions.
    entries: Vec<(u16, u16)>,
}

const USER_OBJ: u16 = 1;
const GROUP_OBJ: u16 = 4;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// A list of those that are made here: all of them begin with the version, most make sense.
fn parse_list(bytes: &[u8]) -> Option<List> {
    let rest = bytes.strip_prefix(&[2, 0, 0, 0])?;
    let (words, rest) = rest.as_chunks::<8>();
    let entries: Vec<_> = words
        .iter()
        .map(|word| (u16::from(word[0]), u16::from(word[2])))
        .collect();
    let has = |tag| entries.iter().any(|entry| entry.0 == tag);
    let is_whole = has(USER_OBJ) && has(GROUP_OBJ) && has(OTHER);
    let needs_mask = entries.len() > 3;
    (rest.is_empty() && is_whole && needs_mask == has(MASK)).then_some(List { entries })
}

impl List {
    fn permissions(&self) -> u16 {
        let of = |tag| {
            self.entries
                .iter()
                .find(|entry| entry.0 == tag)
                .map(|entry| entry.1)
        };
        let group = of(MASK).or(of(GROUP_OBJ)).unwrap_or(0);
        of(USER_OBJ).unwrap_or(0) << 6 | group << 3 | of(OTHER).unwrap_or(0)
    }
}

/// The list follows the mode, as in `posix_acl_chmod`.
fn chmod_list(list: &mut [u8], permissions: u16) {
    let (words, _) = list[4..].as_chunks_mut::<8>();
    let has_mask = words.iter().any(|word| u16::from(word[0]) == MASK);
    for word in words {
        let shift = match u16::from(word[0]) {
            USER_OBJ => 6,
            MASK => 3,
            GROUP_OBJ if !has_mask => 3,
            OTHER => 0,
            _ => continue,
        };
        word[2] = (permissions >> shift & 7) as u8;
    }
}
