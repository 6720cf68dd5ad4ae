//! Finds what a file or a block device is stored on, by sysfs and the drivers.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_space::ByteRange;

use super::segment::Segment;
use super::{DeviceKind, Member, SECTOR_BYTES, StackDevice, StackFile, array, mapper};
use crate::device_mapper;
use crate::extents::MapSource;
use crate::identity::Identity;
use crate::mounts::Mount;
use crate::{disk, loop_device};

/// Linux has no more levels than this of block devices over each other.
const LAYERS_MAX: usize = 16;
/// A tree with more devices than this is refused.
const DEVICES_MAX: usize = 512;

/// The device that `file` is on, or that it is.
pub(super) fn device_below(file: &File) -> io::Result<StackDevice> {
    Discovery::default().below(file, 0)
}

/// Counts of the files and devices found so far.
#[derive(Default)]
struct Discovery {
    files: usize,
    devices: usize,
}

impl Discovery {
    /// The device that `file`, which is below `depth` layers, is on.
    fn below(&mut self, file: &File, depth: usize) -> io::Result<StackDevice> {
        let metadata = file.metadata()?;
        if metadata.file_type().is_block_device() {
            return Ok(self.device(metadata.rdev(), depth));
        }
        Ok(match check_file_system(file)? {
            Some(unknown) => unknown,
            None => self.device(metadata.dev(), depth),
        })
    }

    fn device(&mut self, number: u64, depth: usize) -> StackDevice {
        self.devices += 1;
        if depth > LAYERS_MAX || self.devices > DEVICES_MAX {
            return StackDevice::unknown("the stack", None, "has too many layers");
        }
        let Some(sysfs) = disk::node(number) else {
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            let name = format!("device {major}:{minor}");
            return StackDevice::unknown(&name, None, "is no block device");
        };
        let name = shown(&sysfs);
        let device = |kind, (segments, members)| StackDevice {
            name: name.clone(),
            number: Some(number),
            kind,
            segments,
            members,
        };
        let found = if sysfs.join("partition").exists() {
            self.partition(&sysfs, depth)
                .map(|found| device(DeviceKind::Partition, found))
        } else if sysfs.join("dm").is_dir() {
            self.mapped(number, depth).map(|(targets, found)| {
                let kind = DeviceKind::Mapper { targets };
                device(kind, found)
            })
        } else if sysfs.join("md").is_dir() {
            let attributes = sysfs.join("md");
            size_of(&sysfs)
                .and_then(|size| array::segments(&attributes, size))
                .map(|(segments, members)| {
                    let level = array::level(&attributes);
                    let kind = DeviceKind::Array { level };
                    device(kind, (segments, self.devices(members, depth)))
                })
        } else if sysfs.join("loop").is_dir() {
            self.looped(&sysfs, number, depth)
                .map(|found| device(DeviceKind::Loop, found))
        } else {
            return StackDevice::disk(name, number);
        };
        found.unwrap_or_else(|reason| StackDevice::unknown(&name, Some(number), reason))
    }

    fn devices(&mut self, numbers: Vec<u64>, depth: usize) -> Vec<Member> {
        let device = |number| Member::Device(self.device(number, depth + 1));
        numbers.into_iter().map(device).collect()
    }

    fn partition(&mut self, sysfs: &Path, depth: usize) -> Result<Found, String> {
        let start = disk::number(&sysfs.join("start"));
        let whole = sysfs.parent().and_then(loop_device::device_number);
        let (Some(start), Some(whole)) = (start, whole) else {
            return Err("its start is not known".to_owned());
        };
        let range = ByteRange::new(0, size_of(sysfs)?);
        let segment = Segment::plain(range, start.saturating_mul(SECTOR_BYTES));
        Ok((vec![segment], self.devices(vec![whole], depth)))
    }

    fn mapped(&mut self, number: u64, depth: usize) -> Result<(Vec<String>, Found), String> {
        let targets = device_mapper::table(number)
            .map_err(|error| format!("the device mapper does not show its table: {error}"))?;
        let (segments, members) = mapper::segments(&targets)?;
        let members = self.devices(members, depth);
        Ok((mapper::kinds(&targets), (segments, members)))
    }

