//! A file system in memory: a directory and the files in it.
//!
//! Some names do special things: looking up `panic` panics, allocating exactly [`ENDLESS`] bytes
//! waits for a signal, and setting the attribute `user.replace` replaces a file's data behind the
//! kernel's back.
//!
//! While the [`Gate`] is closed, reads for the kernel's cache wait, with the page locked; reads and
//! writes past the cache, of any file, send notices about the data of the file whose read waits,
//! and so wait for that page.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use extant_fuse::operations::{
    AttributeChange, Attributes, Copy, DirectorySink, Fallocate, Handle, Ioctl, IoctlReply, Listed,
    LookupEntry, NewNode, NodeId, Opened, OpenedFlags, Privileges, Read, ReadOrigin, Request,
    Result, Seek, SetTime, Statistics, SyncScope, Timestamp, Write, WriteOrigin,
};
use extant_fuse::{Notifier, Operations};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{FallocateFlags, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use crate::gate::Gate;

/// Allocating this many bytes never ends by itself.
pub const ENDLESS: u64 = 7_777_777;
/// When every file was made.
pub const CREATED: i64 = 1_234_567;
/// The number by which programs ask for the flags of a file.
const GET_FLAGS: u32 = 0x8008_6601;
/// And what they get.
pub const FLAGS: u32 = 0x10;

const DIRECTORY: u32 = 0o040000;

#[derive(Debug, Default)]
pub struct MemoryFs {
    state: Mutex<State>,
    notifier: OnceLock<Notifier>,
    pub was_destroyed: AtomicBool,
    /// An endless operation has begun.
    pub is_waiting: AtomicBool,
    /// How many there are now.
    pub waiting: AtomicU64,
    /// A caller got a signal.
    pub was_cancelled: AtomicBool,
    /// Handles that are open.
    pub handles: AtomicU64,
    pub syncs: AtomicU64,
    pub gate: Gate,
}

#[derive(Debug, Default)]
struct State {
    names: BTreeMap<Vec<u8>, NodeId>,
    nodes: BTreeMap<NodeId, Node>,
    last: u64,
}

#[derive(Clone, Debug, Default)]
struct Node {
    data: Vec<u8>,
    mode: u32,
    links: u32,
    uid: u32,
    gid: u32,
    modified: Timestamp,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    uses: u64,
}

impl State {
    fn node(&mut self, node: NodeId) -> Result<&mut Node> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    fn named(&self, name: &[u8]) -> Result<NodeId> {
        self.names.get(name).copied().ok_or(Errno::NOENT)
    }

    fn add(&mut self, request: &Request<'_>, new: &NewNode) -> NodeId {
        self.last = self.last.max(NodeId::ROOT.0) + 1;
        let node = Node {
            mode: new.mode & !new.umask,
            uid: request.caller.uid,
            gid: request.caller.gid,
            modified: Timestamp::now(),
            ..Node::default()
        };
        self.nodes.insert(NodeId(self.last), node);
        NodeId(self.last)
    }

    fn name(&mut self, node: NodeId, name: &[u8]) -> Result<()> {
        if self.names.insert(name.to_vec(), node).is_some() {
            return Err(Errno::EXIST);
        }
        self.node(node)?.links += 1;
        Ok(())
    }

    fn take_name(&mut self, name: &[u8]) -> Result<NodeId> {
        let node = self.names.remove(name).ok_or(Errno::NOENT)?;
        self.node(node)?.links -= 1;
        Ok(node)
    }

    /// An entry that counts as a use.
    fn entry(&mut self, number: NodeId) -> Result<LookupEntry> {
        self.node(number)?.uses += 1;
        Ok(LookupEntry {
            node: number,
            generation: 0,
            attributes: self.attributes(number)?,
        })
    }

    fn attributes(&self, number: NodeId) -> Result<Attributes> {
        if number == NodeId::ROOT {
            return Ok(Attributes {
                inode: 1,
                mode: DIRECTORY | 0o777,
                links: 2,
                ..Attributes::default()
            });
        }
        let node = self.nodes.get(&number).ok_or(Errno::STALE)?;
        Ok(Attributes {
            inode: number.0,
            mode: node.mode,
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            size: node.data.len() as u64,
            sectors: node.data.len().div_ceil(512) as u64,
            block_size: 4096,
            modified: node.modified,
            created: Some(Timestamp {
                seconds: CREATED,
                nanoseconds: 0,
            }),
            ..Attributes::default()
        })
    }
}

impl MemoryFs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Contents of a file, read without the kernel.
    pub fn data(&self, name: &str) -> Vec<u8> {
        let mut state = self.state();
        let node = state.named(name.as_bytes()).unwrap();
        state.node(node).unwrap().data.clone()
    }

    /// Whether there is a file of that name.
    pub fn has(&self, name: &str) -> bool {
        self.state().named(name.as_bytes()).is_ok()
    }

    /// Nodes that the kernel may still ask for.
    pub fn nodes_in_use(&self) -> usize {
        let state = self.state();
        state.nodes.values().filter(|node| node.uses > 0).count()
    }

    fn opened(&self, node: NodeId, flags: OFlags) -> Opened {
        self.handles.fetch_add(1, Ordering::SeqCst);
        let treated = if flags.contains(OFlags::DIRECT) {
            OpenedFlags::DIRECT_IO | OpenedFlags::PARALLEL_DIRECT_WRITES
        } else {
            OpenedFlags::empty()
        };
        Opened {
            handle: Handle(node.0 + 1000),
            flags: OpenedFlags::KEEP_CACHE | treated,
        }
    }
}

