//! What a file system answers: the line between the kernel's protocol and the file system behind
//! it.
//!
//! Model: the kernel knows files by [`NodeId`]. Every [`Entry`] that is given out counts as one use
//! of its node, and [`Operations::forget`] takes uses back; the root is always in use. A [`Handle`]
//! is the server's own number for an open file or directory; nothing but the server interprets it.
//!
//! - Methods are called from several threads at once; the kernel holds its locks where POSIX wants
//!   them (one rename of a directory at a time, one change of a directory at a time, `setattr` and
//!   `write` of a file one at a time), but not more.
//! - Permissions are the kernel's business (`default_permissions`), with what it cannot know left
//!   to the server: append-only and immutable files, privileges to drop ([`Privileges`]), who
//!   inherits what from a directory.
//! - Locks (`fcntl`, `flock`) never get here: the kernel keeps them, as for any local file system.
//! - An error is the number that the program gets. `NOSYS` has a meaning of its own: for many
//!   operations the kernel then does without and never asks again. It is what every method answers
//!   by default, so a server writes down what it has.
//! - A panic in a method ends the session: that request and all later ones are answered with `IO`,
//!   and [`Operations::destroy`] is not called.
//!
//! Nothing of the protocol's own layout is visible here.

mod attributes;
mod directories;
mod files;
mod notifier;

use rustix::fs::{OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use extant_space::CancelToken;

pub use attributes::{AttributeChange, Attributes, Entry, SetTime, Statistics, Timestamp};
pub use directories::{DirectorySink, Listed};
pub use files::{
    Copy, Fallocate, FileKind, Ioctl, IoctlReply, Opened, OpenedFlags, Place, Read, ReadOrigin,
    Seek, SyncScope, Write, WriteOrigin,
};
pub(crate) use notifier::KernelCache;
pub use notifier::Notifier;

/// What a method answers; the error is what the program gets.
pub type Result<T> = std::result::Result<T, Errno>;

/// The number by which the kernel knows a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root directory.
    pub const ROOT: Self = Self(1);
}

/// The server's number for an open file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// The caller of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user that new files belong to (the file system user of the thread).
    pub uid: u32,
    /// The group that new files belong to, unless the directory says otherwise.
    pub gid: u32,
    /// The process; 0 when the kernel asks for itself, as it does for data that it wrote back.
    pub pid: u32,
}

/// What is known of a request whatever it asks for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The caller.
    pub caller: Caller,
    /// Cancelled when the caller gets a signal. The caller continues to wait, so long operations
    /// check it and return `INTR`, or the part done so far.
    pub cancel: &'a CancelToken,
}

/// Whether a change takes the set-user-ID and set-group-ID bits (that one only with the group's
/// permission to execute) and the capabilities from a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    /// They stay.
    Keep,
    /// They go, as the caller has no `CAP_FSETID`.
    Drop,
}

/// Whether files can be found by their number alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Export {
    /// They cannot.
    No,
    /// `lookup` understands the names `.` and `..`, also of nodes that were forgotten, and entries
    /// carry generations; then `open_by_handle_at(2)` and NFS work.
    ByNumber,
}

/// A new file, directory or special file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode {
    /// Type and permissions, before the umask.
    pub mode: u32,
    /// What the caller does not want to permit; a default access list of the directory is used in
    /// its place.
    pub umask: u32,
    /// Of a device: the number as in `stat` (major and minor by `rustix::fs::major` and `minor`).
    pub device: u64,
}

/// A file system, as the kernel sees it.
#[expect(
    unused_variables,
    reason = "the defaults reply NOSYS, whatever they are asked for"
)]
pub trait Operations: Send + Sync + 'static {
    /// Called once, before anything else. The notifier informs the kernel of changes that bypassed
    /// it.
    fn start(&self, notifier: Notifier) {}

    /// Called once, after the last request was answered. Not called after a panic. Handles and node
    /// references that the kernel still held are not released before: an unmount does not wait for
    /// that.
    fn destroy(&self) {}

    /// Whether files can be found by their number alone.
    fn export(&self) -> Export {
        Export::No
    }

    // Names.

    /// What `name` stands for. `NOENT` may be remembered by the kernel.
    fn lookup(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Takes back `uses` of a node.
    fn forget(&self, node: NodeId, uses: u64) {}

    /// Makes a file of any type but a directory or symbolic link.
    fn make_node(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Makes a directory.
    fn make_directory(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Makes a symbolic link.
    fn make_symlink(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Makes a regular file and opens it. The kernel has looked up the name before; it may exist
    /// all the same, and is then opened unless `flags` contain `EXCL`.
    fn create(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// Makes a regular file without a name, near `parent`, and opens it.
    fn create_unnamed(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: OFlags,
    ) -> Result<(Entry, Opened)> {
        Err(Errno::NOSYS)
    }

    /// Gives a file one more name.
    fn link(
        &self,
        request: &Request<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<Entry> {
        Err(Errno::NOSYS)
    }

    /// Takes a name away, of anything but a directory.
    fn unlink(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Takes an empty directory away.
    fn remove_directory(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Gives a file another name; `flags` are those of `renameat2(2)`.
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

    /// What `stat` and `statx` show. `handle` is there when an open file was asked about.
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

    /// What `statvfs` shows.
    fn statistics(&self, request: &Request<'_>, node: NodeId) -> Result<Statistics> {
        Err(Errno::NOSYS)
    }

    /// Puts the value of an extended attribute, at most 64 KiB, into `value`, which is empty.
    /// `NODATA` when there is none.
    fn xattr(
        &self,
        request: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Gives every name of an extended attribute to `visit`.
    fn list_xattrs(
        &self,
        request: &Request<'_>,
        node: NodeId,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        Err(Errno::NOSYS)
    }

    /// Sets an extended attribute. `privileges` says whether a new access list takes the
    /// set-group-ID bit away.
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

    /// The last user of a handle is gone.
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
    /// it keeps its own file size, whatever is answered later. A command that moves data or changes
    /// the size uses the [`Notifier`], and its caller ends with `ftruncate(2)` to the known size.
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

    /// The last user of a handle is gone.
    fn release_directory(&self, request: &Request<'_>, node: NodeId, handle: Handle) {}

    /// Gives the names behind `cookie` (0: from the start, with `.` and `..`) to `sink` until it is
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

    /// Makes everything durable (`syncfs(2)`). Linux passes it on for some kinds of mounts only.
    fn sync_all(&self, request: &Request<'_>) -> Result<()> {
        Err(Errno::NOSYS)
    }
}
