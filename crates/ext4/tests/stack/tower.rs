//! A nested stack: a device, a file system on it, a file in that, a loop device over the file, a
//! file system on that, and so on.
//!
//! Built from below, closed from above; each level is verified by our check and by e2fsck when the
//! one above it is closed.

use std::fs;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use extant_blockdev::{
    Assigned, Device, LoopDevice, LoopOptions, MemoryDevice, MemoryOptions, Persistence,
    RangeStatus,
};
use extant_ext4::{Assign, File, Filesystem, NewKind, NewNode, Node, Options};
use extant_fsck::{CheckOptions, check};
use extant_space::{ByteRange, CancelToken, Control, ExtentState, Silent, SpaceFile};
use extant_testkit::command::{run, tool};
use extant_testkit::oracle::assert_e2fsck_clean;
use extant_testkit::workdir::Workdir;

/// The file in each level that the next one, or the test, works on.
const NAME: &[u8] = b"file";
/// Bytes of a block, at every level.
pub const BLOCK: u64 = 4096;

/// A file system and the device below it.
pub struct Level {
    pub device: Arc<dyn Device>,
    pub filesystem: Filesystem,
    pub file: Arc<File>,
}

/// The levels, from the ground up.
pub struct Tower {
    levels: Vec<Level>,
}

pub fn options(assign: Assign) -> Options {
    Options {
        assign,
        ..Options::default()
    }
}

impl Tower {
    /// A device that holds file systems of these sizes in MiB, each in a sparse file of the one
    /// before it.
    #[track_caller]
    pub fn build(mebibytes: &[u64]) -> MemoryDevice {
        let ground = Arc::new(format(mebibytes[0] << 20));
        let mut levels: Vec<Level> = Vec::new();
        for size in mebibytes.iter().map(|size| size << 20) {
            let device: Arc<dyn Device> = match levels.last() {
                None => ground.clone(),
                Some(below) => {
                    below.file.resize(size).unwrap();
                    let device = loop_over(below);
                    copy(&format(size), &*device);
                    device
                }
            };
            let filesystem = Filesystem::open(device.clone(), options(Assign::Off)).unwrap();
            let file = create(&filesystem.root().unwrap(), NAME);
            levels.push(Level {
                device,
                filesystem,
                file: Arc::new(file),
            });
        }
        Self { levels }.close();
        ground.snapshot()
    }

    /// Opens the stack that [`build`](Self::build) created.
    #[track_caller]
    pub fn open(ground: Arc<dyn Device>, levels: usize, assign: Assign) -> Self {
        let mut tower = Self { levels: Vec::new() };
        for _ in 0..levels {
            let device = match tower.levels.last() {
                None => ground.clone(),
                Some(below) => loop_over(below),
            };
            let filesystem = Filesystem::open(device.clone(), options(assign)).unwrap();
            let node = filesystem.root().unwrap().lookup(NAME).unwrap();
            tower.levels.push(Level {
                device,
                filesystem,
                file: Arc::new(node.file().unwrap()),
            });
        }
        tower
    }

    /// The level that the test works on.
    pub fn top(&self) -> &Level {
        &self.levels[self.levels.len() - 1]
    }

    /// The one on the device.
    pub fn lowest(&self) -> &Level {
        &self.levels[0]
    }

    /// Gives all blocks that are in use their place below, at every level.
    #[track_caller]
    pub fn assign_used(&self) {
        for level in &self.levels {
            level.assign_used();
        }
    }

    /// Ranges of the first `bytes` of the top file in each file, from the top one down.
    pub fn places(&self, bytes: u64) -> Vec<Vec<ByteRange>> {
        let mut ranges = vec![ByteRange::new(0, bytes)];
        let files = self.levels.iter().rev();
        files
            .map(|level| {
                ranges = pieces(&level.file, &ranges);
                ranges.clone()
            })
            .collect()
    }

    /// Whether all that holds the first `bytes` of the top file is written, in every file.
    pub fn is_written(&self, bytes: u64) -> bool {
        let mut ranges = vec![ByteRange::new(0, bytes)];
        self.levels.iter().rev().all(|level| {
            let is_written = ranges.iter().all(|range| {
                let extents = level.file.extents(*range).unwrap();
                extents
                    .iter()
                    .all(|extent| extent.state == ExtentState::Written)
            });
            ranges = pieces(&level.file, &ranges);
            is_written
        })
    }

