//! Names of the reference.

use std::collections::BTreeMap;

use extant_ext4::{DeviceNumber, FileType, InodeFlags, RenameMode};
use extant_space::ErrorKind;

use super::{Body, Directory, FileData, Id, Object, ROOT, Reference, Result};
use crate::operation::{Made, Name, Owner, Place};

const SETGID: u16 = 0o2000;
const NAME_BYTES_MAX: usize = 255;

impl Reference {
    pub(super) fn create(&mut self, name: &Name, made: &Made, owner: Owner) -> Result<()> {
        let parent = self.find(&name.directory)?;
        if self.lookup(parent, &name.name)?.is_some() {
            return Err(ErrorKind::AlreadyExists);
        }
        self.check_addable(parent)?;
        let block_bytes = self.format.block_bytes as usize;
        if let Made::Link { length, .. } = made
            && *length >= block_bytes
        {
            return Err(ErrorKind::NameTooLong);
        }
        let object = self.new_object(parent, made, owner);
        let is_directory = object.is_directory();
        let id = self.add(object);
        self.insert(parent, &name.name, id);
        if is_directory {
            self.object_mut(parent).links += 1;
        }
        Ok(())
    }

    pub(super) fn create_unnamed(
        &mut self,
        near: &Place,
        owner: Owner,
        handle: usize,
    ) -> Result<()> {
        let parent = self.find(near)?;
        if !self.object(parent).is_directory() {
            return Err(ErrorKind::NotDirectory);
        }
        self.check_addable(parent)?;
        let mut object = self.new_object(parent, &Made::Regular, owner);
        object.links = 0;
        let id = self.add(object);
        self.hold(id, handle);
        Ok(())
    }

    fn new_object(&self, parent: Id, made: &Made, owner: Owner) -> Object {
        let body = match made {
            Made::Regular => Body::Regular(FileData::new(self.format)),
            Made::Directory => Body::Directory(Directory {
                names: BTreeMap::new(),
                parent,
            }),
            Made::Link { .. } => Body::Link(made.target()),
            Made::Fifo => Body::Other(FileType::Fifo, None),
            Made::Socket => Body::Other(FileType::Socket, None),
            Made::Character(device) => Body::Other(FileType::CharacterDevice, Some(*device)),
            Made::Block(device) => Body::Other(FileType::BlockDevice, Some(*device)),
        };
        let above = self.object(parent);
        let mut object = Object::new(body, owner.permissions);
        object.inherit_access(above, owner.umask);
        object.uid = owner.uid;
        object.gid = owner.gid;
        if above.permissions & SETGID != 0 {
            object.gid = above.gid;
            if object.is_directory() {
                object.permissions |= SETGID;
            }
        }
        let any = InodeFlags::NODUMP | InodeFlags::NOATIME;
        let inherited = match object.body {
            Body::Directory(_) => {
                any | InodeFlags::SYNC | InodeFlags::DIRSYNC | InodeFlags::PROJINHERIT
            }
            Body::Regular(_) => any | InodeFlags::SYNC,
            _ => any,
        };
        object.flags = above.flags & inherited;
        object
    }

    pub(super) fn link(&mut self, place: &Place, name: &Name) -> Result<()> {
        let id = self.find(place)?;
        let parent = self.find(&name.directory)?;
        if self.lookup(parent, &name.name)?.is_some() {
            return Err(ErrorKind::AlreadyExists);
        }
        self.check_addable(parent)?;
        if self.object(id).is_directory() {
            return Err(ErrorKind::Immutable);
        }
        self.object(id).check_mutable()?;
        self.object_mut(id).links += 1;
        self.insert(parent, &name.name, id);
        Ok(())
    }

    pub(super) fn unlink(&mut self, name: &Name) -> Result<()> {
        let (parent, id) = self.existing(name)?;
        self.check_takeable(parent, id)?;
        if self.object(id).is_directory() {
            return Err(ErrorKind::IsDirectory);
        }
        self.remove(parent, &name.name);
        self.object_mut(id).links -= 1;
        self.drop_unused();
        Ok(())
    }

    pub(super) fn remove_directory(&mut self, name: &Name) -> Result<()> {
        let (parent, id) = self.existing(name)?;
        self.check_takeable(parent, id)?;
        self.check_empty(id)?;
        self.remove(parent, &name.name);
        self.bury(parent, id);
        Ok(())
    }

    /// A directory has lost its name.
    fn bury(&mut self, parent: Id, id: Id) {
        self.object_mut(id).links = 0;
        self.object_mut(parent).links -= 1;
        self.drop_unused();
    }

