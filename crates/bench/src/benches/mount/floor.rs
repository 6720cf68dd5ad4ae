//! The floor: a FUSE server that answers every request at once and does nothing, on the transport
//! of `extant mount`.
//!
//! The server is stateless: every lookup fails, a created inode's number encodes whether it is a
//! directory, and the kernel caches sizes and names. Programs that create, write, read cached data
//! and remove their files work; programs that reopen files later do not.
//!
//! With a backing file, reads and writes go to the same offset of it: the transport plus the memory
//! copy that every file system needs.
//!
//! The bench program starts itself for this, so that the server is a separate process.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use extant_fuse::operations::{
    AttributeChange, Attributes, DirectorySink, Fallocate, Handle, LookupEntry, NewNode, NodeId,
    Opened, OpenedFlags, Privileges, Read, Request, Result as Answer, Statistics, SyncScope, Write,
};
use extant_fuse::options::IoUring;
use extant_fuse::{MountOptions, Operations, Session};
use rustix::fs::OFlags;
use rustix::io::{Errno, pread, pwrite};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The server's word on the command line.
pub const WORD: &str = "__floor";

/// In the number of a node: it is a directory. The root is one as well.
const DIRECTORY: u64 = 1 << 63;
const BLOCK_BYTES: u32 = 4096;
/// Bytes, inodes: more than any request.
const PLENTY: u64 = 1 << 30;

/// Serves at `directory` until it is unmounted or a signal arrives.
pub fn serve(directory: &Path, data: Option<&Path>, io_uring: IoUring) -> Result<()> {
    let data = match data {
        Some(path) => Some(File::options().read(true).write(true).open(path)?),
        None => None,
    };
    let floor = Floor {
        next: AtomicU64::new(NodeId::ROOT.0 + 1),
        data,
    };
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    let options = MountOptions {
        io_uring,
        ..MountOptions::default()
    };
    let session = Session::mount(Arc::new(floor), directory, &options)?;
    let (unmounter, handle) = (session.unmounter(), signals.handle());
    let waiting = thread::spawn(move || {
        for _ in signals.forever() {
            if let Err(error) = unmounter.detach() {
                eprintln!("{error}");
            }
        }
    });
    session.run()?;
    handle.close();
    // A panic is reported by the thread.
    let _ = waiting.join();
    Ok(())
}

/// The file system that does nothing.
struct Floor {
    /// The number of the next node.
    next: AtomicU64,
    /// Source and destination of data.
    data: Option<File>,
}

impl Floor {
    fn entry(&self, kind: u64) -> LookupEntry {
        let node = NodeId(self.next.fetch_add(1, Ordering::Relaxed) | kind);
        LookupEntry {
            node,
            generation: 0,
            attributes: attributes(node, 0),
        }
    }
}

fn attributes(node: NodeId, size: u64) -> Attributes {
    let is_directory = node == NodeId::ROOT || node.0 & DIRECTORY != 0;
    Attributes {
        inode: node.0 & !DIRECTORY,
        mode: if is_directory { 0o40755 } else { 0o100644 },
        links: if is_directory { 2 } else { 1 },
        size,
        block_size: BLOCK_BYTES,
        ..Attributes::default()
    }
}

/// The same kernel settings for files as in the volume of `extant mount`.
fn opened(flags: OFlags) -> Opened {
    let mut treated = OpenedFlags::KEEP_CACHE;
    if flags.contains(OFlags::DIRECT) {
        treated |= OpenedFlags::DIRECT_IO | OpenedFlags::PARALLEL_DIRECT_WRITES;
    }
    Opened {
        handle: Handle::default(),
        flags: treated,
    }
}

impl Operations for Floor {
    fn lookup(&self, _: &Request<'_>, _: NodeId, _: &[u8]) -> Answer<LookupEntry> {
        Err(Errno::NOENT)
    }

    fn make_directory(
        &self,
        _: &Request<'_>,
        _: NodeId,
        _: &[u8],
        _: &NewNode,
    ) -> Answer<LookupEntry> {
        Ok(self.entry(DIRECTORY))
    }

    fn create(
        &self,
        _: &Request<'_>,
        _: NodeId,
        _: &[u8],
        _: &NewNode,
        flags: OFlags,
        _: Privileges,
    ) -> Answer<(LookupEntry, Opened)> {
        Ok((self.entry(0), opened(flags)))
    }

    fn unlink(&self, _: &Request<'_>, _: NodeId, _: &[u8]) -> Answer<()> {
        Ok(())
    }

