//! Names: lookup, create, link, rename, unlink.

use std::sync::Arc;

use extant_ext4::{DeviceNumber, NewKind, Node, RenameMode};
use extant_space::ErrorKind;
use rustix::fs::{FileType, OFlags, RenameFlags, major, minor};
use rustix::io::Errno;

use super::Volume;
use super::data::opened;
use super::nodes::NodeEntry;
use extant_fuse::operations::{
    Caller, LookupEntry, NewNode, NodeId, Opened, Privileges, Request, Result,
};

/// Maximum major and minor that an inode can store.
const MAJOR_MAX: u32 = 0xFFF;
const MINOR_MAX: u32 = 0xF_FFFF;

impl Volume {
    pub(super) fn lookup_name(&self, parent: NodeId, name: &[u8]) -> Result<LookupEntry> {
        // The kernel opens files by number this way, also nodes that it has forgotten, or is about
        // to forget.
        if name == b"." {
            let known = self.nodes.get_or_open(parent, &self.filesystem)?;
            if known.node().attributes().links == 0 {
                return Err(Errno::STALE);
            }
            return self.enter(known.node().clone());
        }
        let directory = match name {
            b".." => self.nodes.get_or_open(parent, &self.filesystem)?,
            _ => self.nodes.get(parent)?,
        };
        let found = self.reply_errno(directory.node().lookup(name))?;
        self.enter(found)
    }

    /// Returns an entry, which is a reference to the node.
    pub(super) fn enter(&self, node: Node) -> Result<LookupEntry> {
        self.enter_known(node).map(|(entry, _)| entry)
    }

    fn enter_known(&self, node: Node) -> Result<(LookupEntry, Arc<NodeEntry>)> {
        let attributes = node.attributes();
        let (id, known) = self.reply_errno(self.nodes.add_reference(node))?;
        let entry = LookupEntry {
            node: id,
            generation: attributes.generation.into(),
            attributes: self.shown(&attributes),
        };
        Ok((entry, known))
    }

    pub(super) fn make(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        kind: NewKind<'_>,
        new: &NewNode,
    ) -> Result<LookupEntry> {
        let directory = self.nodes.get(parent)?;
        let new = self.new_node(request.caller, kind, new);
        let made = self.reply_errno(directory.node().create(name, &new))?;
        self.names_changed(directory.node())?;
        self.enter(made)
    }

    pub(super) fn create_file(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<(LookupEntry, Opened)> {
        let directory = self.nodes.get(parent)?;
        let kind = NewKind::Regular;
        let made = directory
            .node()
            .create(name, &self.new_node(request.caller, kind, new));
        let node = match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if flags.contains(OFlags::EXCL) {
                    return Err(Errno::EXIST);
                }
                let (entry, known) =
                    self.enter_known(self.reply_errno(directory.node().lookup(name))?)?;
                let opened = self.open_known(request, &known, flags, privileges);
                let opened = opened.inspect_err(|_| self.nodes.forget(entry.node, 1))?;
                return Ok((entry, opened));
            }
            made => self.reply_errno(made)?,
        };
        self.names_changed(directory.node())?;
        self.enter_opened(node, flags)
    }

    pub(super) fn create_file_unnamed(
        &self,
        request: &Request<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: OFlags,
    ) -> Result<(LookupEntry, Opened)> {
        let directory = self.nodes.get(parent)?;
        let new = self.new_node(request.caller, NewKind::Regular, new);
        let node = self.reply_errno(directory.node().create_unnamed(&new))?;
        self.enter_opened(node, flags)
    }

    /// Adds a reference to a new file, and opens it: the creator of a file has all access.
    fn enter_opened(&self, node: Node, flags: OFlags) -> Result<(LookupEntry, Opened)> {
        let inode_flags = node.attributes().flags;
        let (entry, known) = self.enter_known(node)?;
        Ok((entry, opened(&known, flags, inode_flags)))
    }

    fn new_node<'a>(
        &self,
        caller: Caller,
        kind: NewKind<'a>,
        new: &NewNode,
    ) -> extant_ext4::NewNode<'a> {
        let owners = self.options.owners;
        extant_ext4::NewNode {
            kind,
            permissions: (new.mode & 0o7777) as u16,
            uid: owners.users.other(caller.uid),
            gid: owners.groups.other(caller.gid),
            umask: (new.umask & 0o777) as u16,
        }
    }

    pub(super) fn link_name(
        &self,
        node: NodeId,
        parent: NodeId,
        name: &[u8],
    ) -> Result<LookupEntry> {
        let known = self.nodes.get(node)?;
        let directory = self.nodes.get(parent)?;
        self.reply_errno(directory.node().link(name, known.node()))?;
        self.names_changed(directory.node())?;
        self.enter(known.node().clone())
    }

    pub(super) fn rename_name(
        &self,
        request: &Request<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let mode = self.rename_mode(request.caller, flags)?;
        let (from_directory, to_directory) = (self.nodes.get(from.0)?, self.nodes.get(to.0)?);
        let renamed = from_directory
            .node()
            .rename(from.1, to_directory.node(), to.1, mode);
        self.reply_errno(renamed)?;
        if from.0 != to.0 {
            self.names_changed(to_directory.node())?;
        }
        self.names_changed(from_directory.node())
    }

    fn rename_mode(&self, caller: Caller, flags: RenameFlags) -> Result<RenameMode> {
        let owners = self.options.owners;
        match flags {
            flags if flags.is_empty() => Ok(RenameMode::Replace),
            RenameFlags::NOREPLACE => Ok(RenameMode::NoReplace),
            RenameFlags::EXCHANGE => Ok(RenameMode::Exchange),
            // With NOREPLACE, the kernel has looked up the new name, and holds its directory.
            flags if flags & !RenameFlags::NOREPLACE == RenameFlags::WHITEOUT => {
                Ok(RenameMode::Whiteout {
                    uid: owners.users.other(caller.uid),
                    gid: owners.groups.other(caller.gid),
                })
            }
            _ => Err(Errno::INVAL),
        }
    }
}

/// The kind of a new file that is no directory or link, by its mode.
pub(super) fn kind_of(new: &NewNode) -> Result<NewKind<'static>> {
    let device = || {
        let (major, minor) = (major(new.device), minor(new.device));
        if major <= MAJOR_MAX && minor <= MINOR_MAX {
            Ok(DeviceNumber { major, minor })
        } else {
            Err(Errno::INVAL)
        }
    };
    Ok(match FileType::from_raw_mode(new.mode) {
        FileType::RegularFile => NewKind::Regular,
        FileType::Fifo => NewKind::Fifo,
        FileType::Socket => NewKind::Socket,
        FileType::CharacterDevice => NewKind::CharacterDevice(device()?),
        FileType::BlockDevice => NewKind::BlockDevice(device()?),
        _ => return Err(Errno::INVAL),
    })
}
