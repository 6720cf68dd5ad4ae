//! Where an image is, and having it open: one process to change it, or several to look, each for the time of an operation.
//!
//! Threads share what their process has open. Errors of a close are told to nobody, and need not be: what was promised was
//! committed before.
//!
//! Lock order: the image, then the pool's lock.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use extant_blockdev::{HostAccess, HostOptions};
use extant_ext4::{
    Access, FileType, Filesystem, FollowLast, InodeNumber, NewKind, Node, Options, RenameMode,
    Reserve,
};
use extant_image::hold;
use extant_space::{ByteSize, Error, ErrorKind, Result, SpaceFile, SyncMode};

use super::inner::{child_directory, find, make_directory, new_node};
use super::turn::Turn;
use crate::folder::Folder;
use crate::state;
use crate::storage::{FileStat, LockMode, Purpose};

/// Longer is none of ours.
const IDENTIFIER_MAX: usize = 256;

/// An image or disk, a directory in it, and what of it this process has open.
#[derive(Debug)]
pub(crate) struct ImagePlace {
    path: PathBuf,
    directory: PathBuf,
    identifier: Option<String>,
    open: Mutex<Weak<OpenImage>>,
}

/// What came of an attempt to open an image.
pub(crate) enum Opening {
    Open(Arc<OpenImage>),
    /// Others of the same pool have it.
    Busy,
}

/// An image that this process has open. Closed when dropped.
pub(crate) struct OpenImage {
    path: PathBuf,
    /// `IMAGE:/directory`, for messages.
    place: PathBuf,
    locks: Mutex<HashMap<InodeNumber, Vec<LockMode>>>,
    // Dropped in this order: the close comes with the last of the engine, and others have the turn after it.
    directory: Node,
    filesystem: Filesystem,
    _turn: Option<Turn>,
}

impl ImagePlace {
    /// With `identifier`, an image that has another one is refused.
    pub(crate) fn new(path: &Path, directory: &Path, identifier: Option<&str>) -> Self {
        Self {
            path: path.to_path_buf(),
            directory: directory.to_path_buf(),
            identifier: identifier.map(str::to_owned),
            open: Mutex::new(Weak::new()),
        }
    }

    /// Where the directory is, for messages: `IMAGE:/directory`.
    pub(crate) fn path(&self) -> PathBuf {
        inner_path(&self.path, &self.directory)
    }

    /// Opens the image, or shares what is open. `own` is the pool's folder, in which turns are taken; who cannot see that only
    /// looks, when nobody changes anything.
    pub(crate) fn try_open(&self, purpose: Purpose, own: Option<&Folder>) -> Result<Opening> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = open.upgrade() {
            return Ok(match image.serves(purpose) {
                true => Opening::Open(image),
                false => Opening::Busy,
            });
        }
        let turn = match own {
            None => None,
            Some(own) => match Turn::take(own, purpose)? {
                Some(turn) => Some(turn),
                None => return Ok(Opening::Busy),
            },
        };
        let image = Arc::new(self.open_now(purpose, turn)?);
        if let Some(identifier) = &self.identifier {
            image.check_identifier(identifier)?;
        }
        *open = Arc::downgrade(&image);
        Ok(Opening::Open(image))
    }

    /// Who has the image open, where that can be told.
    pub(crate) fn holder(&self, own: &Folder) -> Option<u32> {
        Turn::holder(own)
    }

    /// Looks whether there is a file system that a pool can be in.
    pub(crate) fn check(&self) -> Result<()> {
        let filesystem = open_filesystem(&self.path, Purpose::Look)?;
        match filesystem.resolve(self.directory.as_os_str().as_bytes(), FollowLast::Yes) {
            Ok(node) => check_directory(&node).map_err(|error| error.at(self.path())),
            // It is made.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error.at(self.path())),
        }
    }

    /// Makes the directory where there is none, and keeps `identifier` in it. `own` is as for [`try_open`](Self::try_open).
    pub(crate) fn build(&self, own: &Folder, identifier: &str) -> Result<Opening> {
        let Some(turn) = Turn::take(own, Purpose::Change)? else {
            return Ok(Opening::Busy);
        };
        let filesystem = open_filesystem(&self.path, Purpose::Change)?;
        let built = self.build_in(&filesystem, identifier);
        let closed = filesystem.close();
        built.and(closed).map_err(|error| error.at(self.path()))?;
        drop(turn);
        self.try_open(Purpose::Look, Some(own))
    }

    fn build_in(&self, filesystem: &Filesystem, identifier: &str) -> Result<()> {
        let mut directory = filesystem.root()?;
        for part in self.directory.components() {
            if let std::path::Component::Normal(name) = part {
                let name = name.to_str().ok_or_else(|| {
                    Error::new(ErrorKind::InvalidArgument).detail("the directory is not UTF-8")
                })?;
                directory = make_directory(&directory, name)?;
            }
        }
        let own = make_directory(&directory, state::FOLDER)?;
        let temporary = format!("{}.new", state::IDENTIFIER);
        if find(&own, &temporary)?.is_some() {
            own.unlink(temporary.as_bytes())?;
        }
        let file = own
            .create(temporary.as_bytes(), &new_node(NewKind::Regular, 0o600))?
            .file()?;
        file.write_at(format!("{identifier}\n").as_bytes(), 0)?;
        file.sync(SyncMode::All)?;
        let name = state::IDENTIFIER.as_bytes();
        own.rename(temporary.as_bytes(), &own, name, RenameMode::Replace)
    }

    fn open_now(&self, purpose: Purpose, turn: Option<Turn>) -> Result<OpenImage> {
        let filesystem = open_filesystem(&self.path, purpose)?;
        let place = self.path();
        let directory = filesystem
            .resolve(self.directory.as_os_str().as_bytes(), FollowLast::Yes)
            .and_then(|node| check_directory(&node).map(|()| node))
            .map_err(|error| error.at(&place))?;
        Ok(OpenImage {
            path: self.path.clone(),
            place,
            locks: Mutex::new(HashMap::new()),
            directory,
            filesystem,
            _turn: turn,
        })
    }
}

