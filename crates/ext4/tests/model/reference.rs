//! A file system in memory, as simple as possible: the reference for the engine.
//!
//! Errors and their order follow the kernel: immutability, and the order of the checks.

#[path = "reference/attributes.rs"]
mod attributes;
#[path = "reference/data.rs"]
mod data;
#[path = "reference/file.rs"]
mod file;
#[path = "reference/names.rs"]
mod names;

use std::collections::BTreeMap;

use extant_ext4::{DeviceNumber, FileType, InodeFlags, Timestamp};
use extant_space::ErrorKind;

use crate::generate::unfix;
use crate::operation::{CURSORS, HANDLES, Listed, Operation, Outcome, Path, Place, Rest};
use crate::tree::{Seen, Tree, USER_FLAGS, settle_first_paths};

pub use attributes::{ACL_ACCESS, ACL_DEFAULT};
#[allow(unused_imports, reason = "the kernel test needs it")]
pub use data::clip_states;
pub use data::tooth_at;
pub use file::FileData;

/// An inode of the reference.
pub type Id = usize;

type Result<T, E = ErrorKind> = std::result::Result<T, E>;

/// Differences of the engine by its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub block_bytes: u32,
    /// Inodes of 128 bytes have no nanoseconds.
    pub inode_bytes: u32,
    /// Whether files have extents, and not block maps.
    pub has_extents: bool,
    /// Blocks of the largest file.
    pub file_blocks_max: u64,
    /// The same for a file with extents; `fallocate` uses this limit.
    pub extent_blocks_max: u64,
}

impl Format {
    /// Format made by mke2fs with `options`, which name the size of a block.
    pub fn of(options: &str) -> Self {
        let block_bytes = options
            .split_once("-b ")
            .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok())
            .expect("the size of a block");
        let is_ext3 = options.contains("ext3");
        let has_extents = !is_ext3 && !options.contains("^extents");
        let countable = if is_ext3 || options.contains("^huge_file") {
            // Limited by 32 bits of sectors.
            u64::from(u32::MAX) / (u64::from(block_bytes) / 512)
        } else {
            u32::MAX.into()
        };
        Self {
            block_bytes,
            has_extents,
            inode_bytes: if options.contains("-I 128") { 128 } else { 256 },
            file_blocks_max: match (has_extents, block_bytes) {
                (true, _) => countable,
                (false, 1024) => 12 + 256 + 256 * 256 + 256 * 256 * 256,
                (false, 2048) => 12 + 512 + 512 * 512 + 512 * 512 * 512,
                // Less than four levels reach, as indirect blocks are counted with the others.
                (false, _) => countable - (1 + 1 + 1024 + 1 + 511 + 523_263),
            },
            extent_blocks_max: countable,
        }
    }
}

/// The reference.
#[derive(Clone, Debug)]
pub struct Reference {
    pub format: Format,
    objects: BTreeMap<Id, Object>,
    next: Id,
    handles: [Option<Id>; HANDLES],
    cursors: [Option<Cursor>; CURSORS],
}

pub const ROOT: Id = 0;

/// A file of any kind.
#[derive(Clone, Debug)]
pub struct Object {
    pub body: Body,
    pub permissions: u16,
    pub uid: u32,
    pub gid: u32,
    pub flags: InodeFlags,
    pub links: u16,
    modified: Option<Timestamp>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Clone, Debug)]
pub enum Body {
    Directory(Directory),
    Regular(FileData),
    Link(Vec<u8>),
    Other(FileType, Option<DeviceNumber>),
}

#[derive(Clone, Debug)]
pub struct Directory {
    pub names: BTreeMap<Vec<u8>, Id>,
    parent: Id,
}

/// A listing on its way.
#[derive(Clone, Debug)]
struct Cursor {
    directory: Id,
    /// Names that were there all the time.
    steady: BTreeMap<Vec<u8>, Id>,
    given: BTreeMap<Vec<u8>, u32>,
}