fn check(node: NodeId, handle: Handle) {
    assert_eq!(handle.0, node.0 + 1000, "a handle of another file");
}

impl Operations for MemoryFs {
    fn start(&self, notifier: Notifier) {
        self.notifier.set(notifier).unwrap();
    }

    fn destroy(&self) {
        assert!(!self.was_destroyed.swap(true, Ordering::SeqCst));
    }

    fn lookup(&self, _: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<LookupEntry> {
        assert_eq!(parent, NodeId::ROOT);
        assert_ne!(name, b"panic", "asked to panic");
        let mut state = self.state();
        let node = state.named(name)?;
        state.entry(node)
    }

    fn forget(&self, node: NodeId, uses: u64) {
        if let Ok(node) = self.state().node(node) {
            node.uses -= uses;
        }
    }

    fn make_node(
        &self,
        request: &Request<'_>,
        _: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        let mut state = self.state();
        let node = state.add(request, new);
        state.name(node, name)?;
        state.entry(node)
    }

    fn create(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: OFlags,
        _: Privileges,
    ) -> Result<(LookupEntry, Opened)> {
        let entry = self.make_node(request, parent, name, new)?;
        Ok((entry, self.opened(entry.node, flags)))
    }

    fn create_unnamed(
        &self,
        request: &Request<'_>,
        _: NodeId,
        new: &NewNode,
        flags: OFlags,
    ) -> Result<(LookupEntry, Opened)> {
        let mut state = self.state();
        let node = state.add(request, new);
        Ok((state.entry(node)?, self.opened(node, flags)))
    }

    fn link(&self, _: &Request<'_>, node: NodeId, _: NodeId, name: &[u8]) -> Result<LookupEntry> {
        let mut state = self.state();
        state.name(node, name)?;
        state.entry(node)
    }

    fn unlink(&self, _: &Request<'_>, _: NodeId, name: &[u8]) -> Result<()> {
        self.state().take_name(name).map(drop)
    }

    fn rename(
        &self,
        _: &Request<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let mut state = self.state();
        let (old, new) = (from.1.to_vec(), to.1.to_vec());
        let node = state.named(&old)?;
        match flags {
            RenameFlags::EXCHANGE => {
                let other = state.named(&new)?;
                state.names.insert(old, other);
                state.names.insert(new, node);
            }
            RenameFlags::NOREPLACE if state.names.contains_key(&new) => return Err(Errno::EXIST),
            _ => {
                let _ = state.take_name(&new);
                state.names.remove(&old);
                state.names.insert(new, node);
            }
        }
        Ok(())
    }

    fn attributes(
        &self,
        _: &Request<'_>,
        node: NodeId,
        handle: Option<Handle>,
    ) -> Result<Attributes> {
        if let Some(handle) = handle {
            check(node, handle);
        }
        self.state().attributes(node)
    }

    fn set_attributes(
        &self,
        _: &Request<'_>,
        number: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes> {
        let mut state = self.state();
        let node = state.node(number)?;
        if let Some(permissions) = change.permissions {
            node.mode = (node.mode & !0o7777) | permissions;
        }
        if let Some(size) = change.size {
            node.data.resize(size as usize, 0);
        }
        if let Some(time) = change.modified {
            node.modified = match time {
                SetTime::Now => Timestamp::now(),
                SetTime::To(time) => time,
            };
        }
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        state.attributes(number)
    }

    fn statistics(&self, _: &Request<'_>, _: NodeId) -> Result<Statistics> {
        Ok(Statistics {
            blocks: 1000,
            blocks_free: 900,
            blocks_available: 800,
            files: 70,
            files_free: 60,
            block_size: 4096,
            name_length_max: 200,
        })
    }

    fn xattr(&self, _: &Request<'_>, node: NodeId, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let mut state = self.state();
        let found = state.nodes.entry(node).or_default().xattrs.get(name);
        value.extend(found.ok_or(Errno::NODATA)?);
        Ok(())
    }

    fn list_xattrs(
        &self,
        _: &Request<'_>,
        node: NodeId,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let mut state = self.state();
        for name in state.node(node)?.xattrs.keys() {
            visit(name);
        }
        Ok(())
    }

    fn set_xattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        _: XattrFlags,
        _: Privileges,
    ) -> Result<()> {
        if name == b"user.replace" {
            // Cached data of the kernel has to be written first, and must not be written later.
            let notifier = self.notifier.get().unwrap();
            notifier.data_changed(node, 0, None)?;
            self.state().node(node)?.data = value.to_vec();
            return notifier.data_changed(node, 0, None);
        }
        let mut state = self.state();
        let xattrs = &mut state.node(node)?.xattrs;
        xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn remove_xattr(&self, _: &Request<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        let mut state = self.state();
        let removed = state.node(node)?.xattrs.remove(name);
        removed.map(drop).ok_or(Errno::NODATA)
    }

    fn open(
        &self,
        _: &Request<'_>,
        number: NodeId,
        flags: OFlags,
        _: Privileges,
    ) -> Result<Opened> {
        let mut state = self.state();
        let node = state.node(number)?;
        if flags.contains(OFlags::TRUNC) {
            node.data.clear();
        }
        Ok(self.opened(number, flags))
    }

    fn release(&self, _: &Request<'_>, node: NodeId, handle: Handle, _: OFlags) {
        check(node, handle);
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    fn flush(&self, _: &Request<'_>, node: NodeId, handle: Handle) -> Result<()> {
        check(node, handle);
        Ok(())
    }

    fn read(&self, _: &Request<'_>, node: NodeId, read: &Read, data: &mut [u8]) -> Result<usize> {
        check(node, read.handle);
        assert_eq!(data.as_ptr() as usize % 4096, 0);
        match read.origin {
            ReadOrigin::Cache => self.gate.wait(node),
            ReadOrigin::Direct if self.gate.is_closed() => {
                self.gate.direct.fetch_add(1, Ordering::SeqCst);
                let node = self.gate.node();
                self.notifier.get().unwrap().data_changed(node, 0, None)?;
            }
            ReadOrigin::Direct => {}
        }
        let mut state = self.state();
        let from = state.node(node)?.data.get(read.offset as usize..);
        let from = from.unwrap_or_default();
        let len = from.len().min(data.len());
        data[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write(&self, _: &Request<'_>, node: NodeId, write: &Write<'_>) -> Result<usize> {
        check(node, write.handle);
        assert_eq!(write.data.as_ptr() as usize % 4096, 0);
        if write.origin == WriteOrigin::Direct && self.gate.is_closed() {
            self.gate.direct.fetch_add(1, Ordering::SeqCst);
            let (node, all) = (self.gate.node(), 0..i64::MAX as u64);
            self.notifier.get().unwrap().written_directly(node, all);
        }
        let mut state = self.state();
        let into = &mut state.node(node)?.data;
        let end = write.offset as usize + write.data.len();
        into.resize(into.len().max(end), 0);
        into[write.offset as usize..end].copy_from_slice(write.data);
        Ok(write.data.len())
    }

    fn sync(&self, _: &Request<'_>, node: NodeId, handle: Handle, _: SyncScope) -> Result<()> {
        check(node, handle);
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn fallocate(&self, request: &Request<'_>, node: NodeId, fallocate: &Fallocate) -> Result<()> {
        check(node, fallocate.handle);
        if fallocate.length == ENDLESS {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            self.is_waiting.store(true, Ordering::SeqCst);
            while !request.cancel.is_cancelled() {
                sleep(Duration::from_millis(1));
            }
            self.was_cancelled.store(true, Ordering::SeqCst);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(Errno::INTR);
        }
        let mut state = self.state();
        let data = &mut state.node(node)?.data;
        let (start, end) = (
            fallocate.offset as usize,
            (fallocate.offset + fallocate.length) as usize,
        );
        if !fallocate.mode.contains(FallocateFlags::KEEP_SIZE) {
            data.resize(data.len().max(end), 0);
        }
        if fallocate.mode.contains(FallocateFlags::PUNCH_HOLE) {
            let end = end.min(data.len());
            data[start..end].fill(0);
        }
        Ok(())
    }

    fn seek(
        &self,
        _: &Request<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        check(node, handle);
        let mut state = self.state();
        let data = &state.node(node)?.data;
        let is_wanted = |byte: &u8| (*byte == 0) == (what == Seek::Hole);
        let rest = data.get(offset as usize..).ok_or(Errno::NXIO)?;
        match (rest.iter().position(is_wanted), what) {
            (Some(at), _) => Ok(offset + at as u64),
            (None, Seek::Hole) => Ok(data.len() as u64),
            (None, Seek::Data) => Err(Errno::NXIO),
        }
    }

    fn copy(&self, request: &Request<'_>, copy: &Copy) -> Result<u64> {
        let mut data = vec![0; copy.length as usize];
        let from = copy.from;
        check(from.node, from.handle);
        let len = {
            let mut state = self.state();
            let source = state.node(from.node)?.data.get(from.offset as usize..);
            let source = source.unwrap_or_default();
            let len = source.len().min(data.len());
            data[..len].copy_from_slice(&source[..len]);
            len
        };
        let change = |data: &mut Vec<u8>, bytes: &[u8]| {
            let end = copy.to.offset as usize + bytes.len();
            data.resize(data.len().max(end), 0);
            data[copy.to.offset as usize..end].copy_from_slice(bytes);
        };
        assert!(!request.cancel.is_cancelled());
        check(copy.to.node, copy.to.handle);
        change(&mut self.state().node(copy.to.node)?.data, &data[..len]);
        Ok(len as u64)
    }

    fn ioctl(
        &self,
        _: &Request<'_>,
        _: NodeId,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        if ioctl.command != GET_FLAGS {
            return Err(Errno::NOTTY);
        }
        output[..4].copy_from_slice(&FLAGS.to_ne_bytes());
        Ok(IoctlReply {
            result: 0,
            output_length: 4,
        })
    }

    fn open_directory(&self, _: &Request<'_>, node: NodeId, _: OFlags) -> Result<Opened> {
        Ok(self.opened(node, OFlags::empty()))
    }

    fn release_directory(&self, _: &Request<'_>, node: NodeId, handle: Handle) {
        check(node, handle);
        self.handles.fetch_sub(1, Ordering::SeqCst);
    }

    fn list(
        &self,
        _: &Request<'_>,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<()> {
        check(node, handle);
        let mut state = self.state();
        let files: Vec<_> = state.names.clone().into_iter().collect();
        let dots = [b".".to_vec(), b"..".to_vec()].map(|name| (name, NodeId::ROOT));
        let all = dots.into_iter().chain(files);
        for (next, (name, node)) in (1..).zip(all).skip(cookie as usize) {
            let listed = Listed {
                name: &name,
                inode: node.0,
                file_type: state.attributes(node)?.mode,
                cookie: next,
            };
            if sink.take(&listed, &mut || state.entry(node)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn sync_directory(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        self.sync(request, node, handle, scope)
    }
}
