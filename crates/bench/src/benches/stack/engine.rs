//! The stack in this process: a device, in memory or not, and file systems of the engine, each in a
//! file of the one below.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::Result;
use extant_blockdev::{
    Device, LoopDevice, LoopOptions, MemoryDevice, MemoryOptions, Persistence, RangeStatus,
    Statistics, StatisticsSnapshot,
};
use extant_ext4::{Assign, File, Filesystem, NewKind, NewNode, Options};
use extant_space::{ByteRange, FallocateMode, SpaceFile, SyncMode};
use extant_testkit::command::{run, tool};
use extant_testkit::workdir::Workdir;

use super::MKFS;
use super::program::{Block, ImageFile};

type Counted = Statistics<Arc<dyn Device>>;

/// A stack, from its ground up.
pub(super) struct Stack {
    levels: Vec<Level>,
}

/// A file system and the file in it that the next one, or the program, works on.
struct Level {
    file: Arc<File>,
    filesystem: Filesystem,
    device: Arc<Counted>,
}

impl Stack {
    /// File systems of `sizes`, from the ground up, each in a sparse file of the one before; the
    /// first is over `lowest`, which has its size.
    pub(super) fn over(lowest: Arc<dyn Device>, sizes: &[u64], assign: Assign) -> Result<Self> {
        let mut levels: Vec<Level> = Vec::new();
        for size in sizes {
            let ground: Arc<dyn Device> = match levels.last() {
                None => Arc::clone(&lowest),
                Some(below) => {
                    below.file.resize(*size)?;
                    Arc::new(LoopDevice::new(below.file.clone(), LoopOptions::default())?)
                }
            };
            format(&ground)?;
            let device = Arc::new(Statistics::new(ground));
            let options = Options {
                assign,
                ..Options::default()
            };
            let filesystem = Filesystem::open(device.clone(), options)?;
            let new = NewNode {
                kind: NewKind::Regular,
                permissions: 0o644,
                uid: 0,
                gid: 0,
                umask: 0,
            };
            let file = filesystem.root()?.create(b"file", &new)?.file()?;
            levels.push(Level {
                file: Arc::new(file),
                filesystem,
                device,
            });
        }
        Ok(Self { levels })
    }

    /// The files, from the top one down.
    pub(super) fn files(&self) -> Vec<&dyn SpaceFile> {
        let files = self.levels.iter().rev();
        files.map(|level| &*level.file as &dyn SpaceFile).collect()
    }

    /// Requests so far to the device below each file system, from the top one down.
    pub(super) fn requests(&self) -> Vec<StatisticsSnapshot> {
        let devices = self.levels.iter().rev();
        devices.map(|level| level.device.snapshot()).collect()
    }

    /// Closes all file systems.
    pub(super) fn close(mut self) -> Result<()> {
        while let Some(level) = self.levels.pop() {
            drop(level.file);
            level.filesystem.close()?;
        }
        Ok(())
    }
}

impl ImageFile for Stack {
    fn allocate(&self, bytes: u64) -> Result<()> {
        let file = &self.levels[self.levels.len() - 1].file;
        Ok(file.fallocate(FallocateMode::Allocate, ByteRange::new(0, bytes))?)
    }

    fn write(&self, block: &Block, offset: u64) -> Result<()> {
        let file = &self.levels[self.levels.len() - 1].file;
        Ok(file.write_at(block.bytes(), offset)?)
    }

    fn sync(&self) -> Result<()> {
        let file = &self.levels[self.levels.len() - 1].file;
        Ok(file.sync(SyncMode::All)?)
    }
}

/// Makes a file system on a device that is a hole.
pub(in crate::benches) fn format(device: &dyn Device) -> Result<()> {
    let work = Workdir::new();
    let path = work.path().join("image");
    let file = std::fs::File::create_new(&path)?;
    file.set_len(device.geometry().size)?;
    run(tool("mkfs.ext4").args(MKFS).arg(&path))?;
    let file = std::fs::File::open(&path)?;
    let made = MemoryDevice::from_file(&file, MemoryOptions::new(0))?;
    let mut data: Vec<ByteRange> = Vec::new();
    made.status(made.geometry().range(), &mut |range, status| {
        if status == RangeStatus::Data {
            data.push(range);
        }
        ControlFlow::Continue(())
    })?;
    for piece in data.iter().flat_map(|range| range.chunks(1 << 20)) {
        let mut bytes = vec![0; piece.len() as usize];
        made.read_at(&mut bytes, piece.start())?;
        device.write_at(&bytes, piece.start(), Persistence::Cached)?;
    }
    Ok(device.flush()?)
}