impl Reference {
    /// With a root and `lost+found`, as mke2fs makes them.
    pub fn new(format: Format) -> Self {
        let mut new = Self::empty(format);
        let root = Body::Directory(Directory {
            names: BTreeMap::new(),
            parent: ROOT,
        });
        new.add(Object::new(root, 0o755));
        let body = Body::Directory(Directory {
            names: BTreeMap::new(),
            parent: ROOT,
        });
        let found = new.add(Object::new(body, 0o700));
        new.directory_mut(ROOT)
            .names
            .insert(b"lost+found".to_vec(), found);
        new.object_mut(ROOT).links = 3;
        new
    }

    /// With a root alone.
    pub fn bare(format: Format) -> Self {
        let mut new = Self::empty(format);
        let root = Body::Directory(Directory {
            names: BTreeMap::new(),
            parent: ROOT,
        });
        new.add(Object::new(root, 0o755));
        new
    }

    fn empty(format: Format) -> Self {
        Self {
            format,
            objects: BTreeMap::new(),
            next: ROOT,
            handles: Default::default(),
            cursors: Default::default(),
        }
    }

    /// Does one step. The result of a listing is verified by [`listed`](Self::listed).
    pub fn apply(&mut self, operation: &Operation) -> Outcome {
        let done = match operation {
            Operation::Create(name, made, owner) => self.create(name, made, *owner),
            Operation::CreateUnnamed(near, owner, handle) => {
                self.create_unnamed(near, *owner, *handle)
            }
            Operation::Link(place, name) => self.link(place, name),
            Operation::Unlink(name) => self.unlink(name),
            Operation::RemoveDirectory(name) => self.remove_directory(name),
            Operation::Rename(from, to, mode) => self.rename(from, to, *mode),
            Operation::Open(place, handle) => self.find(place).map(|id| self.hold(id, *handle)),
            Operation::Close(handle) => {
                self.let_go(*handle);
                Ok(())
            }
            Operation::Write(place, offset, data) => self.write(place, *offset, &data.bytes()),
            Operation::Read(place, offset, length) => {
                return self.read(place, *offset, *length).into();
            }
            Operation::Resize(place, size) => self.resize(place, *size),
            Operation::Fallocate(place, mode, range) => self.fallocate(place, *mode, *range),
            Operation::Comb(place, first, count, tooth) => self.comb(place, *first, *count, *tooth),
            Operation::Extents(place, range) => return self.extents(place, *range).into(),
            Operation::SetAttributes(place, change) => self.set_attributes(place, change),
            Operation::SetXattr(place, name, value, mode) => {
                self.set_xattr(place, name, value, *mode)
            }
            Operation::RemoveXattr(place, name) => self.remove_xattr(place, name),
            Operation::ListStart(place, cursor) => self.list_start(place, *cursor),
            Operation::ListNext(..) => Ok(()),
            Operation::SyncFile(place, _) => self.find(place).map(|_| ()),
            Operation::Sync => Ok(()),
            Operation::Reopen | Operation::Crash => {
                self.handles = Default::default();
                self.cursors = Default::default();
                self.drop_unused();
                Ok(())
            }
        };
        done.map(|()| Outcome::Done).into()
    }

    /// Everything that has a name.
    pub fn tree(&self) -> Tree {
        let mut tree = Tree::new();
        let mut first = BTreeMap::new();
        self.add_to_tree(ROOT, Path::default(), &mut tree, &mut first);
        settle_first_paths(&mut tree);
        tree
    }

    fn add_to_tree(&self, id: Id, path: Path, tree: &mut Tree, first: &mut BTreeMap<Id, Path>) {
        let same_as = first.entry(id).or_insert_with(|| path.clone()).clone();
        tree.insert(path.clone(), self.seen(id, same_as));
        if let Body::Directory(directory) = &self.object(id).body {
            for (name, &child) in &directory.names {
                self.add_to_tree(child, path.join(name), tree, first);
            }
        }
    }

