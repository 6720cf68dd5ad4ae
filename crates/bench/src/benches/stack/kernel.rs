//! The stack in the kernel: ext4 on a loop device over memory or over the disk (direct), and ext4
//! on a loop device over a file in it, direct or through the page cache.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use extant_hostfs::HostFile;
use extant_testkit::command::{run, tool};
use extant_testkit::scratch::{DirectIo, Filesystem, LoopDevice, Mount, Scratch};
use rustix::fs::{FallocateFlags, OFlags};

use super::MKFS;
use super::program::{Block, ImageFile};

/// Whether the program's allocation is passed to the file system below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passing {
    /// Not, as the kernel does.
    Off,
    /// By `extant assign`.
    Assign,
}

/// A stack that is measured.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    pub(super) passing: Passing,
    /// Of the loop device between the file systems.
    pub(super) direct_io: DirectIo,
}

/// Where the outer file system is.
pub(super) enum Lowest<'a> {
    /// In memory, at most this number of bytes.
    Memory(u64),
    /// In a sparse file of this directory.
    Directory(&'a Path),
}

/// The stack. Dropped from above.
pub(super) struct Stack {
    file: File,
    /// The command that passes the allocation on.
    assign: Option<RefCell<Command>>,
    path: PathBuf,
    _inner: Mount,
    _device: LoopDevice,
    backing: PathBuf,
    _outer: Scratch,
}

impl Stack {
    /// File systems of these sizes.
    pub(super) fn new(
        outer: u64,
        inner: u64,
        lowest: Lowest<'_>,
        variant: Variant,
        mut extant: Command,
    ) -> Result<Self> {
        let builder = Scratch::builder(Filesystem::Ext4, outer).mkfs_options(MKFS);
        let outer = match lowest {
            Lowest::Memory(bytes) => builder.memory(bytes),
            Lowest::Directory(directory) => builder.backed_in(directory).direct_io(),
        }
        .build();
        let backing = outer.path().join("file");
        File::create_new(&backing)?.set_len(inner)?;
        let device = LoopDevice::attach_with(&backing, variant.direct_io, 512);
        run(tool("mkfs.ext4").args(MKFS).arg(device.path()))?;
        let place = outer.directory_beside("inner");
        let inner = Mount::new("ext4", device.path(), &place, "");
        let path = inner.path().join("file");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .custom_flags(OFlags::DIRECT.bits() as i32)
            .open(&path)?;
        rustix::fs::sync();
        extant.args(["assign", "--quiet"]).arg(&path);
        Ok(Self {
            file,
            assign: (variant.passing == Passing::Assign).then(|| RefCell::new(extant)),
            path,
            _inner: inner,
            _device: device,
            backing,
            _outer: outer,
        })
    }

    /// The files, from the top one down.
    pub(super) fn files(&self) -> Result<[HostFile; 2]> {
        rustix::fs::sync();
        Ok([
            HostFile::open_read(&self.path)?,
            HostFile::open_read(&self.backing)?,
        ])
    }
}

impl ImageFile for Stack {
    fn allocate(&self, bytes: u64) -> Result<()> {
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, bytes)?;
        if let Some(assign) = &self.assign {
            run(&mut assign.borrow_mut())?;
        }
        Ok(())
    }

    fn write(&self, block: &Block, offset: u64) -> Result<()> {
        // Direct writes of a block are done as a whole or fail.
        rustix::io::pwrite(&self.file, block.bytes(), offset)?;
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(rustix::fs::fsync(self.file.as_fd())?)
    }
}
