//! The layers below a file on the running system: partitions, loop devices, volumes and arrays, and
//! the files that those are over, down to disks.
//!
//! Known are file systems whose extent map shows places on their block device (ext2, ext3, ext4,
//! XFS), partitions, loop devices without encryption, and devices whose places never change: linear
//! and striped targets of the device mapper (thick volumes of LVM), and the arrays linear, raid0
//! and raid1 of md. Below tmpfs is memory. Everything else ends the stack, with the reason.
//!
//! Model: a device is a list of segments over members. A byte of a mirror is stored by each member:
//! all copies are visited. What stores a range is a tree: one file may be in several places of it.

mod array;
mod discover;
mod mapper;
mod segment;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use extant_space::{ByteRange, Extent, LayerRange, LayerVisitor};

use self::segment::Segment;
use crate::extents::{self, MapSource};

const SECTOR_BYTES: u64 = 512;

/// The layers below a file.
#[derive(Debug)]
pub struct Stack {
    /// The device that the file is on, or that it is.
    pub device: StackDevice,
}

/// A block device.
#[derive(Debug)]
pub struct StackDevice {
    /// A path in `/dev`; of what is not known it may be the name of a file system.
    pub name: String,
    /// Its number, where it is a block device.
    pub number: Option<u64>,
    /// Its kind.
    pub kind: DeviceKind,
    segments: Vec<Segment>,
    /// The devices and the file that store its bytes.
    pub members: Vec<Member>,
}

/// Kinds of block devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The lowest layer that the system shows.
    Disk,
    /// The memory that tmpfs is in.
    Memory,
    /// A partition of a disk.
    Partition,
    /// A loop device.
    Loop,
    /// Made by the device mapper.
    Mapper {
        /// Types of its targets, each once.
        targets: Vec<String>,
    },
    /// Made by md.
    Array {
        /// `raid1`.
        level: String,
    },
    /// The layers end here, with nothing known below.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// A store of bytes of a device.
#[derive(Debug)]
pub enum Member {
    /// Another device.
    Device(StackDevice),
    /// A file.
    File(StackFile),
}

/// A file that stores bytes of a block device.
#[derive(Debug)]
pub struct StackFile {
    /// Number of the file in the stack: its place in [`Stack::files`].
    pub index: usize,
    /// Open for reading.
    pub file: File,
    /// The path by which it was opened.
    pub path: PathBuf,
    /// Source of its extent map.
    pub map: MapSource,
    /// The device that it is on.
    pub device: StackDevice,
}

/// Receives a file, bytes of it, and the first byte of the device that is stored there.
type PlaceVisitor<'s, 'v> =
    dyn FnMut(&'s StackFile, ByteRange, u64) -> io::Result<ControlFlow<()>> + 'v;

impl Stack {
    /// The layers below `file`, a regular file or a block device.
    ///
    /// # Errors
    /// Those of `fstat` and `fstatfs`. A layer that cannot be looked into ends the stack.
    pub fn below(file: &File) -> io::Result<Self> {
        discover::device_below(file).map(|device| Self { device })
    }

    /// All files below, each before those below it.
    pub fn files(&self) -> Vec<&StackFile> {
        let mut files = Vec::new();
        self.device.add_all_files(&mut files);
        files
    }

    /// The places where the layers end.
    pub fn ends(&self) -> Vec<&StackDevice> {
        let mut ends: Vec<&StackDevice> = Vec::new();
        let devices = self.files().into_iter().map(|file| &file.device);
        for device in std::iter::once(&self.device).chain(devices) {
            for device in device.down_to_files() {
                let is_new = ends.iter().all(|end| end.name != device.name);
                if device.members.is_empty() && is_new {
                    ends.push(device);
                }
            }
        }
        ends
    }

    /// Visits the extents of all layers that store `at`, bytes of the device, until `visit` breaks.
    /// `at.depth` is the number of the first layer.
    ///
    /// # Errors
    /// Those of the extent maps.
    pub fn visit(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> io::Result<ControlFlow<()>> {
        self.device.visit_layers(at, visit)
    }
}

impl StackDevice {
    fn disk(name: String, number: u64) -> Self {
        Self {
            name,
            number: Some(number),
            kind: DeviceKind::Disk,
            segments: Vec::new(),
            members: Vec::new(),
        }
    }

    fn memory(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            number: None,
            kind: DeviceKind::Memory,
            segments: Vec::new(),
            members: Vec::new(),
        }
    }

    fn unknown(name: &str, number: Option<u64>, reason: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            number,
            kind: DeviceKind::Unknown {
                reason: reason.into(),
            },
            segments: Vec::new(),
            members: Vec::new(),
        }
    }

    /// This device and those below it, above the next files, and the disks.
    pub fn down_to_files(&self) -> Vec<&Self> {
        let mut devices = vec![self];
        for member in &self.members {
            if let Member::Device(device) = member {
                devices.extend(device.down_to_files());
            }
        }
        devices
    }

    fn add_all_files<'s>(&'s self, files: &mut Vec<&'s StackFile>) {
        for member in &self.members {
            match member {
                Member::Device(device) => device.add_all_files(files),
                Member::File(file) => {
                    files.push(file);
                    file.device.add_all_files(files);
                }
            }
        }
    }

    /// Visits the bytes of the next files below that store `range` of the device, in its order and
    /// until `visit` breaks.
    ///
    /// # Errors
    /// Those of `visit`.
    pub fn for_each_place<'s>(
        &'s self,
        range: ByteRange,
        visit: &mut PlaceVisitor<'s, '_>,
    ) -> io::Result<ControlFlow<()>> {
        for segment in &self.segments {
            let flow =
                segment.for_each_piece(range, &mut |piece| match &self.members[piece.member] {
                    Member::File(file) => visit(file, piece.range, piece.device_start),
                    Member::Device(device) => {
                        let begin = piece.range.start();
                        device.for_each_place(piece.range, &mut |file, range, start| {
                            visit(file, range, piece.device_start + (start - begin))
                        })
                    }
                })?;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> io::Result<ControlFlow<()>> {
        self.for_each_place(at.range, &mut |file, range, start| {
            let top_start = at.top_start + (start - at.range.start());
            let depth = at.depth;
            file.visit_layers(
                LayerRange {
                    depth,
                    top_start,
                    range,
                },
                visit,
            )
        })
    }
}

impl StackFile {
    fn visit_layers(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> io::Result<ControlFlow<()>> {
        let name = self.path.to_string_lossy();
        let mut flow = ControlFlow::Continue(());
        let mut failed = Ok(());
        extents::for_each(&self.file, self.map, at.range, &mut |extent: Extent| {
            let Some(extent) = extent.clip(at.range) else {
                return ControlFlow::Continue(());
            };
            flow = visit(&at.extent(&name, extent));
            if flow.is_continue()
                && let Some(below) = at.below(&extent)
            {
                match self.device.visit_layers(below, visit) {
                    Ok(found) => flow = found,
                    Err(error) => {
                        failed = Err(error);
                        flow = ControlFlow::Break(());
                    }
                }
            }
            flow
        })?;
        failed.map(|()| flow)
    }
}