fn open_filesystem(path: &Path, purpose: Purpose) -> Result<Filesystem> {
    let (device, engine) = match purpose {
        Purpose::Look => (HostAccess::ReadOnly, Access::ReadOnly),
        Purpose::Change => (HostAccess::ReadWrite, Access::ReadWrite),
    };
    let options = HostOptions {
        access: device,
        ..HostOptions::default()
    };
    let device = hold::hold_device(path, &options)?;
    let options = Options {
        access: engine,
        // Who may change the image may do what root may.
        reserve: Reserve::Take,
        ..Options::default()
    };
    Filesystem::open(Arc::new(device), options).map_err(|error| error.at(path))
}

fn check_directory(node: &Node) -> Result<()> {
    match node.file_type() {
        FileType::Directory => Ok(()),
        _ => Err(Error::new(ErrorKind::NotDirectory)),
    }
}

fn inner_path(image: &Path, inner: &Path) -> PathBuf {
    let mut place: OsString = image.as_os_str().to_owned();
    place.push(":");
    if !inner.as_os_str().as_bytes().starts_with(b"/") {
        place.push("/");
    }
    place.push(inner);
    PathBuf::from(place)
}

impl OpenImage {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    pub(super) fn directory(&self) -> &Node {
        &self.directory
    }

    pub(super) fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    fn serves(&self, purpose: Purpose) -> bool {
        purpose == Purpose::Look || self.filesystem.access() == Access::ReadWrite
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        match self.serves(Purpose::Change) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::ReadOnly)),
        }
    }

    fn check_identifier(&self, wanted: &str) -> Result<()> {
        let found = self.identifier().map_err(|error| error.at(&self.place))?;
        let detail = match found {
            Some(found) if found == wanted => return Ok(()),
            Some(_) => "the image belongs to another definition of a pool",
            None => "the image is not the one that the pool was defined with",
        };
        Err(Error::new(ErrorKind::NotFound)
            .at(&self.path)
            .detail(detail)
            .advice("bring it back, or delete the definition and define the pool anew"))
    }

    fn identifier(&self) -> Result<Option<String>> {
        let Some(own) = child_directory(&self.directory, state::FOLDER)? else {
            return Ok(None);
        };
        let Some(node) = find(&own, state::IDENTIFIER)? else {
            return Ok(None);
        };
        let mut bytes = vec![0; IDENTIFIER_MAX];
        let read = node.file()?.read_at(&mut bytes, 0)?;
        Ok(Some(
            String::from_utf8_lossy(&bytes[..read]).trim().to_owned(),
        ))
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let found = self.filesystem.statistics();
        found.free_blocks * u64::from(found.block_bytes)
    }

    /// Fails before anything is changed where it cannot succeed.
    pub(super) fn check_room(&self, wanted: u64) -> Result<()> {
        let available = self.free_bytes();
        if wanted <= available {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace)
            .at(&self.path)
            .detail(format!(
                "no space: {} wanted, {} available, {} missing",
                ByteSize(wanted),
                ByteSize(available),
                ByteSize(wanted - available)
            )))
    }

    pub(super) fn stat(&self, node: &Node) -> FileStat {
        let found = node.attributes();
        FileStat {
            size_bytes: found.size_bytes,
            allocated_bytes: found.allocated_bytes,
            block_bytes: self.filesystem.block_bytes().into(),
            mode: u32::from(found.permissions),
            uid: found.uid,
            gid: found.gid,
        }
    }

    /// Locks a volume for a thread; other processes have the image closed.
    pub(super) fn try_lock(&self, inode: InodeNumber, mode: LockMode) -> bool {
        let mut locks = self.locks();
        let held = locks.entry(inode).or_default();
        let is_free = match mode {
            LockMode::Alone => held.is_empty(),
            LockMode::Shared => !held.contains(&LockMode::Alone),
        };
        if is_free {
            held.push(mode);
        }
        is_free
    }

    pub(super) fn unlock(&self, inode: InodeNumber) {
        let mut locks = self.locks();
        if let Some(held) = locks.get_mut(&inode) {
            // All of them are of one mode.
            held.pop();
            if held.is_empty() {
                locks.remove(&inode);
            }
        }
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<InodeNumber, Vec<LockMode>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for OpenImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenImage({})", self.place.display())
    }
}
