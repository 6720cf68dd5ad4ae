//! Data of files: open, read, write, sync, copy.

use extant_ext4::{InodeFlags, Node, WriteTimes};
use extant_space::{ErrorKind, SpaceFile, SyncMode};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::Volume;
use super::handles::FileHandle;
use super::nodes::NodeEntry;
use extant_fuse::operations::{
    Copy, Handle, NodeId, Opened, OpenedFlags, Privileges, Read, ReadOrigin, Request, Result,
    SyncScope, Write, WriteOrigin,
};
use extant_fuse::options::WriteCache;

/// Length of the copy buffer, in bytes.
const COPIED_BYTES: usize = 1 << 20;
/// Maximum length of one copy, in bytes: the caller continues with another request.
const COPIED_BYTES_MAX: u64 = 128 << 20;

impl Volume {
    pub(super) fn open_file(
        &self,
        request: &Request<'_>,
        node: NodeId,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<Opened> {
        let known = self.nodes.get(node)?;
        self.open_known(request, &known, flags, privileges)
    }

    pub(super) fn open_known(
        &self,
        request: &Request<'_>,
        known: &NodeEntry,
        flags: OFlags,
        privileges: Privileges,
    ) -> Result<Opened> {
        self.check_running()?;
        let file = known.file()?;
        let inode_flags = known.node().attributes().flags;
        let writes = FileHandle::of(flags).contains(FileHandle::WRITE);
        if writes && inode_flags.contains(InodeFlags::IMMUTABLE) {
            return Err(Errno::PERM);
        }
        let cuts = flags.contains(OFlags::TRUNC);
        if writes || cuts {
            // The kernel's mount may be writable by a remount, and its cache would take the data.
            self.reply_errno(self.filesystem.check_changeable())?;
        }
        let only_appends = flags.contains(OFlags::APPEND) && !cuts;
        if (writes || cuts) && inode_flags.contains(InodeFlags::APPEND) && !only_appends {
            return Err(Errno::PERM);
        }
        if cuts {
            self.reply_errno(file.resize(0))?;
            self.before_change(known, request.caller, privileges)?;
        }
        Ok(opened(known, flags, inode_flags))
    }

    pub(super) fn close_file(&self, node: NodeId, handle: Handle) {
        let writes = FileHandle::parse(handle).contains(FileHandle::WRITE);
        if writes && let Ok(known) = self.nodes.get(node) {
            known.remove_writer();
        }
    }

    pub(super) fn read_data(&self, node: NodeId, read: &Read, data: &mut [u8]) -> Result<usize> {
        self.check_running()?;
        let known = self.nodes.get(node)?;
        let file = known.file()?;
        if read.origin == ReadOrigin::Cache {
            known.note_cached();
        }
        let mut done = self.reply_errno(file.read_at(data, read.offset))?;
        // A short reply means the end of the file to a direct read, and a hole to a read for the
        // cache, whose pages are locked. Both may have the same handle, because files opened with
        // `DIRECT_IO` can be mapped. Only a writeback cache has data behind the end of the file
        // here. A notification without need would make the kernel ignore a new size that is on its
        // way.
        let is_direct = read.origin == ReadOrigin::Direct;
        let may_be_longer = self.options.write_cache == WriteCache::Back && known.may_be_dirty();
        if done < data.len() && is_direct && may_be_longer {
            if let Some(notifier) = self.notifier.get() {
                notifier.write_back_for_direct_read(node)?;
            }
            done = self.reply_errno(file.read_at(data, read.offset))?;
        }
        if !read.flags.contains(OFlags::NOATIME) {
            self.update_atime(known.node());
        }
        Ok(done)
    }

    pub(super) fn write_data(
        &self,
        request: &Request<'_>,
        node: NodeId,
        write: &Write<'_>,
    ) -> Result<usize> {
        self.check_running()?;
        let known = self.nodes.get(node)?;
        let file = known.file()?;
        if write.origin != WriteOrigin::Cache {
            self.before_change(&known, request.caller, write.privileges)?;
        }
        if write.origin != WriteOrigin::Direct {
            known.note_cached();
        }
        let handle = FileHandle::parse(write.handle);
        let is_past_cache =
            write.origin == WriteOrigin::Direct && handle.contains(FileHandle::DIRECT);
        if is_past_cache && self.options.write_cache == WriteCache::Back {
            known.note_unseen_change();
        }
        // With a writeback cache the kernel stores the times of its writes itself, possibly before
        // the data.
        let times = match (write.origin, self.options.write_cache) {
            (WriteOrigin::Cache, WriteCache::Back) => WriteTimes::Kept,
            _ => WriteTimes::Present,
        };
        let written = file.write_counted(write.data, write.offset, times);
        if write.origin == WriteOrigin::Direct
            && known.is_cached()
            && let Some(notifier) = self.notifier.get()
        {
            // Also after a failure: a part may have been written.
            let end = write.offset.saturating_add(write.data.len() as u64);
            notifier.written_directly(node, write.offset..end);
        }
        if let Err(error) = written.result {
            // The part that was written before the space ran out counts. A write-back must fail:
            // the kernel ignores its length, and would drop the rest as written.
            let is_short = error.kind() == ErrorKind::NoSpace && written.bytes > 0;
            if !is_short || write.origin == WriteOrigin::Cache {
                return self.reply_errno(Err(error));
            }
        }
        // After other writes the kernel asks for the sync itself.
        if is_past_cache {
            self.sync_changed(known.node(), handle.sync().max(write.sync))?;
        }
        Ok(written.bytes)
    }

    /// Makes a change durable.
    pub(super) fn sync_changed(&self, node: &Node, scope: Option<SyncScope>) -> Result<()> {
        match scope {
            Some(scope) => self.reply_errno(node.sync(sync_mode(scope))),
            None => Ok(()),
        }
    }

    pub(super) fn sync_node(&self, node: NodeId, scope: SyncScope) -> Result<()> {
        self.check_running()?;
        let known = self.nodes.get(node)?;
        self.reply_errno(known.node().sync(sync_mode(scope)))
    }

    pub(super) fn copy_data(&self, request: &Request<'_>, copy: &Copy) -> Result<u64> {
        self.check_running()?;
        let (from, to) = (
            self.nodes.get(copy.from.node)?,
            self.nodes.get(copy.to.node)?,
        );
        let (source, target) = (from.file()?, to.file()?);
        // The kernel has written back the source range, but nothing after it: a hole in the range
        // may seem to be the end of the file.
        if from.may_be_dirty() {
            self.flush_cache(copy.from.node, 0, None)?;
        }
        self.before_change_by(&to, request.caller)?;
        let wanted = copy.length.min(COPIED_BYTES_MAX);
        let mut buffer = vec![0; wanted.min(COPIED_BYTES as u64) as usize];
        let mut done = 0;
        while done < wanted {
            let length = (wanted - done).min(buffer.len() as u64) as usize;
            let piece = &mut buffer[..length];
            let copied = source
                .read_at(piece, copy.from.offset + done)
                .and_then(|read| {
                    let offset = copy.to.offset + done;
                    let written = target.write_counted(&piece[..read], offset, WriteTimes::Present);
                    // Exactly: the kernel derives the size of the file from it.
                    done += written.bytes as u64;
                    written.result.map(|()| read)
                });
            match copied {
                Ok(0) => break,
                Ok(_) => {}
                // The copied part counts; the next request returns the error.
                Err(_) if done > 0 => break,
                Err(error) => return self.reply_errno(Err(error)),
            }
            if request.cancel.is_cancelled() {
                break;
            }
        }
        if !FileHandle::parse(copy.from.handle).contains(FileHandle::NO_ATIME) {
            self.update_atime(from.node());
        }
        self.sync_changed(to.node(), FileHandle::parse(copy.to.handle).sync())?;
        Ok(done)
    }
}

fn sync_mode(scope: SyncScope) -> SyncMode {
    match scope {
        SyncScope::Data => SyncMode::Data,
        SyncScope::All => SyncMode::All,
    }
}

/// How the kernel treats a file that was opened with `flags`.
pub(super) fn opened(known: &NodeEntry, flags: OFlags, inode_flags: InodeFlags) -> Opened {
    // Only the kernel changes files; the ioctls that do notify it.
    let mut treated = OpenedFlags::KEEP_CACHE;
    let mut handle = FileHandle::of(flags);
    let syncs = inode_flags.contains(InodeFlags::SYNC);
    // A cache would write whole pages, also before the end of the file, and later.
    let past_cache = inode_flags.contains(InodeFlags::APPEND) || syncs;
    if flags.contains(OFlags::DIRECT) || past_cache {
        treated |= OpenedFlags::DIRECT_IO | OpenedFlags::PARALLEL_DIRECT_WRITES;
        handle |= FileHandle::DIRECT;
    }
    handle |= match SyncScope::of(flags) {
        _ if syncs => FileHandle::SYNC_ALL,
        Some(SyncScope::All) => FileHandle::SYNC_ALL,
        Some(SyncScope::Data) => FileHandle::SYNC_DATA,
        None => FileHandle::empty(),
    };
    if handle.contains(FileHandle::WRITE) {
        known.add_writer();
    }
    Opened {
        handle: handle.handle(),
        flags: treated,
    }
}
