//! The engine on an image, while the image is open.
//!
//! Files are referred to by inode number and generation: the engine is closed and reopened with the
//! image lock, and another process may have removed the file meanwhile.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{Device, HostAccess, HostOptions};
use extant_ext4::{
    Access, File, FileType, Filesystem, FollowLast, InodeNumber, Node, Options, Reserve,
};
use extant_image::hold::{self, OpenDevice};
use extant_space::{Error, ErrorKind, Result, SpaceFile};
use extant_sys::identity::Identity;
use parking_lot::{Mutex, MutexGuard};

use super::image_lock::ImageLock;
use super::location::Ext4Location;
use super::names::{child_directory, find};
use crate::state_directory::{IDENTIFIER, STATE_DIRECTORY};
use crate::storage::{FileStat, Purpose};
use extant_hostfs::path_of_open;

/// Longer is none of ours.
const IDENTIFIER_MAX: usize = 256;

/// An open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileKey {
    /// Unique among all engines ever opened in this process.
    handle: u64,
    inode: InodeNumber,
    generation: u32,
}

impl FileKey {
    pub(super) fn inode(self) -> InodeNumber {
        self.inode
    }
}

/// An image that is open.
pub(super) struct Engine {
    location: Arc<Ext4Location>,
    // Dropped in this order: dropping the last reference to the engine closes it, and others can
    // take the lock after that.
    files: Mutex<HashMap<u64, Arc<File>>>,
    directory: Node,
    filesystem: Filesystem,
    identity: Option<Identity>,
    lock: Option<ImageLock>,
}

impl Engine {
    /// With `wanted`, the opened file must be that image or disk, even if the path now resolves to
    /// another one.
    pub(super) fn open(
        location: &Arc<Ext4Location>,
        purpose: Purpose,
        lock: Option<ImageLock>,
        wanted: Option<Identity>,
    ) -> Result<Self> {
        let device = open_device(location, purpose)?;
        let identity = match &device {
            OpenDevice::Host(device) => {
                let identity = Identity::of(&path_of_open(device));
                Some(identity.map_err(|source| Error::from(source).at(&location.path))?)
            }
            // Its name is its identity, and the identifier in the pool.
            OpenDevice::Nbd(_) | OpenDevice::Rbd(_) => None,
        };
        if wanted.is_some() && wanted != identity {
            return Err(Error::new(ErrorKind::NotFound)
                .at(&location.path)
                .detail("the path leads to another image than the one of the job"));
        }
        let filesystem = filesystem_of(location, device.into_device(), purpose)?;
        let place = location.inner_path();
        let directory = filesystem
            .resolve(location.directory.as_os_str().as_bytes(), FollowLast::Yes)
            .and_then(|node| check_directory(&node).map(|()| node))
            .map_err(|error| error.at(&place))?;
        let engine = Self {
            location: Arc::clone(location),
            files: Mutex::default(),
            directory,
            filesystem,
            identity,
            lock,
        };
        if let Some(identifier) = &location.identifier {
            engine.check_identifier(identifier)?;
        }
        Ok(engine)
    }

    /// Makes everything durable, closes the image, and releases the image lock.
    pub(super) fn close(self) -> Result<()> {
        let Self {
            location,
            files,
            directory,
            filesystem,
            lock,
            ..
        } = self;
        drop((files, directory));
        let synced = filesystem.sync();
        let closed = filesystem.close();
        drop(lock);
        synced.and(closed).map_err(|error| error.at(&location.path))
    }

    /// The identity of the open image or disk; `None` for an export.
    pub(super) fn identity(&self) -> Option<Identity> {
        self.identity
    }

    pub(super) fn directory(&self) -> &Node {
        &self.directory
    }

    pub(super) fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// Makes all changes durable.
    pub(super) fn sync(&self) -> Result<()> {
        let synced = self.filesystem.sync();
        synced.map_err(|error| error.at(&self.location.path))
    }