    pub(super) fn rename(&mut self, from: &Name, to: &Name, mode: RenameMode) -> Result<()> {
        let from_parent = self.find(&from.directory)?;
        let to_parent = self.find(&to.directory)?;
        for parent in [from_parent, to_parent] {
            if !self.object(parent).is_directory() {
                return Err(ErrorKind::NotDirectory);
            }
        }
        // The kernel remembers the former place of a deleted directory; here that is nowhere.
        if self.object(from_parent).links == 0 || self.object(to_parent).links == 0 {
            return Err(ErrorKind::NotFound);
        }
        let source = self
            .lookup(from_parent, &from.name)?
            .ok_or(ErrorKind::NotFound)?;
        let target = self.lookup(to_parent, &to.name)?;
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(ErrorKind::AlreadyExists),
            (None, RenameMode::Exchange) => return Err(ErrorKind::NotFound),
            _ => {}
        }
        if self.is_above(source, to_parent) {
            return Err(ErrorKind::InvalidArgument);
        }
        if target.is_some_and(|target| self.is_above(target, from_parent)) {
            return Err(match mode {
                RenameMode::Exchange => ErrorKind::InvalidArgument,
                _ => ErrorKind::NotEmpty,
            });
        }
        if target == Some(source) {
            return Ok(());
        }
        self.check_takeable(from_parent, source)?;
        match target {
            None => self.check_addable(to_parent)?,
            Some(target) => self.check_replaceable(source, to_parent, target, mode)?,
        }
        self.name_changed(from_parent, &from.name);
        self.name_changed(to_parent, &to.name);
        self.remove(from_parent, &from.name);
        match (target, mode) {
            (Some(target), RenameMode::Exchange) => {
                self.remove(to_parent, &to.name);
                self.move_in(to_parent, from_parent, &from.name, target);
            }
            (Some(target), _) => {
                self.remove(to_parent, &to.name);
                if self.object(target).is_directory() {
                    self.bury(to_parent, target)
                } else {
                    self.object_mut(target).links -= 1
                }
            }
            (None, _) => {}
        }
        self.move_in(from_parent, to_parent, &to.name, source);
        if let RenameMode::Whiteout { uid, gid } = mode {
            self.leave_whiteout(from_parent, &from.name, uid, gid);
        }
        self.drop_unused();
        Ok(())
    }

    fn leave_whiteout(&mut self, parent: Id, name: &[u8], uid: u32, gid: u32) {
        let made = Made::Character(DeviceNumber { major: 0, minor: 0 });
        let owner = Owner {
            permissions: 0,
            uid,
            gid,
            umask: 0,
        };
        let object = self.new_object(parent, &made, owner);
        let id = self.add(object);
        self.insert(parent, name, id);
    }

    fn check_replaceable(
        &self,
        source: Id,
        parent: Id,
        target: Id,
        mode: RenameMode,
    ) -> Result<()> {
        self.check_takeable(parent, target)?;
        if mode == RenameMode::Exchange {
            return Ok(());
        }
        match (
            self.object(source).is_directory(),
            self.object(target).is_directory(),
        ) {
            (true, false) => Err(ErrorKind::NotDirectory),
            (false, true) => Err(ErrorKind::IsDirectory),
            (true, true) => self.check_empty(target),
            (false, false) => Ok(()),
        }
    }

    /// Gives an object a name that it takes along from another directory.
    fn move_in(&mut self, from: Id, to: Id, name: &[u8], id: Id) {
        if self.object(id).is_directory() && from != to {
            self.object_mut(from).links -= 1;
            self.object_mut(to).links += 1;
            self.directory_mut(id).parent = to;
        }
        self.insert(to, name, id);
    }

    /// Object that a name in a directory refers to.
    fn lookup(&self, directory: Id, name: &[u8]) -> Result<Option<Id>> {
        match &self.object(directory).body {
            Body::Directory(_) if name.len() > NAME_BYTES_MAX => Err(ErrorKind::NameTooLong),
            Body::Directory(directory) => Ok(directory.names.get(name).copied()),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    fn existing(&self, name: &Name) -> Result<(Id, Id)> {
        let parent = self.find(&name.directory)?;
        let id = self
            .lookup(parent, &name.name)?
            .ok_or(ErrorKind::NotFound)?;
        Ok((parent, id))
    }

    /// Whether a directory is `below` or an ancestor of it.
    fn is_above(&self, directory: Id, below: Id) -> bool {
        let mut at = below;
        loop {
            if at == directory {
                return true;
            }
            match &self.objects.get(&at).map(|object| &object.body) {
                Some(Body::Directory(body)) if at != ROOT => at = body.parent,
                _ => return false,
            }
        }
    }

    /// Refuses a directory that was removed.
    fn check_addable(&self, directory: Id) -> Result<()> {
        let object = self.object(directory);
        match (object.links, object.flags.contains(InodeFlags::IMMUTABLE)) {
            (0, _) => Err(ErrorKind::NotFound),
            (_, true) => Err(ErrorKind::Immutable),
            _ => Ok(()),
        }
    }

    /// Refuses a directory that gives no name away, and something that keeps its own.
    fn check_takeable(&self, directory: Id, id: Id) -> Result<()> {
        self.object(directory).check_mutable()?;
        self.object(id).check_mutable()
    }

    fn check_empty(&self, id: Id) -> Result<()> {
        match &self.object(id).body {
            Body::Directory(directory) if directory.names.is_empty() => Ok(()),
            Body::Directory(_) => Err(ErrorKind::NotEmpty),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    fn insert(&mut self, directory: Id, name: &[u8], id: Id) {
        self.name_changed(directory, name);
        self.directory_mut(directory)
            .names
            .insert(name.to_vec(), id);
        self.object_mut(directory).modified = None;
    }

    fn remove(&mut self, directory: Id, name: &[u8]) {
        self.name_changed(directory, name);
        self.directory_mut(directory).names.remove(name);
        self.object_mut(directory).modified = None;
    }
}
