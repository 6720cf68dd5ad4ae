//! Steps that are about attributes.

use extant_ext4::{FileType, InodeFlags, Timestamp, XattrMode};

use super::{Dialect, Generator};
use crate::operation::{Change, Data, Operation, Place, Value};
use crate::reference::{ACL_ACCESS, ACL_DEFAULT, Reference};

const USER_OBJ: u16 = 1;
const USER: u16 = 2;
const GROUP_OBJ: u16 = 4;
const GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHER: u16 = 32;

/// Takes all flags away.
pub fn unfix(place: Place) -> Operation {
    Operation::SetAttributes(
        place,
        Change {
            flags: Some(0),
            ..Change::default()
        },
    )
}

impl Generator {
    pub(super) fn attribute_step(&mut self, reference: &Reference) -> Operation {
        let place = self.place(reference);
        let file_type = reference
            .find(&place)
            .map_or(FileType::Regular, |id| reference.object(id).file_type());
        match self.rng.u32(0..10) {
            0..4 => {
                let change = self.change(file_type);
                Operation::SetAttributes(place, change)
            }
            4..8 => {
                let (name, value) = self.xattr(reference, file_type);
                let is_list = matches!(value, Value::Acl(_));
                let mode = match self.rng.u32(0..6) {
                    0 if !is_list => XattrMode::Create,
                    1 if !is_list => XattrMode::Replace,
                    _ => XattrMode::Set,
                };
                Operation::SetXattr(place, name, value, mode)
            }
            _ => {
                let (mut name, value) = self.xattr(reference, file_type);
                // The kernel takes away lists that are not there.
                if matches!(value, Value::Acl(_)) && self.dialect == Dialect::Kernel {
                    name = "trusted.absent".into();
                }
                Operation::RemoveXattr(place, name)
            }
        }
    }

    fn change(&mut self, file_type: FileType) -> Change {
        let mut change = Change::default();
        let is_link = file_type == FileType::SymbolicLink && self.dialect == Dialect::Kernel;
        if self.chance(40) && !is_link {
            change.permissions = Some(self.rng.u16(0..0o10000));
        }
        if self.chance(30) {
            change.uid = Some(self.rng.u32(0..u32::MAX));
            change.gid = Some(self.rng.u32(0..70_000));
        }
        if self.chance(30) {
            change.modified = Some(Timestamp {
                seconds: self.rng.i64(-1000..i64::from(i32::MAX)),
                nanoseconds: self.rng.u32(0..1_000_000_000),
            });
        }
        let is_plain = matches!(file_type, FileType::Regular | FileType::Directory);
        let has_flags = is_plain || self.dialect == Dialect::Engine;
        if self.chance(40) && has_flags {
            change.flags = Some(self.flags(file_type).bits());
        }
        change
    }

    fn flags(&mut self, file_type: FileType) -> InodeFlags {
        let mut flags = InodeFlags::empty();
        let mut often = vec![InodeFlags::NODUMP, InodeFlags::NOATIME, InodeFlags::SYNC];
        let is_wrong = self.dialect == Dialect::Engine && self.chance(5);
        if file_type == FileType::Directory || is_wrong {
            often.extend([InodeFlags::DIRSYNC, InodeFlags::TOPDIR]);
            if self.dialect == Dialect::Engine {
                often.push(InodeFlags::PROJINHERIT);
            }
        }
        for flag in often {
            flags.set(flag, self.chance(20));
        }
        if matches!(file_type, FileType::Regular | FileType::Directory) || is_wrong {
            flags.set(InodeFlags::IMMUTABLE, self.chance(12));
            flags.set(InodeFlags::APPEND, self.chance(8));
        }
        flags
    }

    fn xattr(&mut self, reference: &Reference, file_type: FileType) -> (String, Value) {
        let number = self.rng.u32(0..5);
        let kind = self.rng.u32(0..20);
        let is_plain = matches!(file_type, FileType::Regular | FileType::Directory);
        let takes_all = is_plain || self.dialect == Dialect::Engine;
        match kind {
            0..3 if takes_all => return (ACL_ACCESS.into(), Value::Acl(self.list())),
            3 if file_type == FileType::Directory => {
                return (ACL_DEFAULT.into(), Value::Acl(self.list()));
            }
            _ => {}
        }
        let name = match kind {
            4..7 => format!("security.{number}"),
            7 if self.dialect == Dialect::Engine => "user.".into(),
            8 => format!("trusted.{}", "n".repeat(240)),
            9..16 if takes_all => format!("user.{number}"),
            _ => format!("trusted.{number}"),
        };
        let block = reference.format.block_bytes as usize;
        let length = match self.rng.u32(0..40) {
            0 => 0,
            1..20 => self.rng.usize(1..40),
            20..32 => self.rng.usize(1..block / 4),
            39 if self.dialect == Dialect::Engine => 65_537,
            _ => self.rng.usize(1..block + 20),
        };
        let seed = self.rng.u8(..);
        (name, Value::Data(Data { length, seed }))
    }

    /// A list; some make no sense.
    fn list(&mut self) -> Vec<(u16, u16)> {
        let named = self.rng.usize(0..4);
        let mut tags = vec![USER_OBJ];
        tags.extend(vec![USER; named]);
        tags.push(GROUP_OBJ);
        let groups = if named == 0 { 0 } else { self.rng.usize(0..3) };
        tags.extend(vec![GROUP; groups]);
        if (named > 0) != self.chance(5) {
            tags.push(MASK);
        }
        tags.push(OTHER);
        if self.chance(5) {
            tags.remove(0);
        }
        tags.into_iter()
            .map(|tag| (tag, self.rng.u16(0..8)))
            .collect()
    }
}
