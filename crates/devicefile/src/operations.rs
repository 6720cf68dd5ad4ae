//! The file system: a directory with the file, or the file alone.
//!
//! Each request is one call of the device, made by the thread that has received it; the FUSE server
//! has as many threads as requests may be in flight.
//!
//! Errors are those of the device: a full disk is `ENOSPC`, a failure `EIO`. They are also reported
//! with their location, which an errno has not.
//!
//! A file of fixed size ends like a disk: a write there is short, then `ENOSPC`. It is not
//! truncated: that would lose the rest of the disk.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_blockdev::{Access, Device, DiscardPolicy, Persistence, Zeroing};
use extant_fuse::Operations;
use extant_fuse::operations::{
    AttributeChange, Attributes, DirectorySink, Fallocate, Handle, Listed, LookupEntry, NodeId,
    Opened, OpenedFlags, Privileges, Read, Request, Result, RootKind, Seek, Statistics, SyncScope,
    Write,
};
use extant_space::{ByteRange, Error, ErrorKind, FallocateMode};
use extant_sys::mounted::fallocate_mode;
use parking_lot::Mutex;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::attributes::FileAttributes;
use crate::bytes::ByteDevice;
use crate::options::{DeviceFileOptions, Growth};
use crate::space::{self, AllocatedSpace};

/// The file in a mounted directory.
const IN_DIRECTORY: NodeId = NodeId(2);
/// Handle of a file whose changes are durable when they return.
const SYNCHRONOUS: Handle = Handle(1);
/// Units of `statvfs`, in bytes.
const STATISTICS_BLOCK: u32 = 4096;
const NAME_BYTES_MAX: u32 = 255;
/// Space for zeroes past the end of a block device has this unit, in bytes.
const GROWTH_UNIT: u64 = 512;

/// Called with each error of the device.
type Report = Box<dyn Fn(&Error) + Send + Sync>;

/// A device as a file.
pub struct DeviceFile {
    bytes: ByteDevice,
    name: Option<OsString>,
    access: Access,
    punch: DiscardPolicy,
    growth: Growth,
    /// Held while the device grows.
    growing: Mutex<()>,
    attributes: FileAttributes,
    space: AllocatedSpace,
    /// The changes that are durable.
    flushed: AtomicU64,
    report: Report,
}

impl DeviceFile {
    /// `device` as a file.
    pub fn new(device: Arc<dyn Device>, options: DeviceFileOptions) -> Self {
        Self {
            bytes: ByteDevice::new(device),
            name: options.name,
            access: options.access,
            punch: options.punch,
            growth: options.growth,
            growing: Mutex::new(()),
            attributes: FileAttributes::new(options.owner, options.modified),
            space: AllocatedSpace::default(),
            flushed: AtomicU64::new(0),
            report: Box::new(|_| {}),
        }
    }

    /// Calls `report` with each error of the device.
    #[must_use]
    pub fn reporting(self, report: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        Self {
            report: Box::new(report),
            ..self
        }
    }

    fn file(&self) -> NodeId {
        match self.name {
            Some(_) => IN_DIRECTORY,
            None => NodeId::ROOT,
        }
    }

    fn check_is_file(&self, node: NodeId) -> Result<()> {
        if node == self.file() {
            Ok(())
        } else {
            Err(Errno::ISDIR)
        }
    }

    fn check_is_directory(&self, node: NodeId) -> Result<()> {
        match self.check_is_file(node) {
            Ok(()) => Err(Errno::NOTDIR),
            Err(_) => Ok(()),
        }
    }

