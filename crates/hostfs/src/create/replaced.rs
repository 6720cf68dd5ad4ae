//! The attributes that a new file inherits from the file it replaces: owner, permissions, ACL,
//! label and other attributes.
//!
//! The result is as if the old file had been written in place: set-ID bits and file capabilities
//! are cleared, as by a write. Attributes that this user may not set are left out and reported. The
//! new file then grants no process more access than the old one: a group other than the old one
//! gets the permissions of others.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use extant_space::Result;
use rustix::fs::{FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags};
use rustix::io::Errno;

use crate::destination::Destination;
use crate::file::HostFile;

/// Attributes of the old contents, which the new file does not have: privileges granted to them,
/// and proofs that they are unchanged.
const OF_CONTENTS: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// Largest value and largest list of names in Linux.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// The file that has the name.
pub(super) struct Replaced {
    file: OwnedFd,
    stat: Stat,
}

impl Replaced {
    /// The file that has the name now; `None` if there is none.
    pub(super) fn read(destination: &Destination) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = &destination.directory;
        let file = rustix::fs::openat(directory, &destination.name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        is_file.then_some(Self { file, stat })
    }

    /// Copies the attributes of the old file to `to`, with `mode` if given; returns a line for each
    /// one left out.
    pub(super) fn hand_over(&self, to: &HostFile, mode: Option<Mode>) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        // While the new file is this user's own.
        let mut left_out = self.hand_over_attributes(to.as_file());
        let fail = |errno: Errno, operation| to.error(errno).during(operation);
        let now = rustix::fs::fstat(to.as_file()).map_err(|errno| fail(errno, "stat"))?;
        let (uid, gid) = (self.stat.st_uid, self.stat.st_gid);
        let mut has_group = now.st_gid == gid;
        if (now.st_uid, now.st_gid) != (uid, gid) {
            let (owner, group) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
            let chown = |owner, group| rustix::fs::fchown(to.as_file(), owner, group);
            match chown(owner, group) {
                Ok(()) => has_group = true,
                Err(_) => {
                    has_group = has_group || chown(None, group).is_ok();
                    if now.st_uid != uid {
                        left_out.push(format!("owner {uid}"));
                    }
                    if !has_group {
                        left_out.push(format!("group {gid}"));
                    }
                }
            }
        }
        let old = self.stat.st_mode & 0o777;
        let mode = mode.unwrap_or(Mode::from_raw_mode(if has_group {
            old
        } else {
            // The bits of the group also limit the users that an ACL names.
            old & (0o707 | (old & 0o7) << 3)
        }));
        rustix::fs::fchmod(to.as_file(), mode).map_err(|errno| fail(errno, "set mode"))?;
        if !left_out.is_empty() {
            notes.push(format!(
                "the replaced file's {} could not be kept",
                left_out.join(", ")
            ));
        }
        Ok(notes)
    }

    /// Returns the names of attributes that could not be copied.
    fn hand_over_attributes(&self, to: &File) -> Vec<String> {
        // Attributes cannot be read through a descriptor that is for the path alone.
        let path = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
        let mut names = vec![0; XATTR_BYTES_MAX];
        let Ok(length) = rustix::fs::listxattr(&path, &mut names) else {
            return Vec::new();
        };
        let mut left_out = Vec::new();
        let mut value = vec![0; XATTR_BYTES_MAX];
        for name in names[..length].split(|&byte| byte == 0) {
            let is_system = name.starts_with(b"system.") && name != ACCESS_LIST;
            if name.is_empty() || is_system || OF_CONTENTS.contains(&name) {
                continue;
            }
            let name = CString::new(name).expect("split at NULs");
            let read = rustix::fs::getxattr(&path, &name, &mut value[..]);
            let done = read.and_then(|length| {
                let value = &value[..length];
                let mut own = vec![0; length + 1];
                // A label is there from the start, and mostly the same.
                match rustix::fs::fgetxattr(to, &name, &mut own[..]) {
                    Ok(length) if own[..length] == *value => Ok(()),
                    _ => rustix::fs::fsetxattr(to, &name, value, XattrFlags::empty()),
                }
            });
            if done.is_err() {
                left_out.push(format!("attribute {}", name.to_string_lossy()));
            }
        }
        left_out
    }
}