    /// Opens the data of a regular file.
    pub(super) fn open_file(&self, node: &Node) -> Result<FileKey> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let file = node.file()?;
        let key = FileKey {
            handle: NEXT.fetch_add(1, Ordering::Relaxed),
            inode: node.number(),
            generation: node.attributes().generation,
        };
        self.files().insert(key.handle, Arc::new(file));
        Ok(key)
    }

    /// A file that was opened here, or before the image was closed and opened again.
    ///
    /// # Errors
    /// `NotFound` when it was removed meanwhile.
    pub(super) fn file(&self, key: FileKey) -> Result<Arc<File>> {
        if let Some(file) = self.files().get(&key.handle) {
            return Ok(Arc::clone(file));
        }
        let node = match self.filesystem.node(key.inode) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(was_removed()),
            found => found?,
        };
        if node.attributes().generation != key.generation {
            return Err(was_removed());
        }
        let file = Arc::new(node.file()?);
        let mut files = self.files();
        Ok(Arc::clone(files.entry(key.handle).or_insert(file)))
    }

    /// The last user of the file has closed it.
    pub(super) fn forget(&self, key: FileKey) {
        let file = self.files().remove(&key.handle);
        // Not under the lock: dropping the last handle of a file without a name frees its space.
        drop(file);
    }

    fn files(&self) -> MutexGuard<'_, HashMap<u64, Arc<File>>> {
        self.files.lock()
    }

    pub(super) fn total_bytes(&self) -> u64 {
        let found = self.filesystem.statistics();
        found.blocks * u64::from(found.block_bytes)
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let found = self.filesystem.statistics();
        found.free_blocks * u64::from(found.block_bytes)
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

    fn check_identifier(&self, wanted: &str) -> Result<()> {
        let found = self.identifier();
        let found = found.map_err(|error| error.at(self.location.inner_path()))?;
        let detail = match found {
            Some(found) if found == wanted => return Ok(()),
            Some(_) => "the image belongs to another definition of a pool",
            None => "the image is not the one that the pool was defined with",
        };
        Err(Error::new(ErrorKind::NotFound)
            .at(&self.location.path)
            .detail(detail)
            .advice("bring it back, or delete the definition and define the pool again"))
    }

    fn identifier(&self) -> Result<Option<String>> {
        let Some(own) = child_directory(&self.directory, STATE_DIRECTORY)? else {
            return Ok(None);
        };
        let Some(node) = find(&own, IDENTIFIER)? else {
            return Ok(None);
        };
        let mut bytes = vec![0; IDENTIFIER_MAX];
        let read = node.file()?.read_at(&mut bytes, 0)?;
        Ok(Some(
            String::from_utf8_lossy(&bytes[..read]).trim().to_owned(),
        ))
    }
}

pub(super) fn open_filesystem(location: &Ext4Location, purpose: Purpose) -> Result<Filesystem> {
    filesystem_of(
        location,
        open_device(location, purpose)?.into_device(),
        purpose,
    )
}

fn open_device(location: &Ext4Location, purpose: Purpose) -> Result<OpenDevice> {
    let options = HostOptions {
        access: match purpose {
            Purpose::Look => HostAccess::ReadOnly,
            Purpose::Change => HostAccess::ReadWrite,
        },
        ..HostOptions::default()
    };
    hold::hold_device(&location.path, &options)
}

fn filesystem_of(
    location: &Ext4Location,
    device: Arc<dyn Device>,
    purpose: Purpose,
) -> Result<Filesystem> {
    let options = Options {
        access: match purpose {
            Purpose::Look => Access::ReadOnly,
            Purpose::Change => Access::ReadWrite,
        },
        // A process that may change the image has the rights of root in it.
        reserve: Reserve::Take,
        ..Options::default()
    };
    Filesystem::open(device, options).map_err(|error| error.at(&location.path))
}

pub(super) fn check_directory(node: &Node) -> Result<()> {
    match node.file_type() {
        FileType::Directory => Ok(()),
        _ => Err(Error::new(ErrorKind::NotDirectory)),
    }
}

fn was_removed() -> Error {
    Error::new(ErrorKind::NotFound)
        .detail("the file was removed while another process had the image open")
}
