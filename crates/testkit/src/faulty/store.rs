//! The tree: files and directories in memory, and the free space.
//!
//! An inode lives as long as a name or the kernel refers to it, so a removed file stays
//! usable while it is open.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::time::SystemTime;

use extant_space::ByteRange;
use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags};

use super::blocks::{BLOCK, Blocks};

pub(super) type Result<T> = std::result::Result<T, Errno>;

#[derive(Debug)]
pub(super) enum Kind {
    File(Blocks),
    Directory(BTreeMap<OsString, INodeNo>),
}

#[derive(Debug)]
pub(super) struct Inode {
    pub(super) kind: Kind,
    pub(super) perm: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: SystemTime,
    names: u32,
    lookups: u64,
}

#[derive(Debug)]
pub(super) struct Store {
    inodes: HashMap<INodeNo, Inode>,
    next: u64,
    pub(super) capacity_blocks: u64,
}

impl Store {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let mut store = Self {
            inodes: HashMap::new(),
            next: INodeNo::ROOT.0,
            capacity_blocks: capacity_bytes / BLOCK,
        };
        let root = store.add(Kind::Directory(BTreeMap::new()), 0o755, (0, 0));
        assert_eq!(root, INodeNo::ROOT);
        store
    }

    pub(super) fn get(&mut self, number: INodeNo) -> Result<&mut Inode> {
        self.inodes.get_mut(&number).ok_or(Errno::ENOENT)
    }

    pub(super) fn file(&mut self, number: INodeNo) -> Result<&mut Blocks> {
        match &mut self.get(number)?.kind {
            Kind::File(blocks) => Ok(blocks),
            Kind::Directory(_) => Err(Errno::EISDIR),
        }
    }

    pub(super) fn names(&mut self, directory: INodeNo) -> Result<&mut BTreeMap<OsString, INodeNo>> {
        match &mut self.get(directory)?.kind {
            Kind::Directory(names) => Ok(names),
            Kind::File(_) => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn free_blocks(&self) -> u64 {
        let used: u64 = self.inodes.values().map(Inode::blocks).sum();
        self.capacity_blocks.saturating_sub(used)
    }

    /// `ENOSPC` where `range` of a file needs more blocks than there are.
    pub(super) fn check_room(&mut self, number: INodeNo, range: ByteRange) -> Result<()> {
        let missing = self.file(number)?.missing(range);
        if missing > 0 && missing > self.free_blocks() {
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// Finds a name and counts that the kernel knows its inode.
    pub(super) fn lookup(&mut self, directory: INodeNo, name: &OsStr) -> Result<FileAttr> {
        let number = *self.names(directory)?.get(name).ok_or(Errno::ENOENT)?;
        self.get(number)?.lookups += 1;
        self.attributes(number)
    }

    /// The kernel forgets `count` lookups.
    pub(super) fn forget(&mut self, number: INodeNo, count: u64) {
        if let Ok(inode) = self.get(number) {
            inode.lookups = inode.lookups.saturating_sub(count);
            self.drop_unused(number);
        }
    }

    /// Creates a file or directory; the kernel gets a lookup reference to it.
    pub(super) fn create(
        &mut self,
        directory: INodeNo,
        name: &OsStr,
        kind: Kind,
        mode: u32,
        owner: (u32, u32),
    ) -> Result<FileAttr> {
        if self.names(directory)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let number = self.add(kind, mode, owner);
        self.names(directory)?.insert(name.to_owned(), number);
        self.lookup(directory, name)
    }

    /// Removes the name of a file (`directories` false) or of an empty directory (true).
    pub(super) fn remove(
        &mut self,
        directory: INodeNo,
        name: &OsStr,
        directories: bool,
    ) -> Result<()> {
        let number = *self.names(directory)?.get(name).ok_or(Errno::ENOENT)?;
        match (&self.get(number)?.kind, directories) {
            (Kind::Directory(names), true) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
            (Kind::Directory(_), false) => return Err(Errno::EISDIR),
            (Kind::File(_), true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        self.names(directory)?.remove(name);
        self.get(number)?.names -= 1;
        self.drop_unused(number);
        Ok(())
    }

    pub(super) fn rename(
        &mut self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<()> {
        let moved = *self.names(from.0)?.get(from.1).ok_or(Errno::ENOENT)?;
        let there = self.names(to.0)?.get(to.1).copied();
        if flags == RenameFlags::RENAME_EXCHANGE {
            let there = there.ok_or(Errno::ENOENT)?;
            self.names(from.0)?.insert(from.1.to_owned(), there);
        } else if flags.is_empty() || flags == RenameFlags::RENAME_NOREPLACE {
            match there {
                Some(_) if !flags.is_empty() => return Err(Errno::EEXIST),
                Some(there) if there == moved => return Ok(()),
                Some(_) => {
                    let is_directory = matches!(self.get(moved)?.kind, Kind::Directory(_));
                    self.remove(to.0, to.1, is_directory)?;
                }
                None => {}
            }
            self.names(from.0)?.remove(from.1);
        } else {
            return Err(Errno::EINVAL);
        }
        self.names(to.0)?.insert(to.1.to_owned(), moved);
        Ok(())
    }

    pub(super) fn attributes(&mut self, number: INodeNo) -> Result<FileAttr> {
        let inode = self.get(number)?;
        let (kind, size) = match &inode.kind {
            Kind::File(blocks) => (FileType::RegularFile, blocks.size()),
            Kind::Directory(names) => (FileType::Directory, names.len() as u64),
        };
        Ok(FileAttr {
            ino: number,
            size,
            blocks: inode.blocks() * (BLOCK / 512),
            atime: inode.mtime,
            mtime: inode.mtime,
            ctime: inode.mtime,
            crtime: inode.mtime,
            kind,
            perm: inode.perm,
            nlink: inode.names,
            uid: inode.uid,
            gid: inode.gid,
            rdev: 0,
            blksize: BLOCK as u32,
            flags: 0,
        })
    }

    fn add(&mut self, kind: Kind, mode: u32, (uid, gid): (u32, u32)) -> INodeNo {
        let number = INodeNo(self.next);
        self.next += 1;
        let inode = Inode {
            kind,
            perm: (mode & 0o7777) as u16,
            uid,
            gid,
            mtime: SystemTime::now(),
            names: 1,
            lookups: 0,
        };
        self.inodes.insert(number, inode);
        number
    }

    fn drop_unused(&mut self, number: INodeNo) {
        let inode = &self.inodes[&number];
        if inode.names == 0 && inode.lookups == 0 {
            self.inodes.remove(&number);
        }
    }
}

impl Inode {
    fn blocks(&self) -> u64 {
        match &self.kind {
            Kind::File(blocks) => blocks.count(),
            Kind::Directory(_) => 0,
        }
    }
}
