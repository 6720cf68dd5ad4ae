//! Extended attributes.
//!
//! The kernel checks permissions. This module checks the names that ext4 supports, and lists
//! `trusted.` for root alone.

use extant_ext4::{AttributeChange, FileType, XattrMode};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::Volume;
use super::caller::is_privileged;
use super::nodes::Capability;
use super::privileges::CAPABILITY;
use extant_fuse::operations::{NodeId, Privileges, Request, Result};

const SETGID: u16 = 0o2000;
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
const PREFIXES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

impl Volume {
    pub(super) fn xattr_value(&self, node: NodeId, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        check_name(name)?;
        self.check_running()?;
        let known = self.nodes.get(node)?;
        *value = self.reply_errno(known.node().xattr(name))?;
        if is_list(name) {
            self.options.owners.exchange_in_list(value);
        }
        Ok(())
    }

    pub(super) fn xattr_names(
        &self,
        request: &Request<'_>,
        node: NodeId,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let known = self.nodes.get(node)?;
        let names = self.reply_errno(known.node().xattr_names())?;
        let is_shown = |name: &[u8]| {
            check_name(name).is_ok()
                && (is_privileged(request.caller) || !name.starts_with(b"trusted."))
        };
        names
            .iter()
            .filter(|name| is_shown(name))
            .for_each(|name| visit(name));
        Ok(())
    }

    pub(super) fn set_xattr_value(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        privileges: Privileges,
    ) -> Result<()> {
        check_name(name)?;
        let mode = match flags {
            flags if flags.is_empty() => XattrMode::Set,
            XattrFlags::CREATE => XattrMode::Create,
            XattrFlags::REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let known = self.nodes.get(node)?;
        if name == DEFAULT_LIST && known.node().file_type() != FileType::Directory {
            return Err(Errno::ACCESS);
        }
        let stored;
        let mut given = value;
        if is_list(name) {
            let mut list = value.to_vec();
            self.options.owners.exchange_in_list(&mut list);
            stored = list;
            given = &stored;
        }
        if name == CAPABILITY {
            known.note_capability(Capability::Some);
        }
        self.reply_errno(known.node().set_xattr(name, given, mode))?;
        if name == ACCESS_LIST && privileges == Privileges::Drop {
            let permissions = known.node().attributes().permissions;
            if permissions & SETGID != 0 {
                self.reply_errno(known.node().set_attributes(&AttributeChange {
                    permissions: Some(permissions & !SETGID),
                    ..AttributeChange::default()
                }))?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_xattr_value(&self, node: NodeId, name: &[u8]) -> Result<()> {
        check_name(name)?;
        let known = self.nodes.get(node)?;
        match self.reply_errno(known.node().remove_xattr(name)) {
            // As for chmod, the absence of the list is a success.
            Err(Errno::NODATA) if is_list(name) => Ok(()),
            removed => removed,
        }
    }
}

fn is_list(name: &[u8]) -> bool {
    name == ACCESS_LIST || name == DEFAULT_LIST
}

/// Rejects names that ext4 does not support.
fn check_name(name: &[u8]) -> Result<()> {
    if is_list(name) {
        return Ok(());
    }
    match PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix))
    {
        Some([]) => Err(Errno::INVAL),
        Some(_) => Ok(()),
        None => Err(Errno::OPNOTSUPP),
    }
}