    fn check_writable(&self) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Errno::ROFS),
        }
    }

    fn errno<T>(&self, result: extant_space::Result<T>) -> Result<T> {
        result.map_err(|error| {
            let kind = error.kind();
            if matches!(
                kind,
                ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::NotKept
            ) {
                (self.report)(&error);
            }
            match kind {
                // The image, and no file system of the caller.
                ErrorKind::Corrupt => Errno::IO,
                _ => Errno::from_raw_os_error(kind.errno()),
            }
        })
    }

    /// The result of a change of the device, which may have been made in part.
    fn changed<T>(&self, result: extant_space::Result<T>) -> Result<T> {
        self.space.note_change();
        self.attributes.touch();
        self.errno(result)
    }

    fn flush_device(&self) -> Result<()> {
        let changes = self.space.changes();
        self.errno(self.bytes.device().flush())?;
        self.flushed.fetch_max(changes, Ordering::Release);
        Ok(())
    }

    fn attributes_of(&self, node: NodeId) -> Result<Attributes> {
        if node != self.file() {
            return Ok(self.attributes.of_directory(node.0));
        }
        let allocated = self.errno(self.space.bytes(&self.bytes))?;
        Ok(self
            .attributes
            .of_file(node.0, self.bytes.size(), allocated))
    }

    fn entry(&self) -> Result<LookupEntry> {
        let node = self.file();
        Ok(LookupEntry {
            node,
            generation: 0,
            attributes: self.attributes_of(node)?,
        })
    }

    /// Makes the device end at or after `end`.
    fn grow(&self, end: u64) -> Result<()> {
        if end <= self.bytes.size() {
            return Ok(());
        }
        if self.growth == Growth::Fixed {
            return Err(Errno::NOSPC);
        }
        let _growing = self.growing.lock();
        if end <= self.bytes.size() {
            return Ok(());
        }
        let end = end
            .checked_next_multiple_of(GROWTH_UNIT)
            .filter(|&end| i64::try_from(end).is_ok())
            .ok_or(Errno::FBIG)?;
        self.changed(self.bytes.device().grow(end))
    }

    /// The part of `range` in the file.
    fn inside(&self, range: ByteRange) -> Option<ByteRange> {
        range.intersection(ByteRange::new(0, self.bytes.size()))
    }

    fn change_space(&self, mode: FallocateMode, range: ByteRange) -> Result<()> {
        let keeps_size = match mode {
            FallocateMode::Allocate | FallocateMode::ZeroRange => false,
            FallocateMode::AllocateKeepSize
            | FallocateMode::ZeroRangeKeepSize
            | FallocateMode::PunchHole => true,
            _ => return Err(Errno::OPNOTSUPP),
        };
        if !keeps_size {
            self.grow(range.end())?;
        } else if mode == FallocateMode::AllocateKeepSize && range.end() > self.bytes.size() {
            // There is no space past the end of a device.
            return Err(Errno::NOSPC);
        }
        let Some(range) = self.inside(range) else {
            return Ok(());
        };
        let done = match mode {
            FallocateMode::Allocate | FallocateMode::AllocateKeepSize => {
                space::allocate(&self.bytes, range)
            }
            _ => {
                let may_unmap = mode == FallocateMode::PunchHole;
                let zeroing = Zeroing {
                    space: self.punch.zeroed_space(may_unmap),
                    ..Zeroing::ALLOCATED
                };
                self.bytes.zero(range, zeroing)
            }
        };
        self.changed(done)
    }

    fn resize(&self, size: u64) -> Result<()> {
        if size < self.bytes.size() {
            return Err(Errno::PERM);
        }
        match self.growth {
            Growth::Fixed if size > self.bytes.size() => Err(Errno::PERM),
            _ => self.grow(size),
        }
    }
}

impl Operations for DeviceFile {
    fn destroy(&self) {
        // Its error was reported.
        let _ = self.flush_device();
    }

    fn root_kind(&self) -> RootKind {
        match self.name {
            Some(_) => RootKind::Directory,
            None => RootKind::File,
        }
    }

    fn lookup(&self, _: &Request<'_>, parent: NodeId, name: &[u8]) -> Result<LookupEntry> {
        self.check_is_directory(parent)?;
        match &self.name {
            Some(own) if own.as_bytes() == name => self.entry(),
            _ => Err(Errno::NOENT),
        }
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
        _: &Request<'_>,
        node: NodeId,
        change: &AttributeChange,
    ) -> Result<Attributes> {
        if node != self.file() {
            return Err(Errno::PERM);
        }
        self.check_writable()?;
        if let Some(size) = change.size {
            self.resize(size)?;
        }
        self.attributes.change(change);
        self.attributes_of(node)
    }

    fn statistics(&self, _: &Request<'_>, _node: NodeId) -> Result<Statistics> {
        Ok(Statistics {
            blocks: self.bytes.size().div_ceil(STATISTICS_BLOCK.into()),
            files: 1,
            block_size: STATISTICS_BLOCK,
            name_length_max: NAME_BYTES_MAX,
            ..Statistics::default()
        })
    }

