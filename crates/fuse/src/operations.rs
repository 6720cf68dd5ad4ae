//! The interface between the FUSE server and a file system.
//!
//! Model: the kernel identifies files by [`NodeId`]. Every [`LookupEntry`] that is returned counts
//! as one reference to its node, and [`Operations::forget`] returns references; the root always has
//! one. A [`Handle`] is the file system's own number for an open file or directory.
//!
//! - Methods are called from several threads concurrently. The kernel serialises renames of
//!   directories, changes of one directory, and `setattr` and `write` of one file; nothing else.
//! - The kernel checks permissions (`default_permissions`). The file system checks append-only and
//!   immutable files, drops privileges ([`Privileges`]), and applies inheritance from directories.
//! - Locks (`fcntl`, `flock`) do not arrive: the kernel keeps them, as for any local file system.
//! - An error is the errno that the program receives. After `NOSYS`, the default of every method,
//!   the kernel does not send many of the operations again.
//! - A panic in a method ends the session: that request and all later ones are answered with `IO`,
//!   and [`Operations::destroy`] is not called.

mod attributes;
mod directories;
mod files;
mod notifier;

use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use extant_space::CancelToken;

pub use attributes::{AttributeChange, Attributes, LookupEntry, SetTime, Statistics, Timestamp};
pub use directories::{DirectorySink, Listed};
pub use files::{
    Copy, DSYNC, Fallocate, FileKind, FilePosition, Ioctl, IoctlReply, Opened, OpenedFlags, Read,
    ReadOrigin, Seek, SyncScope, Write, WriteOrigin,
};
pub(crate) use notifier::KernelCache;
pub use notifier::Notifier;

/// The result of a method; the error is the errno that the program gets.
pub type Result<T> = std::result::Result<T, Errno>;

/// The kernel's number for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root: a directory, unless [`Operations::root_kind`] says otherwise.
    pub const ROOT: Self = Self(1);
}

/// The file system's number for an open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// The caller of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The owner of new files (the file-system user of the thread).
    pub uid: u32,
    /// The group of new files, unless they inherit that of the directory.
    pub gid: u32,
    /// The process; 0 for requests of the kernel itself, such as write-back.
    pub pid: u32,
}

/// Properties of every request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The caller.
    pub caller: Caller,
    /// Cancelled when the caller gets a signal. The caller continues to wait, so long operations
    /// check it and return `INTR`, or the part done so far.
    pub cancel: &'a CancelToken,
}

/// Whether a change clears the set-user-ID bit, the set-group-ID bit (only if the group may execute
/// the file) and the capabilities of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// It keeps them.
    Keep,
    /// It clears them, because the caller has no `CAP_FSETID`.
    Drop,
}

/// Whether files can be opened by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// They cannot.
    No,
    /// `lookup` accepts the names `.` and `..`, also in forgotten nodes, and entries have
    /// generations; `open_by_handle_at(2)` and NFS need this.
    ByNumber,
}

/// The type of the root node, which is that of the mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RootKind {
    /// A directory.
    Directory,
    /// A regular file: the mount covers a file.
    File,
}

/// A new file, directory or special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permissions, before the umask.
    pub mode: u32,
    /// The caller's umask, which a default access list of the directory replaces.
    pub umask: u32,
    /// Number of a device file, as in `stat` (`rustix::fs::makedev`).
    pub device: u64,
}

