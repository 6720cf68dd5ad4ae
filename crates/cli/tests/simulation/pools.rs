//! The two pools of the machine, and the devices of their volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use extant_blockdev::{Device, HostEngine, HostOptions, LoopDevice, LoopOptions};
use extant_ext4::{Filesystem, FollowLast, Options};
use extant_image::Format;
use extant_image::device::{DeviceOptions, ImageDevice};
use extant_image::hold;
use extant_pool::{Definition, Pool, VolumeName, VolumePlace};
use extant_space::Result;

/// Where the volumes of a pool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a directory of the machine's file system.
    Directory,
    /// In an ext4 image, which is a file of the machine's file system.
    Image,
}

impl Place {
    pub const ALL: [Self; 2] = [Self::Directory, Self::Image];

    /// Its directory or image.
    pub fn path(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::Directory => "volumes",
            Self::Image => "pool.img",
        })
    }

    /// The pool, as a command opens it.
    pub fn open(self, root: &Path) -> Result<Pool> {
        let path = self.path(root);
        Pool::open(match self {
            Self::Directory => Definition::of_directory(&path),
            Self::Image => Definition::of_image(&path),
        })
    }
}

/// An open volume. Fields are dropped in their order.
pub struct OpenVolume {
    pub device: Arc<dyn Device>,
    inside: Option<Filesystem>,
    _place: VolumePlace,
}

impl OpenVolume {
    /// Opens a volume for changes, as `extant serve --pool` does.
    pub fn open(root: &Path, place: Place, name: &VolumeName) -> Result<Self> {
        let pool = place.open(root)?;
        let found = pool.place_of(name, true)?;
        drop(pool);
        let options = DeviceOptions {
            format: Some(found.format),
            engine: HostEngine::Threads,
            ..DeviceOptions::default()
        };
        let (device, inside): (Arc<dyn Device>, _) = match &found.image {
            None => {
                let file = found.path_of_file().expect("a file of the host");
                (Arc::new(ImageDevice::open(file, &options)?), None)
            }
            Some(image) => {
                let host = HostOptions {
                    engine: HostEngine::Threads,
                    ..HostOptions::default()
                };
                let host = hold::hold_device(image, &host)?.into_device();
                let filesystem = Filesystem::open(host, Options::default())?;
                let inner = format!("/{name}");
                let file = filesystem
                    .resolve(inner.as_bytes(), FollowLast::Yes)?
                    .file()?;
                let device = LoopDevice::new(Arc::new(file), LoopOptions::default())?;
                let device: Arc<dyn Device> = match found.format {
                    Format::Raw => Arc::new(device),
                    Format::Qcow2 => Arc::new(ImageDevice::open_store(Arc::new(device), &options)?),
                };
                (device, Some(filesystem))
            }
        };
        Ok(Self {
            device,
            inside,
            _place: found,
        })
    }

    /// Closes it, and the file system that it is in.
    pub fn close(self) -> Result<()> {
        drop(self.device);
        self.inside.map_or(Ok(()), Filesystem::close)
    }
}
