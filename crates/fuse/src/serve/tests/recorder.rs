//! A file system that records its calls, and returns the same result for all.

use std::sync::Mutex;

use rustix::fs::{OFlags, RenameFlags, XattrFlags, major, minor};
use rustix::io::Errno;

use crate::operations::{
    AttributeChange, Attributes, Copy, DirectorySink, Fallocate, Handle, Ioctl, IoctlReply, Listed,
    LookupEntry, NewNode, NodeId, Opened, OpenedFlags, Operations, Privileges, Read, Request,
    Result, Seek, Statistics, SyncScope, Timestamp, Write,
};

/// Calls in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    /// The calls since the last time.
    pub fn taken(&self) -> String {
        std::mem::take(&mut *self.0.lock().unwrap()).join("; ")
    }

    fn note(&self, call: String) {
        self.0.lock().unwrap().push(call);
    }

    fn note_of(&self, request: &Request<'_>, call: String) {
        let caller = request.caller;
        // Random requests have random users.
        assert!(!request.cancel.is_cancelled(), "{caller:?}");
        self.note(call);
    }
}

const ENTRY: LookupEntry = LookupEntry {
    node: NodeId(77),
    generation: 3,
    attributes: ATTRIBUTES,
};

const ATTRIBUTES: Attributes = Attributes {
    inode: 1077,
    mode: 0o100644,
    links: 1,
    uid: 0,
    gid: 0,
    device: 0,
    size: 5,
    sectors: 8,
    block_size: 4096,
    accessed: TIME,
    modified: TIME,
    changed: TIME,
    created: Some(Timestamp {
        seconds: 11,
        nanoseconds: 1,
    }),
};

const TIME: Timestamp = Timestamp {
    seconds: -3,
    nanoseconds: 7,
};