    fn seen(&self, id: Id, same_as: Path) -> Seen {
        let object = self.object(id);
        let (device, target, data) = match &object.body {
            Body::Directory(_) => (None, None, None),
            Body::Regular(file) => (None, None, Some(file.content())),
            Body::Link(target) => (None, Some(target.clone()), None),
            Body::Other(_, device) => (*device, None, None),
        };
        Seen {
            file_type: object.file_type(),
            permissions: object.permissions,
            links: object.links,
            uid: object.uid,
            gid: object.gid,
            flags: object.flags & USER_FLAGS,
            device,
            target,
            xattrs: object.xattrs.clone(),
            modified: object.modified,
            data,
            same_as,
        }
    }

    /// Compares a listing; returns the contradiction, if any.
    pub fn listed(&mut self, cursor: usize, listed: &Listed) -> Option<String> {
        let cursor = self.cursors[cursor].as_mut()?;
        for (name, _) in &listed.names {
            if name == b"." || name == b".." {
                continue;
            }
            *cursor.given.entry(name.clone()).or_default() += 1;
            if cursor.given[name] > 1 && cursor.steady.contains_key(name) {
                return Some(format!("listed twice: {}", name.escape_ascii()));
            }
        }
        if listed.rest == Rest::Nothing {
            let missing = cursor
                .steady
                .keys()
                .find(|name| !cursor.given.contains_key(*name));
            return missing.map(|name| format!("not listed: {}", name.escape_ascii()));
        }
        None
    }

    /// Whether a listing can continue.
    pub fn is_listable(&self, cursor: usize) -> bool {
        let cursor = self.cursors[cursor].as_ref();
        cursor.is_some_and(|cursor| self.object(cursor.directory).links > 0)
    }

    fn list_start(&mut self, place: &Place, cursor: usize) -> Result<()> {
        self.cursors[cursor] = None;
        let directory = self.find(place)?;
        let Body::Directory(body) = &self.object(directory).body else {
            return Err(ErrorKind::NotDirectory);
        };
        let steady = body.names.clone();
        self.cursors[cursor] = Some(Cursor {
            directory,
            steady,
            given: BTreeMap::new(),
        });
        self.drop_unused();
        Ok(())
    }

    /// A name of a directory now stands for something else, or for nothing.
    fn name_changed(&mut self, directory: Id, name: &[u8]) {
        for cursor in self.cursors.iter_mut().flatten() {
            if cursor.directory == directory {
                cursor.steady.remove(name);
            }
        }
    }

    /// Blocks of data.
    pub fn data_blocks(&self) -> u64 {
        let count = |object: &Object| match &object.body {
            Body::Regular(file) => file.block_count(),
            _ => 1,
        };
        self.objects.values().map(count).sum()
    }

    /// Inodes, those without a name among them.
    pub fn object_count(&self) -> usize {
        self.objects.len()
    }

    pub fn object(&self, id: Id) -> &Object {
        &self.objects[&id]
    }

    /// Object at a place.
    pub fn find(&self, place: &Place) -> Result<Id> {
        let path = match place {
            Place::Handle(handle) => return self.handles[*handle].ok_or(ErrorKind::NotFound),
            Place::At(path) => path,
        };
        path.0
            .iter()
            .try_fold(ROOT, |at, name| match &self.object(at).body {
                Body::Directory(directory) => directory
                    .names
                    .get(name)
                    .copied()
                    .ok_or(ErrorKind::NotFound),
                _ => Err(ErrorKind::NotDirectory),
            })
    }