/// A file system. Names and rules are those of the system calls.
#[expect(unused_variables, reason = "the defaults return NOSYS")]
pub trait Operations: Send + Sync + 'static {
    /// Called once, before anything else. The notifier informs the kernel of changes that bypassed
    /// it.
    fn start(&self, notifier: Notifier) {}

    /// Called once, after the last request was answered. Not called after a panic. Handles and node
    /// references that the kernel still held are not released before: an unmount does not wait for
    /// that.
    fn destroy(&self) {}

    /// Whether files can be opened by number.
    fn export(&self) -> Export {
        Export::No
    }

    /// The type of the root node.
    fn root_kind(&self) -> RootKind {
        RootKind::Directory
    }

    // Names.

    /// Looks up a name. The kernel may cache `NOENT`.
    fn lookup(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<LookupEntry> {
        Err(Errno::NOSYS)
    }

    /// Returns `count` references to a node.
    fn forget(&self, node: NodeId, count: u64) {}

    /// Creates a file of any type but a directory or symbolic link.
    fn make_node(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        Err(Errno::NOSYS)
    }

    /// Creates a directory.
    fn make_directory(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        Err(Errno::NOSYS)
    }

    /// Creates a symbolic link.
    fn make_symlink(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<LookupEntry> {
        Err(Errno::NOSYS)
    }

    /// Creates a regular file and opens it. The kernel has looked up the name before. If it exists
    /// nevertheless, it is opened, unless `flags` contain `EXCL`.
    fn create(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<(LookupEntry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// Creates a regular file without a name, near `parent`, and opens it.
    fn create_unnamed(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: OFlags,
    ) -> Result<(LookupEntry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// Adds a name to a file.
    fn link(
        &self,
        request: &Request<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<LookupEntry> {
        Err(Errno::NOSYS)
    }

    /// Removes a name of anything but a directory.
    fn unlink(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Removes an empty directory.
    fn remove_directory(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Renames a file; `flags` are those of `renameat2(2)`.
    fn rename(
        &self,
        request: &Request<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Puts the target of a symbolic link, at most 4095 bytes, into `target`, which is empty.
    fn read_link(&self, request: &Request<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<()> {
        Err(Errno::NOSYS)
    }

    // Attributes.

    /// The attributes for `stat` and `statx`; of an open file with its `handle`.
    fn attributes(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Option<Handle>,
    ) -> Result<Attributes> {
        Err(Errno::NOSYS)
    }

    /// Changes attributes, all or none, and returns the new ones.
    fn set_attributes(
        &self,
        request: &Request<'_>,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes> {
        Err(Errno::NOSYS)
    }

    /// The statistics for `statvfs`.
    fn statistics(&self, request: &Request<'_>, node: NodeId) -> Result<Statistics> {
        Err(Errno::NOSYS)
    }

    /// Puts the value of an extended attribute, at most 64 KiB, into `value`, which is empty.
    /// `NODATA` if there is none.
    fn xattr(
        &self,
        request: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Passes the name of every extended attribute to `visit`.
    fn list_xattrs(
        &self,
        request: &Request<'_>,
        node: NodeId,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Sets an extended attribute. `privileges` says whether a new access list clears the
    /// set-group-ID bit.
    fn set_xattr(
        &self,
        request: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        privileges: Privileges,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Removes an extended attribute.
    fn remove_xattr(&self, request: &Request<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    // Open files.

    /// Opens a file; `flags` are those of `open(2)`, with `TRUNC` and without `CREATE` and `EXCL`.
    /// `NOSYS` means that files are used without a handle.
    fn open(
        &self,
        request: &Request<'_>,
        node: NodeId,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<Opened> {
        Err(Errno::NOSYS)
    }

    /// Releases a handle, which no process uses any more.
    fn release(&self, request: &Request<'_>, node: NodeId, handle: Handle, flags: OFlags) {}

    /// A descriptor of a file was closed; there may be others. Returns errors that were not
    /// reported yet.
    fn flush(&self, request: &Request<'_>, node: NodeId, handle: Handle) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Reads into `data`, which is aligned to 4096 bytes in memory; less than its length is the end
    /// of the file. With a writeback cache the kernel reads also through handles that are open for
    /// writing alone.
    fn read(
        &self,
        request: &Request<'_>,
        node: NodeId,
        read: &Read,
        data: &mut [u8],
    ) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// Writes; returns the number of bytes. The offset is valid also for files that are open with
    /// `APPEND`: the kernel has chosen it.
    fn write(&self, request: &Request<'_>, node: NodeId, write: &Write<'_>) -> Result<usize> {
        Err(Errno::NOSYS)
    }

    /// Makes a file durable.
    fn sync(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Changes the space of a range. The kernel passes mode 0, keep size, punch and zero, and has
    /// checked the file size limit of the process.
    fn fallocate(&self, request: &Request<'_>, node: NodeId, fallocate: &Fallocate) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// The next data or hole at or after `offset`; `NXIO` if there is none, or `offset` is past the
    /// end.
    fn seek(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        Err(Errno::NOSYS)
    }

    /// Copies a range between two files of this file system; returns the number of bytes.
    fn copy(&self, request: &Request<'_>, copy: &Copy) -> Result<u64> {
        Err(Errno::NOSYS)
    }

    /// A command on an open file or directory. The command number encodes the sizes of input and
    /// output: `output` has the length of the caller's buffer, and is zeroed. `NOTTY` for unknown
    /// commands.
    ///
    /// The kernel may hold written data that has not reached the server; and with a writeback cache
    /// it keeps its own file size, whatever later replies contain. A command that moves data or
    /// changes the size uses the [`Notifier`], and its caller ends with `ftruncate(2)` to the known
    /// size.
    fn ioctl(
        &self,
        request: &Request<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        Err(Errno::NOTTY)
    }

    // Open directories.

    /// Opens a directory.
    fn open_directory(&self, request: &Request<'_>, node: NodeId, flags: OFlags) -> Result<Opened> {
        Err(Errno::NOSYS)
    }

    /// Releases a handle, which no process uses any more.
    fn release_directory(&self, request: &Request<'_>, node: NodeId, handle: Handle) {}

    /// Passes the names after `cookie` (0: from the start, with `.` and `..`) to `sink` until it is
    /// full.
    fn list(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Makes the names of a directory durable.
    fn sync_directory(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Makes everything durable (`syncfs(2)`). Linux sends this for some kinds of mounts only.
    fn sync_all(&self, request: &Request<'_>) -> Result<()> {
        Err(Errno::NOSYS)
    }
}
