//! Operations on open files.

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::{Call, Server, open_flags, privileges};
use crate::operations::{
    Copy, Fallocate, FileKind, FilePosition, Handle, Ioctl, NodeId, Opened, Read, ReadOrigin,
    Result, Seek, SyncScope, Write, WriteOrigin,
};
use crate::protocol::connection::Capabilities;
use crate::protocol::files::{
    CopyIn, CopyOut, FSYNC_FDATASYNC, FallocateIn, FlushIn, FsyncIn, IOCTL_DIR, IOCTL_UNRESTRICTED,
    IoctlIn, IoctlOut, LseekIn, LseekOut, OPEN_KILL_SUIDGID, OpenIn, OpenOut, READ_LOCKOWNER,
    ReadIn, ReleaseIn, SEEK_DATA, SEEK_HOLE, WRITE_CACHE, WRITE_KILL_SUIDGID, WRITE_LOCKOWNER,
    WriteIn, WriteOut,
};

impl Server {
    pub(super) fn open(&self, call: &mut Call<'_>) -> Result<usize> {
        let open: OpenIn = call.body.take()?;
        let flags = open_flags(open.flags);
        let opened = self.operations.open(
            &call.request,
            call.node,
            flags,
            privileges(open.open_flags, OPEN_KILL_SUIDGID),
        );
        match opened {
            Ok(_) => self.writers.opened(call.node, flags),
            Err(Errno::NOSYS) => self.writers.are_unknown(),
            Err(_) => {}
        }
        Ok(call.reply.put(&OpenOut::new(&opened?)))
    }

    pub(super) fn release(&self, call: &mut Call<'_>) -> Result<usize> {
        let release: ReleaseIn = call.body.take()?;
        let (handle, flags) = (Handle(release.fh), open_flags(release.flags));
        self.operations
            .release(&call.request, call.node, handle, flags);
        self.writers.released(call.node, flags);
        Ok(0)
    }

    pub(super) fn flush(&self, call: &mut Call<'_>) -> Result<usize> {
        let flush: FlushIn = call.body.take()?;
        let operations = &self.operations;
        operations.flush(&call.request, call.node, Handle(flush.fh))?;
        Ok(0)
    }

    pub(super) fn read(&self, call: &mut Call<'_>) -> Result<usize> {
        let read: ReadIn = call.body.take()?;
        let data = call.reply.data(read.size)?;
        let room = data.len();
        let operations = &self.operations;
        let read = Read {
            handle: Handle(read.fh),
            offset: read.offset,
            origin: match read.read_flags & READ_LOCKOWNER {
                0 => ReadOrigin::Cache,
                _ => ReadOrigin::Direct,
            },
            flags: open_flags(read.flags),
        };
        let done = operations.read(&call.request, call.node, &read, data)?;
        assert!(done <= room, "read {done} bytes into {room}");
        Ok(done)
    }

    pub(super) fn write(&self, call: &mut Call<'_>) -> Result<usize> {
        let header: WriteIn = call.body.take()?;
        let write = Write {
            handle: Handle(header.fh),
            offset: header.offset,
            data: call.body.take_bytes(header.size)?,
            origin: match header.write_flags {
                flags if flags & WRITE_CACHE != 0 => WriteOrigin::Cache,
                flags if flags & WRITE_LOCKOWNER != 0 => WriteOrigin::Direct,
                _ => WriteOrigin::Caller,
            },
            privileges: privileges(header.write_flags, WRITE_KILL_SUIDGID),
            sync: SyncScope::of(open_flags(header.flags)),
        };
        let done = self.operations.write(&call.request, call.node, &write)?;
        let asked = write.data.len();
        assert!(done <= asked, "wrote {done} bytes of {asked}");
        Ok(call.reply.put(&WriteOut::new(done)))
    }

    pub(super) fn fsync(&self, call: &mut Call<'_>) -> Result<usize> {
        let fsync: FsyncIn = call.body.take()?;
        let (handle, scope) = (Handle(fsync.fh), sync_scope(&fsync));
        let operations = &self.operations;
        operations.sync(&call.request, call.node, handle, scope)?;
        Ok(0)
    }

    pub(super) fn fallocate(&self, call: &mut Call<'_>) -> Result<usize> {
        let header: FallocateIn = call.body.take()?;
        let fallocate = Fallocate {
            handle: Handle(header.fh),
            mode: FallocateFlags::from_bits_retain(header.mode),
            offset: header.offset,
            length: header.length,
        };
        let operations = &self.operations;
        operations.fallocate(&call.request, call.node, &fallocate)?;
        Ok(0)
    }

