//! The devices of a server: opened, locked, and closed when the server ends.
//!
//! NBD exports and mounted devices are opened here, so locks, formats and refusals are the same.
//!
//! | source | device |
//! |---|---|
//! | a file or disk of the host | the host device, buffered or direct |
//! | the URI of an export | the client of the other server |
//! | a file inside an ext4 image (`--in`, or a volume of a pool in one) | a loop device over the engine's file; the image is locked for all of them |
//! | a qcow2 image in either | the device of extant-image over that |

mod format;
mod volumes;

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use extant_blockdev::{
    Access, Device, DiscardPolicy, HostAccess, HostCache, HostEnd, HostEngine, HostOptions,
    LoopAccess, LoopDevice, LoopOptions, Statistics,
};
use extant_ext4::{File, FollowLast};
use extant_image::device::{DeviceOptions, ImageAccess, ImageDevice, ReferencedStores};
use extant_image::hold;
use extant_image::{Format, GrowingImage};
use extant_space::{Error, ErrorKind, Result, SpaceFile};
use serde::Serialize;

use crate::complete;
use crate::fs_image::{At, Image};
use crate::image_format::ImageFormat;
use crate::in_image::InImageArgs;
use crate::pool::ConfigArgs;
use volumes::{NamedFile, NamedFiles};

/// Location of files, and how they are opened.
#[derive(Args, Clone, Debug)]
pub struct SourceArgs {
    #[command(flatten)]
    pub inside: InImageArgs,

    /// A volume of this pool is meant, with its format in the pool: its name; with a slash or dots,
    /// a directory or an ext4 image, which no other process may use meanwhile
    #[arg(long, value_name = "POOL", conflicts_with = "image")]
    #[arg(add = ArgValueCompleter::new(complete::pools))]
    pub pool: Option<PathBuf>,

    #[command(flatten)]
    pub config: ConfigArgs,

    /// Refuse all changes
    #[arg(long, short)]
    pub read_only: bool,

    /// Format of the files [default: qcow2 by the extension; else raw, refused if the contents have
    /// another format]
    #[arg(long, short, value_name = "FORMAT")]
    pub format: Option<ImageFormat>,

    /// Open the backing and data files that a qcow2 image names, and those that they name
    #[arg(long)]
    pub chain: bool,

    /// Caching of data before a client flushes
    #[arg(
        long,
        value_name = "WHERE",
        default_value = "writeback",
        conflicts_with = "image"
    )]
    pub cache: Cache,

    /// How reads and writes reach the kernel, for files and disks of the host
    #[arg(
        long,
        value_name = "HOW",
        default_value = "auto",
        conflicts_with = "image"
    )]
    pub aio: Aio,

    /// Whether devices grow, where a command has an option for it.
    #[arg(skip)]
    pub growable: bool,
}

/// Caching of data between client and disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Cache {
    /// In the page cache of this machine
    Writeback,
    /// Nowhere (O_DIRECT)
    None,
}

impl From<Cache> for HostCache {
    fn from(cache: Cache) -> Self {
        match cache {
            Cache::Writeback => Self::Buffered,
            Cache::None => Self::Direct,
        }
    }
}

/// How reads and writes reach the kernel; QEMU's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Aio {
    /// native for direct writes and streams of requests, else io_uring; threads without io_uring
    Auto,
    /// System calls that block, from several threads
    Threads,
    /// Linux AIO; needs --cache none
    Native,
    /// io_uring, also for single requests
    #[value(name = "io_uring")]
    IoUring,
}

impl Aio {
    /// The engine that runs where this was chosen.
    fn at_work(self) -> Self {
        match HostEngine::from(self).at_work() {
            HostEngine::Threads => Self::Threads,
            _ => self,
        }
    }
}

impl From<Aio> for HostEngine {
    fn from(aio: Aio) -> Self {
        match aio {
            Aio::Auto => Self::Auto,
            Aio::Threads => Self::Threads,
            Aio::Native => Self::Native,
            Aio::IoUring => Self::Uring,
        }
    }
}

/// Treatment of discards and punched holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Discard {
    /// The space is kept, so that preallocation survives
    Ignore,
    /// It is freed in the file system or disk below
    Unmap,
}

impl From<Discard> for DiscardPolicy {
    fn from(discard: Discard) -> Self {
        match discard {
            Discard::Ignore => Self::Ignore,
            Discard::Unmap => Self::Unmap,
        }
    }
}

impl SourceArgs {
    /// Whether users of the devices may change them.
    pub fn access(&self) -> Access {
        if self.read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        }
    }
}

/// A file that is to be opened, and the name that it is given.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub name: String,
    pub path: PathBuf,
}

/// A device that counts the requests of clients.
pub type Counted = Statistics<Arc<dyn Device>>;

/// All that is served.
pub struct Sources {
    list: Vec<Source>,
    /// The file-system image that contains the files.
    image: Option<Image>,
    /// Locks volumes until their devices are closed.
    files: Vec<NamedFile>,
}

/// One open device.
#[derive(Clone)]
pub struct Source {
    pub name: String,
    /// Its name in errors.
    pub path: PathBuf,
    /// The file or export that it is in, which is locked.
    pub held: PathBuf,
    /// Of a file or disk of the host.
    pub aio: Option<Aio>,
    pub device: Arc<Counted>,
}

