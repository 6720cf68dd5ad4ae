//! The disk at the lowest known layer below a file, and write-out of cached data down to it.
//!
//! Model: a chain of files, each stored in the next one: a file of a mount of Extant in the image
//! of that mount, an image in the file of the loop device that it is on, and so on. Below the last
//! one is a block device that has counters. Data written to the first file is in the page cache of
//! each of them; [`DiskBelow::write_out`] brings a range of it to the disk and touches nothing else
//! that is cached.
//!
//! The image of a mount is found by the source in the table of mounts, a path of the namespace of
//! the process that mounted it.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_space::ByteRange;

use crate::disk;
use crate::extents::{self, MapSource};
use crate::fiemap::Flush;
use crate::mounted;
use crate::mounts::Mount;
use crate::stack::{DeviceKind, Stack, StackDevice};
use crate::write_out::{WriteOut, write_out};

/// Mounts of Extant over each other that are followed.
const MOUNTS_MAX: usize = 8;

/// A disk, and the files between it and data.
#[derive(Debug)]
pub struct DiskBelow {
    /// In sysfs.
    directory: PathBuf,
    /// The given file, and the image of each mount of Extant below it, from the top down; empty
    /// where the caller's requests reach the disk by themselves.
    roots: Vec<Root>,
}

/// A file, and the layers that the kernel shows below it.
#[derive(Debug)]
struct Root {
    file: File,
    map: MapSource,
    stack: Stack,
}

impl Root {
    fn of(file: File) -> io::Result<Self> {
        Ok(Self {
            map: MapSource::of(&file)?,
            stack: Stack::below(&file)?,
            file,
        })
    }

    /// The file of a mount of Extant, if one is among the layers.
    fn on_a_mount(&self) -> Option<&File> {
        if self.map == MapSource::ExtantMount {
            return Some(&self.file);
        }
        let files = self.stack.files().into_iter();
        let mut on_mounts = files.filter(|file| file.map == MapSource::ExtantMount);
        on_mounts.next().map(|file| &file.file)
    }
}

impl DiskBelow {
    /// The disk with device number `device`, or of that partition, without the files between.
    /// `None` for numbers of no disk, and for a disk without counters.
    pub fn of_device(device: u64) -> Option<Self> {
        let directory = disk::directory(device)?;
        disk::transferred_bytes(&directory)?;
        Some(Self {
            directory,
            roots: Vec::new(),
        })
    }

    /// The disk below `file`, a regular file or a block device, which may be on a mount of Extant.
    /// Of a volume over several disks it is the last one.
    ///
    /// # Errors
    /// `Unsupported` with the reason where no disk is known; those of opening the image of a mount.
    pub fn of_file(file: File) -> io::Result<Self> {
        let mut roots = vec![Root::of(file)?];
        for _ in 0..MOUNTS_MAX {
            let last = roots.last().expect("there is a first one");
            if let Some(file) = last.on_a_mount() {
                let image = image_of_mount(file)?;
                roots.push(image);
                continue;
            }
            let stack = &last.stack;
            let files = stack.files().into_iter().map(|file| &file.device);
            let devices: Vec<&StackDevice> = std::iter::once(&stack.device)
                .chain(files)
                .flat_map(StackDevice::down_to_files)
                .collect();
            let lowest = devices.iter().rev();
            let mut disks = lowest.filter_map(|device| Self::of_device(device.number?));
            return match disks.next() {
                Some(disk) => Ok(Self { roots, ..disk }),
                None => Err(unsupported(missing_disk(stack))),
            };
        }
        Err(unsupported(format!(
            "there are more than {MOUNTS_MAX} mounts over each other"
        )))
    }

