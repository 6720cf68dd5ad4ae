//! Permissions of new nodes: from the directory's default access control list, or else the umask.
//!
//! Model: of a default list, the entries of owner, group and others are limited to the requested
//! permissions. The rest is the access list of the new inode, unless the permissions express the
//! same; a directory also gets the default list itself.

use std::sync::Arc;

use extant_ondisk::ext4::xattr::XattrValue;
use extant_space::Result;

use super::{Lists, acl};
use crate::inode_cell::{InodeCell, InodeState};
use crate::new_node::{NewKind, NewNode};
use crate::state::FsState;
use crate::transaction::Transaction;

/// Permissions and lists of a new inode.
pub(crate) struct InheritedAccess {
    /// The lowest 12 bits of its mode.
    pub(crate) permissions: u16,
    /// As it is stored.
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl FsState {
    /// The attributes that `new` inherits from the directory `parent`.
    pub(crate) fn inherited_access(
        &self,
        parent: &InodeState,
        new: &NewNode<'_>,
    ) -> Result<InheritedAccess> {
        let permissions = new.permissions & 0o7777;
        let without_lists = |permissions| InheritedAccess {
            permissions,
            access: None,
            default: None,
        };
        if matches!(new.kind, NewKind::SymbolicLink(_)) {
            return Ok(without_lists(permissions));
        }
        let Some(default) = self.default_list(parent)? else {
            return Ok(without_lists(permissions & !(new.umask & 0o777)));
        };
        let is_directory = new.kind == NewKind::Directory;
        let stored = is_directory.then(|| default.to_disk());
        let list = default.limited_to(permissions);
        Ok(InheritedAccess {
            permissions: permissions & !0o777 | list.permissions(),
            access: (!list.is_minimal()).then(|| list.to_disk()),
            default: stored,
        })
    }

    fn default_list(&self, parent: &InodeState) -> Result<Option<acl::Acl>> {
        let name = acl::default_name();
        let lists = self.xattr_lists(parent)?;
        let found = lists.inode.get(&name).or_else(|| lists.block.get(&name));
        match found {
            Some(XattrValue::Bytes(stored)) => acl::read(stored),
            _ => Ok(None),
        }
    }

    /// Gives a new inode its lists, in a transaction that has [`TAKE_CREDITS`](super::TAKE_CREDITS)
    /// left.
    pub(crate) fn inherit_access(
        &self,
        transaction: &Transaction<'_>,
        cell: &Arc<InodeCell>,
        inherited: &InheritedAccess,
    ) -> Result<()> {
        let lists = [
            (acl::access_name(), &inherited.access),
            (acl::default_name(), &inherited.default),
        ];
        let before = Lists::default();
        let mut after = before.clone();
        for (name, list) in &lists {
            if let Some(list) = list {
                let state = crate::sync::read(&cell.state);
                after = self.placed(&state, &after, name, Some(list))?;
            }
        }
        if after == before {
            return Ok(());
        }
        transaction.mark_ineligible();
        self.write_xattr_lists(transaction, cell, &before, &after)
    }
}