    fn remove_directory(&self, _: &Request<'_>, _: NodeId, _: &[u8]) -> Answer<()> {
        Ok(())
    }

    fn attributes(&self, _: &Request<'_>, node: NodeId, _: Option<Handle>) -> Answer<Attributes> {
        Ok(attributes(node, 0))
    }

    fn set_attributes(
        &self,
        _: &Request<'_>,
        node: NodeId,
        change: &AttributeChange,
    ) -> Answer<Attributes> {
        Ok(attributes(node, change.size.unwrap_or(0)))
    }

    fn statistics(&self, _: &Request<'_>, _: NodeId) -> Answer<Statistics> {
        Ok(Statistics {
            blocks: PLENTY,
            blocks_free: PLENTY,
            blocks_available: PLENTY,
            files: PLENTY,
            files_free: PLENTY,
            block_size: BLOCK_BYTES,
            name_length_max: 255,
        })
    }

    fn xattr(&self, _: &Request<'_>, _: NodeId, _: &[u8], _: &mut Vec<u8>) -> Answer<()> {
        Err(Errno::NODATA)
    }

    fn open(&self, _: &Request<'_>, _: NodeId, flags: OFlags, _: Privileges) -> Answer<Opened> {
        Ok(opened(flags))
    }

    fn read(&self, _: &Request<'_>, _: NodeId, read: &Read, data: &mut [u8]) -> Answer<usize> {
        match &self.data {
            Some(file) => pread(file, data, read.offset),
            None => Ok(data.len()),
        }
    }

    fn write(&self, _: &Request<'_>, _: NodeId, write: &Write<'_>) -> Answer<usize> {
        match &self.data {
            Some(file) => pwrite(file, write.data, write.offset),
            None => Ok(write.data.len()),
        }
    }

    fn sync(&self, _: &Request<'_>, _: NodeId, _: Handle, _: SyncScope) -> Answer<()> {
        Ok(())
    }

    fn fallocate(&self, _: &Request<'_>, _: NodeId, _: &Fallocate) -> Answer<()> {
        Ok(())
    }

    fn open_directory(&self, _: &Request<'_>, _: NodeId, _: OFlags) -> Answer<Opened> {
        Ok(Opened::default())
    }

    fn list(
        &self,
        _: &Request<'_>,
        _: NodeId,
        _: Handle,
        _: u64,
        _: &mut dyn DirectorySink,
    ) -> Answer<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_fuse::operations::{Caller, ReadOrigin, WriteOrigin};
    use extant_space::CancelToken;

    const NEW: NewNode = NewNode {
        mode: 0o644,
        umask: 0,
        device: 0,
    };

    fn floor(data: Option<File>) -> Floor {
        Floor {
            next: AtomicU64::new(2),
            data,
        }
    }

    #[test]
    fn kind_of_a_node_follows_from_its_number() {
        let (floor, cancel) = (floor(None), CancelToken::new());
        let request = Request {
            caller: Caller::default(),
            cancel: &cancel,
        };
        let made = floor.make_directory(&request, NodeId::ROOT, b"d", &NEW);
        let directory = made.unwrap().node;
        let (flags, keep) = (OFlags::RDWR, Privileges::Keep);
        let created = floor.create(&request, directory, b"f", &NEW, flags, keep);
        let file = created.unwrap().0.node;
        let mode = |node| floor.attributes(&request, node, None).unwrap().mode;
        assert_eq!(mode(NodeId::ROOT) & 0o170000, 0o40000);
        assert_eq!(mode(directory) & 0o170000, 0o40000);
        assert_eq!(mode(file) & 0o170000, 0o100000);
    }

    #[test]
    fn bytes_are_moved_where_there_is_a_file() {
        let cancel = CancelToken::new();
        let request = Request {
            caller: Caller::default(),
            cancel: &cancel,
        };
        let floor = floor(Some(tempfile::tempfile().unwrap()));
        let write = Write {
            handle: Handle(0),
            offset: 4096,
            data: b"bytes",
            origin: WriteOrigin::Caller,
            privileges: Privileges::Keep,
            sync: None,
        };
        assert_eq!(floor.write(&request, NodeId(2), &write).unwrap(), 5);
        let mut data = [0; 8];
        let read = Read {
            handle: Handle(0),
            offset: 4096,
            origin: ReadOrigin::Direct,
            flags: rustix::fs::OFlags::RDONLY,
        };
        let read = floor.read(&request, NodeId(2), &read, &mut data);
        assert_eq!((read.unwrap(), &data[..5]), (5, &b"bytes"[..]));
    }
}