impl Sources {
    /// Opens everything, or nothing.
    pub fn open(args: &SourceArgs, wanted: &[Wanted]) -> Result<Self> {
        if args.aio == Aio::Native && args.cache != Cache::None {
            return Err(Error::new(ErrorKind::InvalidArgument)
                .detail("--aio native needs --cache none: through the page cache it is synchronous")
                .advice("add --cache none, or choose --aio threads or io_uring"));
        }
        let mut sources = Self {
            list: Vec::new(),
            image: None,
            files: Vec::new(),
        };
        let places = NamedFiles::of(args, wanted)?;
        if let Some(path) = &places.image {
            sources.image = Some(if args.read_only {
                Image::hold_still(path)?
            } else {
                Image::change(path, args.inside.below())?
            });
        }
        let added = sources.add_all(args, wanted, &places.files);
        sources.files = places.files;
        match added {
            Ok(()) => Ok(sources),
            Err(error) => sources.close(Err(error)),
        }
    }

    fn add_all(
        &mut self,
        args: &SourceArgs,
        wanted: &[Wanted],
        places: &[NamedFile],
    ) -> Result<()> {
        let mut inodes = HashSet::new();
        let aio = self.image.is_none().then(|| args.aio.at_work());
        for (wanted, place) in wanted.iter().zip(places) {
            let format = place.format;
            let (device, path, held) = match (&self.image, place.device()) {
                (_, Some(device)) => (Arc::clone(device), place.path.clone(), place.path.clone()),
                (None, None) => {
                    // Names of backing files are relative to that of the image.
                    let device = match place.judged_file().filter(|_| !args.chain) {
                        None => open_on_host(args, format, &place.path),
                        Some(judged) => open_on_host(args, format, &judged)
                            .map_err(|error| error.about(&place.path)),
                    };
                    (device?, place.path.clone(), place.path.clone())
                }
                (Some(image), None) => {
                    let inner = place.path.as_os_str().as_bytes();
                    let file = image.resolve(&place.path, FollowLast::Yes)?.file();
                    let file = file.at_inner(image, inner)?;
                    let is_new = inodes.insert(file.node().number());
                    let place = image.place(inner);
                    if !is_new && !args.read_only {
                        return Err(Error::new(ErrorKind::InUse)
                            .at(place)
                            .detail("the same file is served twice"));
                    }
                    let device = open_inside(args, format, file);
                    let device = device.map_err(|error| error.at(&place))?;
                    (device, place, image.path().to_path_buf())
                }
            };
            if format.is_none() {
                format::refuse_other_than_raw(&*device, &path).map_err(|error| error.at(&path))?;
            }
            self.list.push(Source {
                name: wanted.name.clone(),
                aio: aio.filter(|_| !hold::is_export(&path) && place.device().is_none()),
                path,
                held,
                device: Arc::new(Statistics::new(device)),
            });
        }
        Ok(())
    }

    /// Those that are served, in the order of the arguments.
    pub fn list(&self) -> &[Source] {
        &self.list
    }

    /// Closes everything after `result`, whose error comes first.
    pub fn close<T>(self, result: Result<T>) -> Result<T> {
        let Self { list, image, files } = self;
        drop((list, files));
        match image {
            None => result,
            Some(image) => image.finish(result),
        }
    }
}

fn open_on_host(args: &SourceArgs, format: Option<Format>, path: &Path) -> Result<Arc<dyn Device>> {
    if args.aio != Aio::Auto && hold::is_export(path) {
        return Err(Error::new(ErrorKind::InvalidArgument)
            .at(path)
            .detail("--aio is for files and disks of the host, and this is an export"));
    }
    let access = if args.read_only {
        HostAccess::ReadOnly
    } else {
        HostAccess::ReadWrite
    };
    if format == Some(Format::Qcow2) {
        // Locked first: later openers see the lock.
        let options = image_options(args);
        let device: Arc<dyn Device> = if args.growable {
            Arc::new(GrowingImage::open(path, options)?)
        } else {
            Arc::new(ImageDevice::open(path, &options)?)
        };
        hold::check_is_free(path, access)?;
        return Ok(device);
    }
    let options = HostOptions {
        access,
        cache: args.cache.into(),
        engine: args.aio.into(),
        end: HostEnd::Exact,
        ..HostOptions::default()
    };
    Image::hold_device(path, &options)
}

fn image_options(args: &SourceArgs) -> DeviceOptions {
    DeviceOptions {
        access: if args.read_only {
            ImageAccess::ReadOnly
        } else {
            ImageAccess::ReadWrite
        },
        format: Some(Format::Qcow2),
        referenced: if args.chain {
            ReferencedStores::Followed
        } else {
            ReferencedStores::Refused
        },
        cache: args.cache.into(),
        engine: args.aio.into(),
        ..DeviceOptions::default()
    }
}

fn open_inside(args: &SourceArgs, format: Option<Format>, file: File) -> Result<Arc<dyn Device>> {
    let block = LoopOptions::default().logical_block;
    let ends_inside = !file.size()?.is_multiple_of(block.into());
    let options = LoopOptions {
        // Clients get all of a disk that does not end with a sector.
        logical_block: match format {
            Some(Format::Raw) | None if ends_inside => 1,
            _ => block,
        },
        access: if args.read_only {
            LoopAccess::ReadOnly
        } else {
            LoopAccess::ReadWrite
        },
        ..LoopOptions::default()
    };
    let device = Arc::new(LoopDevice::new(Arc::new(file), options)?);
    match format {
        Some(Format::Qcow2) if args.growable => Ok(Arc::new(GrowingImage::open_store(
            device,
            image_options(args),
        )?)),
        Some(Format::Qcow2) => Ok(Arc::new(ImageDevice::open_store(
            device,
            &image_options(args),
        )?)),
        Some(Format::Raw) | None => Ok(device),
    }
}
