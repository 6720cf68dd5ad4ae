//! [`Operations`] of a volume; the other modules implement them.

use extant_ext4::NewKind;
use rustix::fs::{OFlags, RenameFlags, XattrFlags};

use super::Volume;
use super::names::kind_of;
use extant_fuse::Notifier;
use extant_fuse::operations::{
    AttributeChange, Attributes, Copy, DirectorySink, Export, Fallocate, Handle, Ioctl, IoctlReply,
    LookupEntry, NewNode, NodeId, Opened, Operations, Privileges, Read, Request, Result, Seek,
    Statistics, SyncScope, Write,
};

impl Operations for Volume {
    fn start(&self, notifier: Notifier) {
        // Once, before anything else.
        let _ = self.notifier.set(notifier);
    }

    fn destroy(&self) {
        // First the files without a name, which are freed with their nodes.
        self.nodes.clear();
        if let Err(error) = self.filesystem.clone().close() {
            (self.report)(&error);
        }
    }

    fn export(&self) -> Export {
        Export::ByNumber
    }

    fn lookup(&self, _: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<LookupEntry> {
        self.lookup_name(parent, name)
    }

    fn forget(&self, node: NodeId, uses: u64) {
        self.nodes.forget(node, uses);
    }

    fn make_node(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        self.make(request, parent, name, kind_of(new)?, new)
    }

    fn make_directory(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
    ) -> Result<LookupEntry> {
        self.make(request, parent, name, NewKind::Directory, new)
    }

    fn make_symlink(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Result<LookupEntry> {
        let new = NewNode {
            mode: 0o777,
            umask: 0,
            device: 0,
        };
        let kind = NewKind::SymbolicLink(target);
        self.make(request, parent, name, kind, &new)
    }

    fn create(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<(LookupEntry, Opened)> {
        self.create_file(request, parent, name, new, flags, privileges)
    }

    fn create_unnamed(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: OFlags,
    ) -> Result<(LookupEntry, Opened)> {
        self.create_file_unnamed(request, parent, new, flags)
    }

    fn link(
        &self,
        _: &Request<'_>,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<LookupEntry> {
        self.link_name(node, parent, name)
    }

    fn unlink(&self, _: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.check_running()?;
        let directory = self.nodes.get(parent)?;
        self.reply_errno(directory.node().unlink(name))?;
        self.names_changed(directory.node())
    }

    fn remove_directory(&self, _: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<()> {
        self.check_running()?;
        let directory = self.nodes.get(parent)?;
        self.reply_errno(directory.node().remove_directory(name))?;
        self.names_changed(directory.node())
    }

    fn rename(
        &self,
        request: &Request<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.check_running()?;
        self.rename_name(request, from, to, flags)
    }

    fn read_link(&self, _: &Request<'_>, node: NodeId, target: &mut Vec<u8>) -> Result<()> {
        let known = self.nodes.get(node)?;
        *target = self.reply_errno(known.node().read_link())?;
        self.update_atime(known.node());
        Ok(())
    }

    fn attributes(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _handle: Option<Handle>,
    ) -> Result<Attributes> {
        self.attributes_of(node)
    }

    fn set_attributes(
        &self,
        request: &Request<'_>,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes> {
        self.change_attributes(request, node, change)
    }

    fn statistics(&self, _: &Request<'_>, _node: NodeId) -> Result<Statistics> {
        Ok(self.statistics_now())
    }

    fn xattr(&self, _: &Request<'_>, node: NodeId, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        self.xattr_value(node, name, value)
    }

    fn list_xattrs(
        &self,
        request: &Request<'_>,
        node: NodeId,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        self.xattr_names(request, node, visit)
    }

    fn set_xattr(
        &self,
        _: &Request<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
        privileges: Privileges,
    ) -> Result<()> {
        self.set_xattr_value(node, name, value, flags, privileges)
    }

    fn remove_xattr(&self, _: &Request<'_>, node: NodeId, name: &[u8]) -> Result<()> {
        self.remove_xattr_value(node, name)
    }

    fn open(
        &self,
        request: &Request<'_>,
        node: NodeId,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<Opened> {
        self.open_file(request, node, flags, privileges)
    }

    fn release(&self, _: &Request<'_>, node: NodeId, handle: Handle, _flags: OFlags) {
        self.close_file(node, handle);
    }

    // `flush` is not implemented: each write reaches the device, so no error is pending when a
    // descriptor is closed.

    fn read(&self, _: &Request<'_>, node: NodeId, read: &Read, data: &mut [u8]) -> Result<usize> {
        self.read_data(node, read, data)
    }

    fn write(&self, request: &Request<'_>, node: NodeId, write: &Write<'_>) -> Result<usize> {
        self.write_data(request, node, write)
    }

    fn sync(&self, _: &Request<'_>, node: NodeId, _handle: Handle, scope: SyncScope) -> Result<()> {
        self.sync_node(node, scope)
    }

    fn fallocate(&self, request: &Request<'_>, node: NodeId, fallocate: &Fallocate) -> Result<()> {
        self.change_space(request, node, fallocate)
    }

    fn seek(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _handle: Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        self.seek_from(node, offset, what)
    }

    fn copy(&self, request: &Request<'_>, copy: &Copy) -> Result<u64> {
        self.copy_data(request, copy)
    }

    fn ioctl(
        &self,
        request: &Request<'_>,
        node: NodeId,
        ioctl: &Ioctl<'_>,
        output: &mut [u8],
    ) -> Result<IoctlReply> {
        self.control(request, node, ioctl, output)
    }

    fn open_directory(&self, _: &Request<'_>, node: NodeId, flags: OFlags) -> Result<Opened> {
        self.open_names(node, flags)
    }

    fn release_directory(&self, _: &Request<'_>, _node: NodeId, handle: Handle) {
        self.directories.close(handle);
    }

    fn list(
        &self,
        _: &Request<'_>,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<()> {
        self.list_names(node, handle, cookie, sink)
    }

    fn sync_directory(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _handle: Handle,
        scope: SyncScope,
    ) -> Result<()> {
        self.sync_node(node, scope)
    }

    fn sync_all(&self, _: &Request<'_>) -> Result<()> {
        self.check_running()?;
        self.reply_errno(self.filesystem.sync())
    }
}