    /// Closes all levels.
    #[track_caller]
    pub fn close(mut self) {
        while let Some(level) = self.levels.pop() {
            drop(level.file);
            level.filesystem.close().unwrap();
        }
    }

    /// Closes all levels; each must be clean.
    #[track_caller]
    pub fn close_clean(mut self) {
        while let Some(level) = self.levels.pop() {
            drop(level.file);
            level.filesystem.close().unwrap();
            assert_clean(&*level.device);
        }
    }
}

impl Level {
    #[track_caller]
    fn assign_used(&self) {
        let mut at = 0;
        let assign = |used: Range<u64>| {
            if !used.is_empty() {
                let range = ByteRange::new(used.start * BLOCK, used.end * BLOCK);
                assert_eq!(self.device.assign(range).unwrap(), Assigned::Done);
            }
        };
        let runs = self.filesystem.for_each_free_run(&mut |free| {
            assign(at..free.start);
            at = free.end;
            ControlFlow::Continue(())
        });
        runs.unwrap();
        assign(at..self.device.geometry().size / BLOCK);
    }
}

/// A regular file of root.
#[track_caller]
pub fn create(directory: &Node, name: &[u8]) -> File {
    let new = NewNode {
        kind: NewKind::Regular,
        permissions: 0o644,
        uid: 0,
        gid: 0,
        umask: 0,
    };
    directory.create(name, &new).unwrap().file().unwrap()
}

/// Bytes of `ranges`.
pub fn length(ranges: &[ByteRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

/// Our check and e2fsck find nothing.
#[track_caller]
pub fn assert_clean(device: &dyn Device) {
    let cancel = CancelToken::new();
    let control = Control::new(&cancel, &Silent);
    let report = check(device, &CheckOptions::default(), control).unwrap();
    assert!(report.is_clean(), "{report}");
    let work = Workdir::new();
    let path = work.path().join("image");
    save(device, &path);
    assert_e2fsck_clean(&path);
}

/// A loop device over the file of a level.
pub fn loop_over(below: &Level) -> Arc<dyn Device> {
    let device = LoopDevice::new(below.file.clone(), LoopOptions::default());
    Arc::new(device.unwrap())
}

/// Makes a file system by mke2fs in an empty image.
#[track_caller]
fn format(bytes: u64) -> MemoryDevice {
    let work = Workdir::new();
    let path = work.path().join("image");
    let file = fs::File::create_new(&path).unwrap();
    file.set_len(bytes).unwrap();
    let options = ["-q", "-F", "-t", "ext4", "-b", "4096"];
    run(tool("mke2fs").args(options).arg(&path)).unwrap_or_else(|failure| panic!("{failure}"));
    let file = fs::File::open(&path).unwrap();
    MemoryDevice::from_file(&file, MemoryOptions::new(bytes)).unwrap()
}

/// The parts of a device that hold data, none larger than 1 MiB.
fn data(device: &dyn Device) -> Vec<ByteRange> {
    let mut data = Vec::new();
    let status = device.status(device.geometry().range(), &mut |range, status| {
        if status == RangeStatus::Data {
            data.extend(range.chunks(1 << 20));
        }
        ControlFlow::Continue(())
    });
    status.unwrap();
    data
}

/// Writes the content of `from` to a device without data.
fn copy(from: &dyn Device, to: &dyn Device) {
    for range in data(from) {
        let mut bytes = vec![0; range.len() as usize];
        from.read_at(&mut bytes, range.start()).unwrap();
        to.write_at(&bytes, range.start(), Persistence::Cached)
            .unwrap();
    }
}

fn save(device: &dyn Device, path: &Path) {
    let file = fs::File::create_new(path).unwrap();
    file.set_len(device.geometry().size).unwrap();
    for range in data(device) {
        let mut bytes = vec![0; range.len() as usize];
        device.read_at(&mut bytes, range.start()).unwrap();
        file.write_all_at(&bytes, range.start()).unwrap();
    }
}

/// Ranges of `file`'s `ranges` on the device; contiguous ranges are merged.
fn pieces(file: &File, ranges: &[ByteRange]) -> Vec<ByteRange> {
    let mut pieces: Vec<ByteRange> = Vec::new();
    for range in ranges {
        for extent in file.extents(*range).unwrap() {
            let Some(start) = extent.physical else {
                continue;
            };
            let end = start + extent.logical.len();
            match pieces.last_mut() {
                Some(last) if last.end() == start => *last = ByteRange::new(last.start(), end),
                _ => pieces.push(ByteRange::new(start, end)),
            }
        }
    }
    pieces
}
