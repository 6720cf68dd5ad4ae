//! Listing directories.
//!
//! Names are read from the engine in batches, because a name can be looked up for its attributes
//! only after the engine has released its lock on the directory. A caller that continues
//! the last listing of the same handle misses none of several names with one cookie.

use std::ops::ControlFlow;
use std::ops::Range;

use extant_ext4::{FileType, Node};
use rustix::fs::OFlags;

use super::Volume;
use super::attributes::type_bits;
use super::handles::{LastName, lock};
use extant_fuse::operations::{DirectorySink, Handle, Listed, NodeId, Opened, OpenedFlags, Result};

/// Names of a batch: about a directory block, or a few.
const BATCH: usize = 512;

/// A batch of names.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    names: Vec<Name>,
}

struct Name {
    bytes: Range<usize>,
    inode: u64,
    file_type: Option<FileType>,
    cookie: u64,
}

impl Volume {
    pub(super) fn open_names(&self, node: NodeId, flags: OFlags) -> Result<Opened> {
        self.nodes.get(node)?;
        Ok(Opened {
            handle: self.directories.open(flags),
            flags: OpenedFlags::KEEP_CACHE | OpenedFlags::CACHE_DIRECTORY,
        })
    }

    pub(super) fn list_names(
        &self,
        node: NodeId,
        handle: Handle,
        cookie: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<()> {
        let known = self.nodes.get(node)?;
        let directory = known.node();
        let open = self.directories.get(handle);
        let mut at = match &open {
            Some(open) => std::mem::take(&mut *lock(&open.last)),
            None => LastName::default(),
        };
        if at.cookie != cookie {
            at = LastName {
                cookie,
                name: Vec::new(),
            };
        }
        let mut batch = Batch::default();
        loop {
            self.reply_errno(batch.fill(directory, &at))?;
            let is_full = self.give_out(directory, &batch, sink, &mut at);
            if is_full || batch.names.len() < BATCH {
                break;
            }
        }
        if let Some(open) = &open {
            *lock(&open.last) = at;
        }
        if !open.is_some_and(|open| open.keeps_atime) {
            self.update_atime(directory);
        }
        Ok(())
    }

    /// Passes the batch to the sink; true when the sink is full.
    fn give_out(
        &self,
        directory: &Node,
        batch: &Batch,
        sink: &mut dyn DirectorySink,
        at: &mut LastName,
    ) -> bool {
        for name in &batch.names {
            let bytes = &batch.bytes[name.bytes.clone()];
            let listed = Listed {
                name: bytes,
                inode: name.inode,
                file_type: name.file_type.map_or(0, type_bits),
                cookie: name.cookie,
            };
            // By name, not by number: the inode may have been reused since.
            let mut look_up = || {
                let found = self.reply_errno(directory.lookup(bytes))?;
                self.enter(found)
            };
            if sink.take(&listed, &mut look_up).is_break() {
                return true;
            }
            at.cookie = name.cookie;
            at.name.clear();
            at.name.extend_from_slice(bytes);
        }
        false
    }
}

impl Batch {
    /// Reads the names after `at`.
    fn fill(&mut self, directory: &Node, at: &LastName) -> extant_space::Result<()> {
        self.bytes.clear();
        self.names.clear();
        let mut visit = |listed: extant_ext4::ListedName<'_>| {
            let start = self.bytes.len();
            self.bytes.extend_from_slice(listed.name);
            self.names.push(Name {
                bytes: start..self.bytes.len(),
                inode: listed.inode.0.into(),
                file_type: listed.file_type,
                cookie: listed.cookie,
            });
            match self.names.len() {
                BATCH => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        if at.name.is_empty() {
            directory.list(at.cookie, &mut visit)
        } else {
            directory.list_behind(at.cookie, &at.name, &mut visit)
        }
    }
}
