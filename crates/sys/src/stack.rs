//! The layers below a file on the running system: partitions, loop devices, and the files that
//! those are over, down to a disk.
//!
//! Known are file systems whose extent map shows places on their block device (ext2, ext3, ext4,
//! XFS), partitions, and loop devices without encryption. Everything else ends the stack, with the
//! reason.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use extant_space::{ByteRange, Extent, LayerRange, LayerVisitor};

use crate::extents::{self, MapSource};
use crate::identity::Identity;
use crate::mounts::Mount;
use crate::{disk, loop_device};

const SECTOR_BYTES: u64 = 512;
/// Linux has no more levels than this of block devices over each other.
const LAYERS_MAX: usize = 16;

/// A file that stores a block device.
#[derive(Debug)]
pub struct StackLayer {
    /// Open for reading.
    pub file: File,
    /// The path by which it was opened.
    pub path: PathBuf,
    /// Source of its extent map.
    pub map: MapSource,
    /// Difference between an offset in the file and the offset on the device above.
    shift_bytes: u64,
}

/// End of the known layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bottom {
    /// At a disk.
    Disk(PathBuf),
    /// At something below which nothing is known.
    Unknown {
        /// A path in `/dev`, or the name of a file system.
        name: String,
        /// Why.
        reason: String,
    },
}

/// The layers below a file.
#[derive(Debug)]
pub struct Stack {
    /// From the top down.
    pub layers: Vec<StackLayer>,
    /// The end below the last of them.
    pub bottom: Bottom,
    /// Number of the lowest block device that is known.
    pub device: Option<u64>,
}

impl Stack {
    /// The layers below `file`, a regular file or a block device.
    ///
    /// # Errors
    /// Those of `fstat` and `fstatfs`. A layer that cannot be looked into ends the stack.
    pub fn below(file: &File) -> io::Result<Self> {
        let mut layers: Vec<StackLayer> = Vec::new();
        let mut lowest = None;
        loop {
            let upper = layers.last().map_or(file, |layer| &layer.file);
            let (bottom, device) = match next(upper)? {
                Below::File(..) if layers.len() == LAYERS_MAX => {
                    let reason = format!("it has more than {LAYERS_MAX} layers");
                    (unknown("the stack", &reason), None)
                }
                Below::File(layer, device) => {
                    layers.push(layer);
                    lowest = Some(device);
                    continue;
                }
                Below::End(bottom, device) => (bottom, device),
            };
            return Ok(Self {
                layers,
                bottom,
                device: device.or(lowest),
            });
        }
    }

    /// Visits the extents of all layers that store `at`, bytes of the device on which the file at
    /// the top of the stack is, until `visit` breaks. `at.depth` is the number of the first layer.
    ///
    /// # Errors
    /// Those of the extent maps.
    pub fn visit(
        &self,
        at: LayerRange,
        visit: &mut LayerVisitor<'_>,
    ) -> io::Result<ControlFlow<()>> {
        visit_layers(&self.layers, at, visit)
    }
}

impl StackLayer {
    /// A file whose bytes are those of the device above.
    pub(crate) fn whole(file: File, path: PathBuf) -> io::Result<Self> {
        let map = MapSource::of(&file)?;
        Ok(Self {
            file,
            path,
            map,
            shift_bytes: 0,
        })
    }

    /// The bytes of the file that store `range` of the device above.
    pub fn place(&self, range: ByteRange) -> Option<ByteRange> {
        ByteRange::at(range.start().checked_add(self.shift_bytes)?, range.len())
    }
}

