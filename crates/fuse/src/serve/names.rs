//! Operations on names.

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::{Call, Server, VALIDITY, open_flags, privileges};
use crate::operations::{LookupEntry, NewNode, NodeId, Opened, Result};
use crate::protocol::attributes::{EntryOut, decode_device};
use crate::protocol::files::{OPEN_KILL_SUIDGID, OpenOut};
use crate::protocol::names::{
    BatchForgetIn, CreateIn, ForgetIn, ForgetOne, LinkIn, MkdirIn, MknodIn, Rename2In, RenameIn,
};

/// The file type in a mode, and that of regular files.
const FILE_TYPE: u32 = 0o170000;
const REGULAR: u32 = 0o100000;
const DIRECTORY: u32 = 0o040000;

impl Server {
    pub(super) fn lookup(&self, call: &mut Call<'_>) -> Result<usize> {
        let name = call.body.take_name()?;
        match self.operations.lookup(&call.request, call.node, name) {
            Ok(entry) => Ok(put_entry(call, &entry)),
            Err(Errno::NOENT) => Ok(call.reply.put(&EntryOut::absent(VALIDITY))),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn forget(&self, call: &mut Call<'_>) {
        if let Ok(forget) = call.body.take::<ForgetIn>() {
            self.operations.forget(call.node, forget.nlookup);
        }
    }

    pub(super) fn forget_batch(&self, call: &mut Call<'_>) {
        let Ok(batch) = call.body.take::<BatchForgetIn>() else {
            return;
        };
        for _ in 0..batch.count {
            let Ok(one) = call.body.take::<ForgetOne>() else {
                return;
            };
            self.operations.forget(NodeId(one.nodeid), one.nlookup);
        }
    }

    pub(super) fn mknod(&self, call: &mut Call<'_>) -> Result<usize> {
        let mknod: MknodIn = call.body.take()?;
        let name = call.body.take_name()?;
        let new = NewNode {
            mode: mknod.mode,
            umask: mknod.umask & 0o777,
            device: decode_device(mknod.rdev),
        };
        let made = self
            .operations
            .make_node(&call.request, call.node, name, &new);
        Ok(put_entry(call, &made?))
    }

    pub(super) fn mkdir(&self, call: &mut Call<'_>) -> Result<usize> {
        let mkdir: MkdirIn = call.body.take()?;
        let name = call.body.take_name()?;
        let new = new_node(mkdir.mode, mkdir.umask, DIRECTORY);
        let made = self
            .operations
            .make_directory(&call.request, call.node, name, &new);
        Ok(put_entry(call, &made?))
    }

    pub(super) fn symlink(&self, call: &mut Call<'_>) -> Result<usize> {
        let name = call.body.take_name()?;
        let target = call.body.take_name()?;
        let made = self
            .operations
            .make_symlink(&call.request, call.node, name, target);
        Ok(put_entry(call, &made?))
    }

    pub(super) fn create(&self, call: &mut Call<'_>) -> Result<usize> {
        let create: CreateIn = call.body.take()?;
        let name = call.body.take_name()?;
        let made = self.operations.create(
            &call.request,
            call.node,
            name,
            &new_node(create.mode, create.umask, REGULAR),
            open_flags(create.flags),
            privileges(create.open_flags, OPEN_KILL_SUIDGID),
        )?;
        Ok(self.put_created(call, &made, &create))
    }

    pub(super) fn tmpfile(&self, call: &mut Call<'_>) -> Result<usize> {
        let create: CreateIn = call.body.take()?;
        let made = self.operations.create_unnamed(
            &call.request,
            call.node,
            &new_node(create.mode, create.umask, REGULAR),
            open_flags(create.flags),
        )?;
        Ok(self.put_created(call, &made, &create))
    }

    fn put_created(
        &self,
        call: &mut Call<'_>,
        (entry, opened): &(LookupEntry, Opened),
        create: &CreateIn,
    ) -> usize {
        self.writers.opened(entry.node, open_flags(create.flags));
        let end = put_entry(call, entry);
        call.reply.put_at(end, &OpenOut::new(opened))
    }

    pub(super) fn link(&self, call: &mut Call<'_>) -> Result<usize> {
        let link: LinkIn = call.body.take()?;
        let name = call.body.take_name()?;
        let node = NodeId(link.oldnodeid);
        let linked = self.operations.link(&call.request, node, call.node, name);
        Ok(put_entry(call, &linked?))
    }

    pub(super) fn unlink(&self, call: &mut Call<'_>) -> Result<usize> {
        let name = call.body.take_name()?;
        self.operations.unlink(&call.request, call.node, name)?;
        Ok(0)
    }

    pub(super) fn rmdir(&self, call: &mut Call<'_>) -> Result<usize> {
        let name = call.body.take_name()?;
        let operations = &self.operations;
        operations.remove_directory(&call.request, call.node, name)?;
        Ok(0)
    }

    pub(super) fn rename(&self, call: &mut Call<'_>) -> Result<usize> {
        let rename: RenameIn = call.body.take()?;
        self.rename_to(call, NodeId(rename.newdir), RenameFlags::empty())
    }

    pub(super) fn rename2(&self, call: &mut Call<'_>) -> Result<usize> {
        let rename: Rename2In = call.body.take()?;
        let flags = RenameFlags::from_bits_retain(rename.flags);
        self.rename_to(call, NodeId(rename.newdir), flags)
    }

    fn rename_to(
        &self,
        call: &mut Call<'_>,
        directory: NodeId,
        flags: RenameFlags,
    ) -> Result<usize> {
        let from = (call.node, call.body.take_name()?);
        let to = (directory, call.body.take_name()?);
        self.operations.rename(&call.request, from, to, flags)?;
        Ok(0)
    }

    pub(super) fn readlink(&self, call: &mut Call<'_>) -> Result<usize> {
        call.scratch.clear();
        let operations = &self.operations;
        operations.read_link(&call.request, call.node, call.scratch)?;
        // The kernel terminates the string in the same page.
        call.reply
            .put_bytes(call.scratch, 4095)
            .map_err(|_| Errno::NAMETOOLONG)
    }
}

fn new_node(mode: u32, umask: u32, file_type: u32) -> NewNode {
    NewNode {
        mode: (mode & !FILE_TYPE) | file_type,
        umask: umask & 0o777,
        device: 0,
    }
}

fn put_entry(call: &mut Call<'_>, entry: &LookupEntry) -> usize {
    call.reply.put(&EntryOut::new(entry, VALIDITY))
}
