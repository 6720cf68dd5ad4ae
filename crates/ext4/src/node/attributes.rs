//! Attributes of an inode: `stat` and its changes.

use extant_ondisk::ext4::InodeNumber;
use extant_ondisk::ext4::inode::{DeviceNumber, FileType, InodeFlags, Mode, TimeField, Timestamp};
use extant_space::{Error, ErrorKind, Result};

use super::Node;
use crate::sync::{read, write};
use crate::transaction::INODE_CREDITS;
use crate::xattr;

/// Attributes of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The inode's number.
    pub inode: InodeNumber,
    /// The type of the file.
    pub file_type: FileType,
    /// The lowest 12 bits of the mode.
    pub permissions: u16,
    /// Names; of a directory also those in it. 1 for a directory that has too many to count.
    pub links: u16,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of data.
    pub size_bytes: u64,
    /// Bytes on the device, with metadata of the file's own.
    pub allocated_bytes: u64,
    /// Of a device file.
    pub device: Option<DeviceNumber>,
    /// When data was last read.
    pub accessed: Timestamp,
    /// When data was last changed.
    pub modified: Timestamp,
    /// When data or attributes were last changed.
    pub changed: Timestamp,
    /// Time of creation, if the inode has room for it.
    pub created: Option<Timestamp>,
    /// Its flags.
    pub flags: InodeFlags,
    /// Distinguishes files that had the same number.
    pub generation: u32,
}

/// Attributes to change; `None` leaves one unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeChange {
    /// The lowest 12 bits of the mode.
    pub permissions: Option<u16>,
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// When data was last read.
    pub accessed: Option<Timestamp>,
    /// When data was last changed.
    pub modified: Option<Timestamp>,
    /// The origin of these two.
    pub times: Times,
    /// When data or attributes were last changed; without it, that is now.
    pub changed: Option<Timestamp>,
    /// The flags of `chattr`: NODUMP, NOATIME; of regular files and directories SYNC, IMMUTABLE,
    /// APPEND; of directories DIRSYNC, TOPDIR, PROJINHERIT. The others are unchanged.
    pub flags: Option<InodeFlags>,
}

/// The origin of the times in an [`AttributeChange`], which append-only files distinguish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Given by the caller.
    #[default]
    Chosen,
    /// The present time, as by `touch` without a time.
    Present,
}

/// Flags that users set.
const USER_FLAGS: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT);

/// The flags that a file of a type can have, as in the kernel.
fn settable_flags(file_type: FileType) -> InodeFlags {
    let of_directories = InodeFlags::DIRSYNC | InodeFlags::TOPDIR | InodeFlags::PROJINHERIT;
    match file_type {
        FileType::Directory => USER_FLAGS,
        FileType::Regular => USER_FLAGS.difference(of_directories),
        _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
    }
}

impl AttributeChange {
    /// Whether an inode with `flags` permits it, by the rules of the kernel (`may_setattr`,
    /// `ext4_ioctl_check_immutable`): an immutable inode allows no change, not even of other flags
    /// while this one is set; of an append-only one the times may be set to the present, and flags.
    /// Flags removed by the same change do not count.
    fn is_allowed(&self, flags: InodeFlags) -> bool {
        let flags = flags & USER_FLAGS;
        let after = self.flags.map_or(flags, |flags| flags & USER_FLAGS);
        let stays = flags & after;
        let has_times = self.accessed.is_some() || self.modified.is_some();
        let others = self.permissions.is_some()
            || self.uid.is_some()
            || self.gid.is_some()
            || has_times && self.times == Times::Chosen;
        if stays.contains(InodeFlags::IMMUTABLE) {
            !others && !has_times && after == flags
        } else {
            !others || !stays.contains(InodeFlags::APPEND)
        }
    }
}

impl Node {
    /// The inode's attributes.
    pub fn attributes(&self) -> Attributes {
        let layout = &self.engine.fs.layout;
        let state = read(&self.cell.state);
        let inode = &state.inode;
        let time = |field| inode.time(field).unwrap_or_default();
        Attributes {
            inode: self.cell.number,
            file_type: inode
                .mode()
                .file_type()
                .expect("an inode without a type is not opened"),
            permissions: inode.mode().permissions(),
            links: inode.links(),
            uid: inode.uid(),
            gid: inode.gid(),
            size_bytes: inode.size_bytes(layout),
            allocated_bytes: inode.sectors(layout) << 9,
            device: inode.device(),
            accessed: time(TimeField::Access),
            modified: time(TimeField::Modification),
            changed: time(TimeField::Change),
            created: inode.time(TimeField::Creation),
            flags: inode.flags(),
            generation: inode.generation(),
        }
    }

    /// Changes attributes, and with them ctime. New permissions change an access control list as
    /// well.
    ///
    /// # Errors
    /// `Unsupported` for flags that a file of this type cannot have; `Immutable` by the rules of
    /// the kernel, unless the flag is removed at the same time; `ReadOnly`; `NoSpace` for a list
    /// that was shared.
    pub fn set_attributes(&self, change: &AttributeChange) -> Result<()> {
        let engine = &self.engine;
        engine.record_corruption(engine.with_space(|| self.set_attributes_now(change)))
    }

    fn set_attributes_now(&self, change: &AttributeChange) -> Result<()> {
        let settable = settable_flags(self.file_type());
        if let Some(flags) = change.flags
            && !settable.contains(flags & USER_FLAGS)
        {
            let refused = (flags & USER_FLAGS).difference(settable);
            return Err(Error::new(ErrorKind::Unsupported).detail(format!(
                "flags that a file of this type cannot have: {refused:?}"
            )));
        }
        if !change.is_allowed(read(&self.cell.state).inode.flags()) {
            return Err(Error::new(ErrorKind::Immutable));
        }
        let fs = &self.engine.fs;
        // A list may have to change together with the permissions.
        let _alone = change.permissions.map(|_| write(&self.cell.operation));
        let list = match change.permissions {
            Some(permissions) => fs.change_access_list(&self.cell, permissions)?,
            None => None,
        };
        let transaction = self.engine.begin(INODE_CREDITS + xattr::CHANGE_CREDITS)?;
        if let Some(list) = &list {
            fs.change_xattrs(&transaction, &self.cell, list)?;
        }
        let changed = change.changed.unwrap_or_else(|| fs.clock.now());
        self.cell.change(&transaction, |state| {
            let inode = &mut state.inode;
            if let Some(permissions) = change.permissions
                && let Some(file_type) = inode.mode().file_type()
            {
                inode.set_mode(Mode::new(file_type, permissions & 0o7777));
            }
            if let Some(uid) = change.uid {
                inode.set_uid(uid);
            }
            if let Some(gid) = change.gid {
                inode.set_gid(gid);
            }
            if let Some(time) = change.accessed {
                inode.set_time(TimeField::Access, time);
            }
            if let Some(time) = change.modified {
                inode.set_time(TimeField::Modification, time);
            }
            if let Some(flags) = change.flags {
                let others = inode.flags().difference(USER_FLAGS);
                inode.set_flags(others | (flags & USER_FLAGS));
            }
            inode.set_time(TimeField::Change, changed);
        });
        Ok(())
    }
}