    /// Steps that free the blocks that larger files have past their ends.
    ///
    /// e2fsck 1.47.0 assumes that the last reference of an extent tree ends with the file. If a
    /// tree of two levels has references past that, as after an allocation that keeps the size, it
    /// reports errors in the kernel's trees too, and would destroy the file.
    pub fn steps_for_e2fsck(&self) -> Vec<Operation> {
        // With fewer, no tree has ever had two levels.
        const BLOCKS_MIN: u64 = 30;
        let mut steps = Vec::new();
        for (path, seen) in self.tree() {
            let place = Place::At(path);
            let Ok((_, file)) = self.file(&place) else {
                continue;
            };
            let end = file.size.div_ceil(self.format.block_bytes.into());
            if file.blocks_end() <= end || file.block_count() < BLOCKS_MIN {
                continue;
            }
            let size = file.size;
            if seen
                .flags
                .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
            {
                steps.push(unfix(place.clone()));
            }
            steps.push(Operation::Resize(place, size));
        }
        steps
    }

    /// The handles that are open.
    pub fn open_handles(&self) -> Vec<usize> {
        (0..HANDLES)
            .filter(|&handle| self.handles[handle].is_some())
            .collect()
    }

    /// The path of an immutable file, if there is one.
    pub fn find_fixed(&self) -> Option<Path> {
        let fixed = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if !self
            .objects
            .values()
            .any(|object| object.flags.intersects(fixed))
        {
            return None;
        }
        self.find_fixed_below(ROOT, &Path::default())
    }

    fn find_fixed_below(&self, id: Id, path: &Path) -> Option<Path> {
        let object = self.object(id);
        if object
            .flags
            .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
        {
            return Some(path.clone());
        }
        let Body::Directory(directory) = &object.body else {
            return None;
        };
        let mut below = directory.names.iter();
        below.find_map(|(name, &id)| self.find_fixed_below(id, &path.join(name)))
    }

    fn add(&mut self, object: Object) -> Id {
        let id = self.next;
        self.next += 1;
        self.objects.insert(id, object);
        id
    }

    fn object_mut(&mut self, id: Id) -> &mut Object {
        self.objects.get_mut(&id).expect("an object that is there")
    }

    fn directory_mut(&mut self, id: Id) -> &mut Directory {
        match &mut self.object_mut(id).body {
            Body::Directory(directory) => directory,
            _ => panic!("not a directory"),
        }
    }

    fn hold(&mut self, id: Id, handle: usize) {
        self.handles[handle] = Some(id);
        self.drop_unused();
    }

    fn let_go(&mut self, handle: usize) {
        self.handles[handle] = None;
        self.drop_unused();
    }

    /// Removes objects with neither name nor user.
    fn drop_unused(&mut self) {
        let (handles, cursors) = (&self.handles, &self.cursors);
        let is_listed = |id| {
            cursors
                .iter()
                .flatten()
                .any(|cursor| cursor.directory == id)
        };
        self.objects.retain(|id, object| {
            object.links > 0 || handles.contains(&Some(*id)) || is_listed(*id)
        });
    }
}

impl Object {
    fn new(body: Body, permissions: u16) -> Self {
        let links = match body {
            Body::Directory(_) => 2,
            _ => 1,
        };
        Self {
            body,
            permissions,
            uid: 0,
            gid: 0,
            flags: InodeFlags::empty(),
            links,
            modified: None,
            xattrs: BTreeMap::new(),
        }
    }

    pub fn file_type(&self) -> FileType {
        match &self.body {
            Body::Directory(_) => FileType::Directory,
            Body::Regular(_) => FileType::Regular,
            Body::Link(_) => FileType::SymbolicLink,
            Body::Other(file_type, _) => *file_type,
        }
    }

    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    fn check_mutable(&self) -> Result<()> {
        if self
            .flags
            .intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
        {
            Err(ErrorKind::Immutable)
        } else {
            Ok(())
        }
    }
}

impl From<Result<Outcome>> for Outcome {
    fn from(result: Result<Outcome>) -> Self {
        result.unwrap_or_else(Self::Failed)
    }
}