    /// Name of the disk, such as `nvme0n1`.
    pub fn name(&self) -> String {
        let name = self.directory.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Bytes that all users have read and written since boot.
    pub fn transferred_bytes(&self) -> Option<u64> {
        disk::transferred_bytes(&self.directory)
    }

    /// Waits until the cached data of `range`, bytes of the given file, is on the disk. It is not
    /// durable: the disk may have a cache.
    ///
    /// # Errors
    /// Those of the write-out, which a later sync reports as well, and of the extent maps.
    pub fn write_out(&self, range: ByteRange) -> io::Result<()> {
        match self.roots.split_first() {
            None => Ok(()),
            Some((first, below)) => {
                write_out_layers(&first.file, first.map, &first.stack.device, below, range)
            }
        }
    }
}

fn missing_disk(stack: &Stack) -> String {
    let ends = stack.ends();
    let Some(end) = ends.first() else {
        return "there is no disk".to_owned();
    };
    match &end.kind {
        DeviceKind::Unknown { reason } => format!("{}: {reason}", end.name),
        DeviceKind::Memory => format!("{} is in memory", end.name),
        _ => format!("{} has no counters", end.name),
    }
}

/// Writes out `range` of `file`, which is on `device`, then the places that store it. `below` are
/// the images of mounts of Extant further down.
fn write_out_layers(
    file: &File,
    map: MapSource,
    device: &StackDevice,
    below: &[Root],
    range: ByteRange,
) -> io::Result<()> {
    write_out(file, range, WriteOut::Finish)?;
    let lower = |range: ByteRange| {
        let visited = device.for_each_place(range, &mut |lower, place, _| {
            write_out_layers(&lower.file, lower.map, &lower.device, below, place)?;
            Ok(ControlFlow::Continue(()))
        });
        visited.map(drop)
    };
    if file.metadata()?.file_type().is_block_device() {
        return lower(range);
    }
    let mut places = Vec::new();
    // After the write-out all of the range is allocated; the rest of the file is left alone.
    extents::for_each_after(file, map, Flush::No, range, &mut |extent| {
        let place = extent
            .clip(range)
            .and_then(|extent| ByteRange::at(extent.physical?, extent.logical.len()));
        places.extend(place);
        ControlFlow::Continue(())
    })?;
    match below.split_first() {
        Some((image, below)) if map == MapSource::ExtantMount => {
            places.into_iter().try_for_each(|place| {
                let device = &image.stack.device;
                write_out_layers(&image.file, image.map, device, below, place)
            })
        }
        _ => places.into_iter().try_for_each(lower),
    }
}

/// The image that a mount of Extant shows, which has the places of the map of `file`.
fn image_of_mount(file: &File) -> io::Result<Root> {
    if mounted::probe(file)?.is_none() {
        return Err(unsupported("the mount is gone".to_owned()));
    }
    let mount = Mount::of(file).ok_or_else(|| unsupported("the mount is not seen".to_owned()))?;
    let source = mount.source;
    let opened = open_image(&source).and_then(Root::of);
    opened.map_err(|error| {
        let shown = source.display();
        let detail = format!("the image {shown} of the mount cannot be opened: {error}");
        io::Error::new(error.kind(), detail)
    })
}

fn open_image(path: &Path) -> io::Result<File> {
    let image = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    let kind = image.metadata()?.file_type();
    if kind.is_file() || kind.is_block_device() {
        Ok(image)
    } else {
        Err(unsupported("neither a file nor a disk".to_owned()))
    }
}

fn unsupported(detail: String) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, detail)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use extant_space::ExtentFlags;
    use extant_testkit::scratch::{Filesystem, LoopDevice, Scratch};
    use extant_testkit::{require, requires};

    use super::*;
    use crate::fiemap;

    const MIB: u64 = 1 << 20;

    /// Blocks that were written and have no place on the disk yet.
    fn has_delayed_blocks(file: &File) -> bool {
        let batch = fiemap::next_batch(file, ByteRange::new(0, MIB), Flush::No).unwrap();
        let mut extents = batch.extents.iter();
        extents.any(|extent| extent.flags.contains(ExtentFlags::DELAYED))
    }

    #[test]
    fn disk_below_a_file_is_the_lowest_block_device() {
        require!(requires::root(), Filesystem::Ext4.requirement());
        let memory = Scratch::builder(Filesystem::Ext4, 64 * MIB)
            .memory(128 * MIB)
            .build();
        let path = memory.path().join("file");
        File::create(&path).unwrap().set_len(16 * MIB).unwrap();
        // Its file is in memory, which is no disk.
        let lowest = memory.device().unwrap().file_name().unwrap().to_owned();
        let upper = LoopDevice::attach(&path);
        for place in [&path, upper.path()] {
            let found = DiskBelow::of_file(File::open(place).unwrap()).unwrap();
            assert_eq!(*found.name(), lowest, "{}", place.display());
            assert!(found.transferred_bytes() > Some(0));
        }
    }

    #[test]
    fn write_out_through_a_loop_device_gives_the_blocks_of_its_file_their_places() {
        require!(requires::root(), Filesystem::Ext4.requirement());
        let memory = Scratch::builder(Filesystem::Ext4, 64 * MIB)
            .memory(128 * MIB)
            .build();
        let path = memory.path().join("file");
        File::create(&path).unwrap().set_len(16 * MIB).unwrap();
        let lower = File::open(&path).unwrap();
        let device = LoopDevice::attach(&path);
        let upper = OpenOptions::new().write(true).open(device.path()).unwrap();
        upper.write_all_at(&vec![7; MIB as usize], 0).unwrap();
        write_out(&upper, ByteRange::new(0, MIB), WriteOut::Finish).unwrap();
        assert!(has_delayed_blocks(&lower), "the write is in the page cache");
        let below = DiskBelow::of_file(File::open(device.path()).unwrap()).unwrap();
        below.write_out(ByteRange::new(0, MIB)).unwrap();
        assert!(!has_delayed_blocks(&lower));
    }

    #[test]
    fn file_in_memory_has_no_disk_and_the_reason_names_its_file_system() {
        require!(Filesystem::Tmpfs.requirement());
        let memory = Scratch::new(Filesystem::Tmpfs, MIB);
        let path = memory.path().join("file");
        File::create(&path).unwrap();
        let error = DiskBelow::of_file(File::open(&path).unwrap()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("tmpfs"), "{error}");
    }
}