const OPENED: Opened = Opened {
    handle: Handle(9),
    flags: OpenedFlags::KEEP_CACHE,
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn flags(flags: OFlags) -> String {
    let shown = format!("{flags:?}");
    shown
        .trim_start_matches("OFlags(")
        .trim_end_matches(')')
        .to_owned()
}

fn new_node(new: &NewNode) -> String {
    format!("{:o} umask {:o}", new.mode, new.umask)
}

impl Operations for Recorder {
    fn destroy(&self) {
        self.note("destroy".into());
    }

    fn lookup(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<LookupEntry> {
        self.note_of(request, format!("lookup {} {}", parent.0, text(name)));
        match name {
            b"absent" => Err(Errno::NOENT),
            b"forbidden" => Err(Errno::ACCESS),
            b"panic" => panic!("asked to panic"),
            _ => Ok(ENTRY),
        }
    }

    fn forget(&self, node: NodeId, uses: u64) {
        self.note(format!("forget {} {uses}", node.0));
    }

    fn make_node(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        let device = (major(new.device), minor(new.device));
        self.note_of(
            request,
            format!(
                "make_node {} {} {} device {}:{}",
                parent.0,
                text(name),
                new_node(new),
                device.0,
                device.1
            ),
        );
        Ok(ENTRY)
    }

    fn make_directory(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        let new = new_node(new);
        self.note_of(
            request,
            format!("make_directory {} {} {new}", parent.0, text(name)),
        );
        Ok(ENTRY)
    }

    fn make_symlink(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<LookupEntry> {
        let (name, target) = (text(name), text(target));
        self.note_of(
            request,
            format!("make_symlink {} {name} {target}", parent.0),
        );
        Ok(ENTRY)
    }

    fn create(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        open: OFlags,
        privileges: Privileges,
    ) -> Result<(LookupEntry, Opened)> {
        let (name, new, open) = (text(name), new_node(new), flags(open));
        self.note_of(
            request,
            format!("create {} {name} {new} {open} {privileges:?}", parent.0),
        );
        Ok((ENTRY, OPENED))
    }

    fn create_unnamed(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        new: &NewNode,
        open: OFlags,
    ) -> Result<(LookupEntry, Opened)> {
        let (new, open) = (new_node(new), flags(open));
        self.note_of(request, format!("create_unnamed {} {new} {open}", parent.0));
        Ok((ENTRY, OPENED))
    }

    fn link(
        &self,
        request: &Request<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<LookupEntry> {
        self.note_of(
            request,
            format!("link {} {} {}", node.0, parent.0, text(name)),
        );
        Ok(ENTRY)
    }

    fn unlink(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.note_of(request, format!("unlink {} {}", parent.0, text(name)));
        Ok(())
    }

    fn remove_directory(&self, request: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.note_of(
            request,
            format!("remove_directory {} {}", parent.0, text(name)),
        );
        Ok(())
    }

    fn rename(
        &self,
        request: &Request<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let (old, new) = (text(from.1), text(to.1));
        let (from, to) = (from.0.0, to.0.0);
        self.note_of(request, format!("rename {from} {old} {to} {new} {flags:?}"));
        Ok(())
    }

    fn read_link(&self, request: &Request<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<()> {
        self.note_of(request, format!("read_link {}", node.0));
        assert!(target.is_empty());
        target.extend(b"target");
        Ok(())
    }

    fn attributes(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Option<Handle>,
    ) -> Result<Attributes> {
        self.note_of(request, format!("attributes {} {handle:?}", node.0));
        Ok(ATTRIBUTES)
    }

    fn set_attributes(
        &self,
        request: &Request<'_>,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes> {
        let mut said = format!("set_attributes {}", node.0);
        if let Some(permissions) = change.permissions {
            said += &format!(" mode {permissions:o}");
        }
        if let Some(size) = change.size {
            said += &format!(" size {size}");
        }
        if let Some(Handle(handle)) = change.handle {
            said += &format!(" handle {handle}");
        }
        self.note_of(request, format!("{said} {:?}", change.privileges));
        Ok(ATTRIBUTES)
    }

    fn statistics(&self, request: &Request<'_>, node: NodeId) -> Result<Statistics> {
        self.note_of(request, format!("statistics {}", node.0));
        Ok(Statistics::default())
    }

    fn xattr(
        &self,
        request: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &mut Vec<u8>,
    ) -> Result<()> {
        self.note_of(request, format!("xattr {} {}", node.0, text(name)));
        assert!(value.is_empty());
        value.extend(b"value");
        Ok(())
    }

    fn list_xattrs(
        &self,
        request: &Request<'_>,
        node: NodeId,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        self.note_of(request, format!("list_xattrs {}", node.0));
        visit(b"user.a");
        visit(b"user.b");
        Ok(())
    }

    fn set_xattr(
        &self,
        request: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        privileges: Privileges,
    ) -> Result<()> {
        let (name, value) = (text(name), text(value));
        self.note_of(
            request,
            format!(
                "set_xattr {} {name} {value} {flags:?} {privileges:?}",
                node.0
            ),
        );
        Ok(())
    }

    fn remove_xattr(&self, request: &Request<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        self.note_of(request, format!("remove_xattr {} {}", node.0, text(name)));
        Ok(())
    }

    fn open(
        &self,
        request: &Request<'_>,
        node: NodeId,
        open: OFlags,
        privileges: Privileges,
    ) -> Result<Opened> {
        let open = flags(open);
        self.note_of(request, format!("open {} {open} {privileges:?}", node.0));
        Ok(OPENED)
    }

    fn release(&self, request: &Request<'_>, node: NodeId, handle: Handle, open: OFlags) {
        let open = flags(open);
        self.note_of(request, format!("release {} {} {open}", node.0, handle.0));
    }

    fn flush(&self, request: &Request<'_>, node: NodeId, handle: Handle) -> Result<()> {
        self.note_of(request, format!("flush {} {}", node.0, handle.0));
        Ok(())
    }

    fn read(
        &self,
        request: &Request<'_>,
        node: NodeId,
        read: &Read,
        data: &mut [u8],
    ) -> Result<usize> {
        let len = data.len();
        let Read {
            handle,
            offset,
            origin,
            flags: open,
        } = read;
        let open = flags(*open);
        self.note_of(
            request,
            format!(
                "read {} {} {offset} {len} {origin:?} {open}",
                node.0, handle.0
            ),
        );
        let len = len.min(3);
        data[..len].copy_from_slice(&b"xyz"[..len]);
        Ok(len)
    }

    fn write(&self, request: &Request<'_>, node: NodeId, write: &Write<'_>) -> Result<usize> {
        self.note_of(
            request,
            format!(
                "write {} {} {} {} {:?} {:?} {:?}",
                node.0,
                write.handle.0,
                write.offset,
                text(write.data),
                write.origin,
                write.privileges,
                write.sync
            ),
        );
        Ok(write.data.len())
    }

    fn sync(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        self.note_of(request, format!("sync {} {} {scope:?}", node.0, handle.0));
        Ok(())
    }

    fn fallocate(&self, request: &Request<'_>, node: NodeId, fallocate: &Fallocate) -> Result<()> {
        let mode = format!("{:?}", fallocate.mode);
        let mode = mode
            .trim_start_matches("FallocateFlags(")
            .trim_end_matches(')');
        self.note_of(
            request,
            format!(
                "fallocate {} {} {} {} {mode}",
                node.0, fallocate.handle.0, fallocate.offset, fallocate.length
            ),
        );
        Ok(())
    }

    fn seek(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        self.note_of(
            request,
            format!("seek {} {} {offset} {what:?}", node.0, handle.0),
        );
        Ok(4096)
    }

    fn copy(&self, request: &Request<'_>, copy: &Copy) -> Result<u64> {
        let (from, to) = (copy.from, copy.to);
        self.note_of(
            request,
            format!(
                "copy {} {} {} to {} {} {} of {}",
                from.node.0,
                from.handle.0,
                from.offset,
                to.node.0,
                to.handle.0,
                to.offset,
                copy.length
            ),
        );
        Ok(copy.length / 2)
    }

    fn ioctl(
        &self,
        request: &Request<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        self.note_of(
            request,
            format!(
                "ioctl {} {} {:?} {:x} {} {} {}",
                node.0,
                ioctl.handle.0,
                ioctl.kind,
                ioctl.command,
                ioctl.argument,
                text(ioctl.input),
                output.len()
            ),
        );
        assert!(output.iter().all(|&byte| byte == 0));
        let len = output.len().min(3);
        output[..len].copy_from_slice(&b"out"[..len]);
        Ok(IoctlReply {
            result: 7,
            output_length: len,
        })
    }

    fn open_directory(&self, request: &Request<'_>, node: NodeId, _: OFlags) -> Result<Opened> {
        self.note_of(request, format!("open_directory {}", node.0));
        Ok(OPENED)
    }

    fn release_directory(&self, request: &Request<'_>, node: NodeId, handle: Handle) {
        self.note_of(
            request,
            format!("release_directory {} {}", node.0, handle.0),
        );
    }

    fn list(
        &self,
        request: &Request<'_>,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<()> {
        self.note_of(request, format!("list {} {} {cookie}", node.0, handle.0));
        for (cookie, name) in (1..).zip([&b"."[..], b"..", b"name"]) {
            let listed = Listed {
                name,
                inode: cookie,
                file_type: 0o100000,
                cookie,
            };
            if sink.take(&listed, &mut || Ok(ENTRY)).is_break() {
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
        self.note_of(
            request,
            format!("sync_directory {} {} {scope:?}", node.0, handle.0),
        );
        Ok(())
    }

    fn sync_all(&self, request: &Request<'_>) -> Result<()> {
        self.note_of(request, "sync_all".into());
        Ok(())
    }
}
