//! Stands for the kernel: sends requests to a volume, and keeps the results.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_blockdev::MemoryDevice;
use extant_fuse::Operations;
use extant_fuse::operations::{
    AttributeChange, Attributes, Caller, DirectorySink, Fallocate, FileKind, Handle, Ioctl, Listed,
    LookupEntry, NewNode, NodeId, Opened, Privileges, Read, ReadOrigin, Request, Result, Write,
    WriteOrigin,
};
use extant_mount::volume::{Volume, VolumeOptions};
use extant_space::CancelToken;
use rustix::fs::{FallocateFlags, OFlags};

use crate::image;

pub const ROOT: NodeId = NodeId::ROOT;

/// A volume, and the caller of its requests.
pub struct Kernel {
    pub volume: Volume,
    pub device: Arc<MemoryDevice>,
    pub caller: Caller,
    cancel: CancelToken,
}

impl Kernel {
    /// Root, with a new file system of the given MiB.
    #[track_caller]
    pub fn new(mebibytes: u64) -> Self {
        Self::with(mebibytes, VolumeOptions::default())
    }

    #[track_caller]
    pub fn with(mebibytes: u64, options: VolumeOptions) -> Self {
        let device = image::make(mebibytes);
        Self {
            volume: Volume::new(image::open(&device), options).unwrap(),
            device,
            caller: Caller::default(),
            cancel: CancelToken::new(),
        }
    }

    /// Asks as this user and group from now on.
    pub fn user(&mut self, uid: u32, gid: u32) {
        self.caller = Caller { uid, gid, pid: 0 };
    }

    pub fn request(&self) -> Request<'_> {
        Request {
            caller: self.caller,
            cancel: &self.cancel,
        }
    }

    /// Ends it; e2fsck finds nothing.
    #[track_caller]
    pub fn end(self) {
        self.volume.destroy();
        drop(self.volume);
        image::assert_clean(&self.device);
    }

    pub fn lookup(&self, parent: NodeId, name: &str) -> Result<LookupEntry> {
        self.volume.lookup(&self.request(), parent, name.as_bytes())
    }

    pub fn mkdir(&self, parent: NodeId, name: &str, mode: u32) -> Result<LookupEntry> {
        let new = new_node(mode);
        let request = self.request();
        self.volume
            .make_directory(&request, parent, name.as_bytes(), &new)
    }

    /// A new file, opened for reading and writing.
    pub fn create(&self, parent: NodeId, name: &str, mode: u32) -> Result<(LookupEntry, Opened)> {
        self.volume.create(
            &self.request(),
            parent,
            name.as_bytes(),
            &new_node(mode),
            OFlags::RDWR | OFlags::EXCL,
            Privileges::Keep,
        )
    }

    pub fn open(&self, node: NodeId, flags: OFlags) -> Result<Opened> {
        self.volume
            .open(&self.request(), node, flags, Privileges::Drop)
    }

    pub fn unlink(&self, parent: NodeId, name: &str) -> Result<()> {
        self.volume.unlink(&self.request(), parent, name.as_bytes())
    }

    pub fn attributes(&self, node: NodeId) -> Attributes {
        self.volume.attributes(&self.request(), node, None).unwrap()
    }

    pub fn change(&self, node: NodeId, change: AttributeChange) -> Result<Attributes> {
        self.volume.set_attributes(&self.request(), node, &change)
    }

    pub fn chmod(&self, node: NodeId, mode: u32) {
        let change = AttributeChange {
            permissions: Some(mode),
            ..AttributeChange::default()
        };
        self.change(node, change).unwrap();
    }

    /// A write of a program with the privileges of its user.
    pub fn write(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<usize> {
        let privileges = match self.caller.uid {
            0 => Privileges::Keep,
            _ => Privileges::Drop,
        };
        let write = Write {
            handle: Handle(1),
            offset,
            data,
            origin: WriteOrigin::Caller,
            privileges,
            sync: None,
        };
        self.volume.write(&self.request(), node, &write)
    }

    /// `fallocate` that makes the file longer.
    pub fn fallocate(&self, node: NodeId, offset: u64, length: u64) -> Result<()> {
        let fallocate = Fallocate {
            handle: Handle(1),
            mode: FallocateFlags::empty(),
            offset,
            length,
        };
        self.volume.fallocate(&self.request(), node, &fallocate)
    }

    pub fn read(&self, node: NodeId, offset: u64, length: usize) -> Vec<u8> {
        self.read_with(node, offset, length, OFlags::RDWR)
    }

    /// The same with a file that has these flags.
    pub fn read_with(&self, node: NodeId, offset: u64, length: usize, flags: OFlags) -> Vec<u8> {
        let mut data = vec![0xEE; length];
        let read = Read {
            handle: Handle(1),
            offset,
            origin: ReadOrigin::Cache,
            flags,
        };
        let read = self.volume.read(&self.request(), node, &read, &mut data);
        data.truncate(read.unwrap());
        data
    }

    /// A command on a file that is open for reading and writing.
    pub fn ioctl(&self, node: NodeId, command: u32, input: &[u8], room: usize) -> Result<Vec<u8>> {
        let file = self.open(node, OFlags::RDWR)?;
        self.ioctl_on(node, file.handle, command, input, room)
    }

    pub fn ioctl_on(
        &self,
        node: NodeId,
        handle: Handle,
        command: u32,
        input: &[u8],
        room: usize,
    ) -> Result<Vec<u8>> {
        let mut output = vec![0; room];
        let ioctl = Ioctl {
            handle,
            kind: FileKind::File,
            command,
            argument: 0,
            input,
        };
        let answer = self
            .volume
            .ioctl(&self.request(), node, &ioctl, &mut output)?;
        output.truncate(answer.output_length);
        Ok(output)
    }

    /// Names behind `cookie`, as many as are asked for, with their cookies.
    pub fn list(&self, node: NodeId, handle: Handle, cookie: u64, names: usize) -> Names {
        let mut sink = Names {
            room: names,
            ..Names::default()
        };
        let listed = self
            .volume
            .list(&self.request(), node, handle, cookie, &mut sink);
        listed.unwrap();
        sink
    }

    /// All names but `.` and `..`, sorted.
    pub fn names(&self, node: NodeId) -> Vec<String> {
        let listed = self.list(node, Handle(0), 0, usize::MAX);
        let mut names: Vec<_> = listed.names.into_iter().map(|(name, _)| name).collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }
}

/// Takes names, and the entries of those that are wanted.
#[derive(Default)]
pub struct Names {
    pub room: usize,
    pub names: Vec<(String, u64)>,
    /// Whether more than names are wanted; its result.
    pub plus: bool,
    pub entries: Vec<Result<LookupEntry>>,
}

impl DirectorySink for Names {
    fn take(
        &mut self,
        listed: &Listed<'_>,
        look_up: &mut dyn FnMut() -> Result<LookupEntry>,
    ) -> ControlFlow<()> {
        if self.names.len() == self.room {
            return ControlFlow::Break(());
        }
        let name = String::from_utf8(listed.name.to_vec()).unwrap();
        if self.plus && name != "." && name != ".." {
            self.entries.push(look_up());
        }
        self.names.push((name, listed.cookie));
        ControlFlow::Continue(())
    }
}

pub fn new_node(mode: u32) -> NewNode {
    NewNode {
        mode,
        umask: 0o022,
        device: 0,
    }
}