    fn looped(&mut self, sysfs: &Path, number: u64, depth: usize) -> Result<Found, String> {
        let node = Path::new("/dev").join(sysfs.file_name().unwrap_or_default());
        let backing = loop_device::backing(&node, number)
            .map_err(|error| format!("does not show its file: {error}"))?;
        if backing.is_encrypted {
            return Err("is encrypted".to_owned());
        }
        let range = ByteRange::new(0, size_of(sysfs)?);
        let segments = vec![Segment::plain(range, backing.offset_bytes)];
        let wanted = match backing.identity {
            Identity::Disk(disk) => return Ok((segments, self.devices(vec![disk], depth))),
            file @ Identity::File { .. } => file,
        };
        let named = fs::read_to_string(sysfs.join("loop/backing_file"));
        let named = named.map(|text| PathBuf::from(text.trim_end_matches('\n')));
        let file = named
            .and_then(|path| self.file(path, wanted, depth))
            .map_err(|error| format!("its file cannot be opened here: {error}"))?;
        Ok((segments, vec![Member::File(file)]))
    }

    /// Opens `path`, which must be the file `wanted`.
    fn file(&mut self, path: PathBuf, wanted: Identity, depth: usize) -> io::Result<StackFile> {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(&path)?;
        let metadata = file.metadata()?;
        let found = Identity::File {
            device: metadata.dev(),
            inode: metadata.ino(),
        };
        if found != wanted {
            let text = format!("{} is another file", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, text));
        }
        let map = MapSource::of(&file)?;
        let index = self.files;
        self.files += 1;
        let device = self.below(&file, depth + 1).inspect_err(|_| {
            self.files = index;
        })?;
        Ok(StackFile {
            index,
            file,
            path,
            map,
            device,
        })
    }
}

/// Segments, and their members.
type Found = (Vec<Segment>, Vec<Member>);

/// The path in `/dev` of the device with the directory `sysfs`; of a mapped one that with its name.
fn shown(sysfs: &Path) -> String {
    let node = Path::new("/dev").join(sysfs.file_name().unwrap_or_default());
    let named = fs::read_to_string(sysfs.join("dm/name"));
    let named = named.map(|name| Path::new("/dev/mapper").join(name.trim_end()));
    match named {
        Ok(path) if path.exists() => path,
        _ => node,
    }
    .display()
    .to_string()
}

fn size_of(sysfs: &Path) -> Result<u64, String> {
    let sectors = disk::number(&sysfs.join("size"));
    let bytes = sectors.and_then(|sectors| sectors.checked_mul(SECTOR_BYTES));
    bytes.ok_or_else(|| "its size is not known".to_owned())
}

/// The end of the stack at a file system whose map shows no places on its block device.
fn check_file_system(file: &File) -> io::Result<Option<StackDevice>> {
    /// linux/magic.h: of ext2, ext3 and ext4, and of XFS.
    const KNOWN: [u64; 2] = [0xEF53, 0x5846_5342];
    const TMPFS: u64 = 0x0102_1994;
    // The width of the field depends on the architecture.
    #[allow(clippy::unnecessary_cast)]
    let magic = rustix::fs::fstatfs(file)?.f_type as u64 & 0xFFFF_FFFF;
    let mount = Mount::of(file);
    let name = mount
        .as_ref()
        .map_or("the file system", |mount| &*mount.fs_type);
    if magic == TMPFS {
        return Ok(Some(StackDevice::memory(name)));
    }
    if !KNOWN.contains(&magic) {
        let reason = "its map shows no places on a block device";
        return Ok(Some(StackDevice::unknown(name, None, reason)));
    }
    let has_other_devices = |option: &String| option.starts_with("rtdev=");
    if mount.is_some_and(|mount| mount.options.iter().any(has_other_devices)) {
        let reason = "it has a second device (rtdev)";
        return Ok(Some(StackDevice::unknown("xfs", None, reason)));
    }
    Ok(None)
}