fn visit_layers(
    layers: &[StackLayer],
    at: LayerRange,
    visit: &mut LayerVisitor<'_>,
) -> io::Result<ControlFlow<()>> {
    let Some((layer, rest)) = layers.split_first() else {
        return Ok(ControlFlow::Continue(()));
    };
    let Some(range) = layer.place(at.range) else {
        return Ok(ControlFlow::Continue(()));
    };
    let at = LayerRange { range, ..at };
    let name = layer.path.to_string_lossy();
    let mut flow = ControlFlow::Continue(());
    let mut failed = Ok(());
    extents::for_each(&layer.file, layer.map, range, &mut |extent: Extent| {
        let Some(extent) = extent.clip(range) else {
            return ControlFlow::Continue(());
        };
        flow = visit(&at.extent(&name, extent));
        if flow.is_continue()
            && let Some(below) = at.below(&extent)
        {
            match visit_layers(rest, below, visit) {
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

enum Below {
    /// With the number of the block device that it stores.
    File(StackLayer, u64),
    /// With the number of the block device there, if there is one.
    End(Bottom, Option<u64>),
}

/// The next layer below `file`.
fn next(file: &File) -> io::Result<Below> {
    let metadata = file.metadata()?;
    let device = if metadata.file_type().is_block_device() {
        metadata.rdev()
    } else if let Some(unknown) = check_file_system(file)? {
        // A number of a subvolume or a server is none of a device; the mount may name one.
        let device = match metadata.dev() {
            own if rustix::fs::major(own) == 0 => {
                Mount::of(file).as_ref().and_then(Mount::block_device)
            }
            own => Some(own),
        };
        return Ok(Below::End(unknown, device));
    } else {
        metadata.dev()
    };
    Ok(below_device(device))
}

/// The end of the stack at a file system whose map shows no places on its block device.
fn check_file_system(file: &File) -> io::Result<Option<Bottom>> {
    /// linux/magic.h: of ext2, ext3 and ext4, and of XFS.
    const KNOWN: [u64; 2] = [0xEF53, 0x5846_5342];
    // The width of the field depends on the architecture.
    #[allow(clippy::unnecessary_cast)]
    let magic = rustix::fs::fstatfs(file)?.f_type as u64 & 0xFFFF_FFFF;
    let mount = Mount::of(file);
    let name = mount
        .as_ref()
        .map_or("the file system", |mount| &*mount.fs_type);
    if !KNOWN.contains(&magic) {
        let reason = "its map shows no places on a block device";
        return Ok(Some(unknown(name, reason)));
    }
    let has_other_devices = |option: &String| option.starts_with("rtdev=");
    if mount.is_some_and(|mount| mount.options.iter().any(has_other_devices)) {
        return Ok(Some(unknown("xfs", "it has a second device (rtdev)")));
    }
    Ok(None)
}

/// The next layer below the block device with number `device`.
fn below_device(mut device: u64) -> Below {
    let mut shift_bytes = 0_u64;
    for _ in 0..LAYERS_MAX {
        let Some(sysfs) = disk::node(device) else {
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let name = format!("device {major}:{minor}");
            return Below::End(unknown(&name, "is no block device"), None);
        };
        let name = sysfs.file_name().unwrap_or_default();
        let path = Path::new("/dev").join(name);
        let shown = path.display().to_string();
        let end = |reason: &str| Below::End(unknown(&shown, reason), Some(device));
        if sysfs.join("partition").exists() {
            let start = disk::number(&sysfs.join("start"));
            let whole = sysfs.parent().and_then(loop_device::device_number);
            let (Some(start), Some(whole)) = (start, whole) else {
                return end("its start is not known");
            };
            shift_bytes += start * SECTOR_BYTES;
            device = whole;
            continue;
        }
        if sysfs.join("dm").is_dir() {
            return end("is made by the device mapper");
        }
        if sysfs.join("md").is_dir() {
            return end("is an array (md)");
        }
        if !sysfs.join("loop").is_dir() {
            return Below::End(Bottom::Disk(path), Some(device));
        }
        let backing = match loop_device::backing(&path, device) {
            Ok(backing) => backing,
            Err(error) => return end(&format!("does not show its file: {error}")),
        };
        if backing.is_encrypted {
            return end("is encrypted");
        }
        shift_bytes += backing.offset_bytes;
        match backing.identity {
            Identity::Disk(disk) => device = disk,
            file => {
                let named = fs::read_to_string(sysfs.join("loop/backing_file"));
                let named = named.map(|text| PathBuf::from(text.trim_end_matches('\n')));
                return match named.and_then(|path| open_as(&path, file)) {
                    Ok(layer) => Below::File(
                        StackLayer {
                            shift_bytes,
                            ..layer
                        },
                        device,
                    ),
                    Err(error) => end(&format!("its file cannot be opened here: {error}")),
                };
            }
        }
    }
    Below::End(
        unknown("the stack", "has too many block devices over each other"),
        Some(device),
    )
}

fn unknown(name: &str, reason: &str) -> Bottom {
    Bottom::Unknown {
        name: name.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Opens `path`, which must be the file `wanted`.
fn open_as(path: &Path, wanted: Identity) -> io::Result<StackLayer> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)?;
    let metadata = file.metadata()?;
    let found = Identity::File {
        device: metadata.dev(),
        inode: metadata.ino(),
    };
    if found != wanted {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            format!("{} is another file", path.display()),
        ));
    }
    let map = MapSource::of(&file)?;
    Ok(StackLayer {
        file,
        path: path.to_path_buf(),
        map,
        shift_bytes: 0,
    })
}
