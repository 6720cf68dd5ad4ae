//! Privileges that a file loses when its data or its owner changes: setuid, setgid,
//! `security.capability`.
//!
//! The kernel flags requests of callers without `CAP_FSETID`; then all of them are dropped. It does
//! not flag `fallocate` and copies, where every user but root counts as such a caller. Capabilities
//! are dropped for every writer; the kernel removes them itself before cached writes, but not
//! before direct ones, so every write checks. The check is cheap, because the entry caches whether
//! there are any.

use extant_ext4::{AttributeChange, FileType};
use rustix::io::Errno;

use super::Volume;
use super::caller::{is_member, is_privileged};
use super::nodes::{Capability, NodeEntry, number};
use extant_fuse::operations::{Caller, Privileges, Result};

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
pub(super) const CAPABILITY: &[u8] = b"security.capability";

impl Volume {
    /// Before data changes.
    pub(super) fn before_change(
        &self,
        entry: &NodeEntry,
        caller: Caller,
        privileges: Privileges,
    ) -> Result<()> {
        match privileges {
            Privileges::Drop => self.drop_privileges(entry, caller),
            Privileges::Keep => self.drop_capability(entry),
        }
    }

    /// Before data changes by an operation for which the kernel does not report privileges.
    pub(super) fn before_change_by(&self, entry: &NodeEntry, caller: Caller) -> Result<()> {
        let privileges = if is_privileged(caller) {
            Privileges::Keep
        } else {
            Privileges::Drop
        };
        self.before_change(entry, caller, privileges)
    }

    /// Drops all of them.
    pub(super) fn drop_privileges(&self, entry: &NodeEntry, caller: Caller) -> Result<()> {
        let node = entry.node();
        let before = node.attributes().permissions;
        // As for every write of an unprivileged user.
        if before & (SETUID | SETGID) == 0 {
            return self.drop_capability(entry);
        }
        self.reply_errno(node.drop_privileges())?;
        entry.note_capability(Capability::None);
        let now = node.attributes();
        // The bit remains if the group may not execute the file, unless the caller is not in the
        // group.
        let has_setgid = now.permissions & SETGID != 0 && now.file_type == FileType::Regular;
        if has_setgid
            && !is_privileged(caller)
            && !is_member(caller, self.options.owners.groups.other(now.gid))
        {
            self.reply_errno(node.set_attributes(&AttributeChange {
                permissions: Some(now.permissions & !SETGID),
                ..AttributeChange::default()
            }))?;
        }
        if node.attributes().permissions != before {
            // Most replies carry no mode, so the kernel must be notified.
            self.attributes_changed(number(node))?;
        }
        Ok(())
    }

    fn drop_capability(&self, entry: &NodeEntry) -> Result<()> {
        let known = match entry.capability() {
            Capability::Unknown => match entry.node().xattr(CAPABILITY) {
                Ok(_) => Capability::Some,
                Err(_) => Capability::None,
            },
            known => known,
        };
        if known == Capability::Some {
            match self.reply_errno(entry.node().remove_xattr(CAPABILITY)) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => return Err(error),
            }
        }
        entry.note_capability(Capability::None);
        Ok(())
    }
}
