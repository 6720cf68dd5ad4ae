//! Requests of the kernel, answered from the store, or by a fault.
//!
//! Attributes and names are not to be cached: the kernel asks each time, so a test reads the stored
//! data.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use extant_space::ByteRange;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::RenameFault;
use super::blocks::{BLOCK, Blocks};
use super::state::Shared;
use super::store::{Kind, Result};

const UNCACHED: Duration = Duration::ZERO;

/// The side of the kernel.
pub(super) struct Server(pub(super) Arc<Shared>);

fn empty(reply: ReplyEmpty, result: Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// The data bypasses the page cache, and concurrent writes are allowed.
fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, directory: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.0.request().store.lookup(directory, name) {
            Ok(attributes) => reply.entry(&UNCACHED, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.0.lock().store.forget(number, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.request().store.attributes(number) {
            Ok(attributes) => reply.attr(&UNCACHED, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut state = self.0.request();
        let result = (|| {
            if let Some(size) = size {
                state.store.file(number)?.resize(size);
            }
            let inode = state.store.get(number)?;
            inode.perm = mode.map_or(inode.perm, |mode| (mode & 0o7777) as u16);
            inode.uid = uid.unwrap_or(inode.uid);
            inode.gid = gid.unwrap_or(inode.gid);
            inode.mtime = match mtime {
                Some(TimeOrNow::SpecificTime(time)) => time,
                Some(TimeOrNow::Now) => SystemTime::now(),
                None => inode.mtime,
            };
            state.store.attributes(number)
        })();
        match result {
            Ok(attributes) => reply.attr(&UNCACHED, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        directory: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let owner = (request.uid(), request.gid());
        let kind = Kind::Directory(Default::default());
        let made = self
            .0
            .request()
            .store
            .create(directory, name, kind, mode, owner);
        match made {
            Ok(attributes) => reply.entry(&UNCACHED, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        directory: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let owner = (request.uid(), request.gid());
        let kind = Kind::File(Blocks::default());
        let mut state = self.0.request();
        let made = state
            .check_open(flags)
            .and_then(|()| state.store.create(directory, name, kind, mode, owner));
        match made {
            Ok(attributes) => {
                let handle = FileHandle(0);
                reply.created(&UNCACHED, &attributes, Generation(0), handle, open_flags());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn unlink(&self, _: &Request, directory: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.0.request().store.remove(directory, name, false));
    }

    fn rmdir(&self, _: &Request, directory: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty(reply, self.0.request().store.remove(directory, name, true));
    }

    fn rename(
        &self,
        _: &Request,
        directory: INodeNo,
        name: &OsStr,
        new_directory: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mut state = self.0.request();
        let result = if state.faults.rename == RenameFault::NoFlags && !flags.is_empty() {
            Err(Errno::EINVAL)
        } else {
            let store = &mut state.store;
            store.rename((directory, name), (new_directory, new_name), flags)
        };
        empty(reply, result);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let mut state = self.0.request();
        let checked = state.check_open(flags.0);
        match checked.and_then(|()| state.store.file(number)) {
            Ok(_) => reply.opened(FileHandle(0), open_flags()),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut state = self.0.slow_request();
        state.counters.reads += 1;
        let range = ByteRange::at(offset, size.into()).ok_or(Errno::EINVAL);
        match range.and_then(|range| Ok(state.store.file(number)?.read(range))) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let result = self.0.slow_request().write(number, offset, data);
        match result {
            Ok(length) => reply.written(length),
            Err(errno) => reply.error(errno),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mut state = self.0.slow_request();
        let range = ByteRange::at(offset, length).ok_or(Errno::EFBIG);
        let result = range.and_then(|range| state.fallocate(number, range, mode));
        empty(reply, result);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        let result = self.0.slow_sync().fsync();
        empty(reply, result);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn lseek(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let mut state = self.0.request();
        let found = state.store.file(number).and_then(|file| {
            let place = file.seek(offset as u64, whence == libc::SEEK_DATA);
            place.ok_or(Errno::ENXIO)
        });
        match found {
            Ok(place) => reply.offset(place as i64),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        directory: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = self.0.request().list(directory);
        match entries {
            Ok(entries) => {
                let rest = entries.into_iter().zip(1..).skip(offset as usize);
                for ((number, kind, name), next) in rest {
                    if reply.add(number, next, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let state = self.0.request();
        let (all, free) = (state.store.capacity_blocks, state.store.free_blocks());
        let block = BLOCK as u32;
        reply.statfs(all, free, free, 1 << 20, 1 << 20, block, 255, block);
    }
}