    pub(super) fn lseek(&self, call: &mut Call<'_>) -> Result<usize> {
        let lseek: LseekIn = call.body.take()?;
        let what = match lseek.whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        self.write_back(call.node, lseek.offset);
        let handle = Handle(lseek.fh);
        let operations = &self.operations;
        let offset = operations.seek(&call.request, call.node, handle, lseek.offset, what)?;
        Ok(call.reply.put(&LseekOut { offset }))
    }

    /// Makes the kernel write back dirty data of a file from `offset` on; see
    /// [`writers`](super::writers).
    fn write_back(&self, node: NodeId, offset: u64) {
        let may_hold = self.agreed.contains(Capabilities::WRITEBACK_CACHE);
        if may_hold
            && self.writers.may_have_written(node)
            && let Some(notifier) = self.notifier.get()
        {
            // On an error the data that the kernel still holds counts as a hole, as before.
            let _ = notifier.data_changed(node, offset, None);
        }
    }

    pub(super) fn copy_file_range(&self, call: &mut Call<'_>) -> Result<usize> {
        // The reply has 32 bits.
        let done = self.copy(call, u64::from(u32::MAX) & !4095)?;
        Ok(call.reply.put(&WriteOut::new(done as usize)))
    }

    pub(super) fn copy_file_range_64(&self, call: &mut Call<'_>) -> Result<usize> {
        let bytes_copied = self.copy(call, u64::MAX)?;
        Ok(call.reply.put(&CopyOut { bytes_copied }))
    }

    fn copy(&self, call: &mut Call<'_>, length_max: u64) -> Result<u64> {
        let header: CopyIn = call.body.take()?;
        if header.flags != 0 {
            return Err(Errno::INVAL);
        }
        let copy = Copy {
            from: FilePosition {
                node: call.node,
                handle: Handle(header.fh_in),
                offset: header.off_in,
            },
            to: FilePosition {
                node: NodeId(header.nodeid_out),
                handle: Handle(header.fh_out),
                offset: header.off_out,
            },
            length: header.len.min(length_max),
        };
        let done = self.operations.copy(&call.request, &copy)?;
        let asked = copy.length;
        assert!(done <= asked, "copied {done} bytes of {asked}");
        Ok(done)
    }

    pub(super) fn ioctl(&self, call: &mut Call<'_>) -> Result<usize> {
        let header: IoctlIn = call.body.take()?;
        if header.flags & IOCTL_UNRESTRICTED != 0 {
            return Err(Errno::NOTTY);
        }
        let ioctl = Ioctl {
            handle: Handle(header.fh),
            kind: match header.flags & IOCTL_DIR {
                0 => FileKind::File,
                _ => FileKind::Directory,
            },
            command: header.cmd,
            argument: header.arg,
            input: call.body.take_bytes(header.in_size)?,
        };
        let prefix = size_of::<IoctlOut>();
        let payload = call.reply.payload();
        let end = prefix.checked_add(header.out_size as usize);
        let output = end.and_then(|end| payload.get_mut(prefix..end));
        let output = output.ok_or(Errno::INVAL)?;
        output.fill(0);
        let room = output.len();
        let reply = self
            .operations
            .ioctl(&call.request, call.node, &ioctl, output)?;
        let (done, result) = (reply.output_length, reply.result);
        assert!(done <= room, "put {done} bytes into {room}");
        assert!(result >= 0, "a result of {result} looks like an error");
        call.reply.put(&IoctlOut::new(result));
        Ok(prefix + done)
    }
}

impl OpenOut {
    pub(super) fn new(opened: &Opened) -> Self {
        Self {
            fh: opened.handle.0,
            open_flags: opened.flags.bits(),
            padding: 0,
        }
    }
}

impl WriteOut {
    fn new(size: usize) -> Self {
        Self {
            size: size as u32,
            padding: 0,
        }
    }
}

impl IoctlOut {
    fn new(result: i32) -> Self {
        Self {
            result,
            flags: 0,
            in_iovs: 0,
            out_iovs: 0,
        }
    }
}

pub(super) fn sync_scope(fsync: &FsyncIn) -> SyncScope {
    match fsync.fsync_flags & FSYNC_FDATASYNC {
        0 => SyncScope::All,
        _ => SyncScope::Data,
    }
}