    fn open(
        &self,
        _: &Request<'_>,
        node: NodeId,
        flags: OFlags,
        _privileges: Privileges,
    ) -> Result<Opened> {
        self.check_is_file(node)?;
        if flags.contains(OFlags::TRUNC) {
            self.check_writable()?;
            self.resize(0)?;
        }
        Ok(Opened {
            handle: match SyncScope::of(flags) {
                Some(_) => SYNCHRONOUS,
                None => Handle::default(),
            },
            flags: OpenedFlags::DIRECT_IO | OpenedFlags::PARALLEL_DIRECT_WRITES,
        })
    }

    /// Makes the changes durable that are not: an image keeps some in memory, which a kill of the
    /// server would lose.
    fn flush(&self, _: &Request<'_>, _node: NodeId, _handle: Handle) -> Result<()> {
        if self.flushed.load(Ordering::Acquire) == self.space.changes() {
            return Ok(());
        }
        self.flush_device()
    }

    fn read(&self, _: &Request<'_>, node: NodeId, read: &Read, data: &mut [u8]) -> Result<usize> {
        self.check_is_file(node)?;
        let rest = self.bytes.size().saturating_sub(read.offset);
        let length = rest.min(data.len() as u64) as usize;
        if length > 0 {
            self.errno(self.bytes.read(&mut data[..length], read.offset))?;
        }
        Ok(length)
    }

    fn write(&self, _: &Request<'_>, node: NodeId, write: &Write<'_>) -> Result<usize> {
        self.check_is_file(node)?;
        self.check_writable()?;
        let length = write.data.len() as u64;
        if length == 0 {
            return Ok(0);
        }
        let end = write.offset.checked_add(length).ok_or(Errno::FBIG)?;
        if self.growth == Growth::OnDemand {
            self.grow(end)?;
        }
        let rest = self.bytes.size().saturating_sub(write.offset);
        let length = rest.min(length) as usize;
        if length == 0 {
            return Err(Errno::NOSPC);
        }
        let persistence = match write.sync {
            Some(_) => Persistence::Fua,
            None => Persistence::Cached,
        };
        let data = &write.data[..length];
        self.changed(self.bytes.write(data, write.offset, persistence))?;
        Ok(length)
    }

    fn sync(&self, _: &Request<'_>, _node: NodeId, _handle: Handle, _: SyncScope) -> Result<()> {
        self.flush_device()
    }

    fn fallocate(&self, _: &Request<'_>, node: NodeId, fallocate: &Fallocate) -> Result<()> {
        self.check_is_file(node)?;
        self.check_writable()?;
        let mode = fallocate_mode(fallocate.mode.bits()).ok_or(Errno::OPNOTSUPP)?;
        let range = ByteRange::at(fallocate.offset, fallocate.length).ok_or(Errno::FBIG)?;
        self.change_space(mode, range)?;
        if fallocate.handle == SYNCHRONOUS {
            self.flush_device()?;
        }
        Ok(())
    }

    fn seek(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _handle: Handle,
        offset: u64,
        what: Seek,
    ) -> Result<u64> {
        self.check_is_file(node)?;
        if offset >= self.bytes.size() {
            return Err(Errno::NXIO);
        }
        let found = self.errno(space::seek(&self.bytes, offset, what))?;
        found.ok_or(Errno::NXIO)
    }

    fn open_directory(&self, _: &Request<'_>, node: NodeId, _flags: OFlags) -> Result<Opened> {
        self.check_is_directory(node)?;
        Ok(Opened::default())
    }

    fn list(
        &self,
        _: &Request<'_>,
        node: NodeId,
        _handle: Handle,
        cookie: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<()> {
        self.check_is_directory(node)?;
        let name = self.name.as_deref().unwrap_or_default().as_bytes();
        let (root, file) = (NodeId::ROOT.0, self.file().0);
        let directory = self.attributes.of_directory(root).mode;
        let all = [
            (&b"."[..], root, directory),
            (b"..", root, directory),
            (name, file, self.attributes.of_file(file, 0, 0).mode),
        ];
        for (at, (name, inode, mode)) in all.into_iter().enumerate().skip(cookie as usize) {
            let listed = Listed {
                name,
                inode,
                file_type: mode & !0o7777,
                cookie: at as u64 + 1,
            };
            if sink.take(&listed, &mut || self.entry()).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn sync_directory(
        &self,
        _: &Request<'_>,
        _node: NodeId,
        _handle: Handle,
        _: SyncScope,
    ) -> Result<()> {
        self.flush_device()
    }

    fn sync_all(&self, _: &Request<'_>) -> Result<()> {
        self.flush_device()
    }
}
