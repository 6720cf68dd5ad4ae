//! Privileges of a program file, which it loses when it is written to.

use extant_ondisk::ext4::inode::{FileType, Mode, TimeField};
use extant_space::Result;

use super::Node;
use crate::sync::{read, write};
use crate::transaction::INODE_CREDITS;
use crate::xattr;

const SETUID: u16 = 0o4000;
const SETGID: u16 = 0o2000;
const GROUP_EXECUTE: u16 = 0o0010;
const CAPABILITY: &[u8] = b"security.capability";

impl Node {
    /// Removes the privileges that a regular file loses when an unprivileged user changes its data
    /// or its owner: the setuid bit, the setgid bit if the group may execute it, and
    /// `security.capability`. Cheap if there is none of them.
    ///
    /// # Errors
    /// `Immutable`, `ReadOnly`; `Corrupt`; errors of the device.
    pub fn drop_privileges(&self) -> Result<()> {
        self.engine.record_corruption(self.drop_privileges_now())
    }

    fn drop_privileges_now(&self) -> Result<()> {
        let fs = &self.engine.fs;
        {
            let state = read(&self.cell.state);
            if state.inode.mode().file_type() != Some(FileType::Regular) {
                return Ok(());
            }
            let kept = kept(state.inode.mode());
            if kept == state.inode.mode() && fs.without_xattr(&state, CAPABILITY)?.is_none() {
                return Ok(());
            }
        }
        let _alone = write(&self.cell.operation);
        let change = {
            let state = read(&self.cell.state);
            state.check_growable()?;
            fs.without_xattr(&state, CAPABILITY)?
        };
        let transaction = self.engine.begin(INODE_CREDITS + xattr::CHANGE_CREDITS)?;
        if let Some(change) = &change {
            fs.change_xattrs(&transaction, &self.cell, change)?;
        }
        self.cell.change(&transaction, |state| {
            let mode = kept(state.inode.mode());
            state.inode.set_mode(mode);
            state.inode.set_time(TimeField::Change, fs.clock.now());
        });
        Ok(())
    }
}

/// A mode without privileges.
fn kept(mode: Mode) -> Mode {
    let permissions = mode.permissions();
    let lost = match permissions & GROUP_EXECUTE {
        0 => SETUID,
        _ => SETUID | SETGID,
    };
    match mode.file_type() {
        Some(file_type) => Mode::new(file_type, permissions & !lost),
        None => mode,
    }
}
